"""The doorway to pandas: texts go through to the letter, half tables are refused, a join loses no row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from abprof.records.errors import AbprofError
from abprof.report import csv_files as tables

TRICKY = ["-1.0000", "0.10", "1e5", "", "NA", "nan", "None", "True", "007", "a,b", 'say "x"', "'=1+1", "é🔥", " pad "]


def file(folder: Path, data: bytes) -> Path:
    path = folder / "x.csv"
    path.write_bytes(data)
    return path


def test_texts_are_written_to_the_letter():
    lines = [{"n": str(n), "text": text} for n, text in enumerate(TRICKY)]
    by_pandas = pd.DataFrame(lines, columns=["n", "text"], dtype=object).to_csv(index=False, lineterminator="\n")
    assert tables.csv_text(["n", "text"], lines) == by_pandas
    assert tables.csv_text(["a", "b"], [{"b": "1.0000"}, {"a": "x"}]) == "a,b\n,1.0000\nx,\n"
    assert tables.csv_text(["a", "b"], []) == "a,b\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a,b\n1,2\n3\n4,5\n", "row 3 has fewer cells than the header"),
        (b"a,b\n1,2\n3,4,5\n", "not a CSV file: Expected 2 fields in line 3, saw 3"),
        (b'a,b\n1,2\n3,"4\n5,6\n', "not a CSV file: unexpected end of data"),
        (b"a,a\n1,2\n", "column 'a' stands twice in the header"),
        (b"a,b\n", "no rows"),
        (b"", "no rows"),
        (b"a\n\xff\xfe\n", "not a CSV file: 'utf-8' codec can't decode"),
    ],
)
def test_half_a_table_is_refused(tmp_path, data, says):
    with pytest.raises(AbprofError) as caught:
        tables.read(file(tmp_path, data))
    assert says in caught.value.what
    assert caught.value.where.endswith("x.csv")


def test_pandas_waits_until_a_table_is_read():
    code = "import sys, abprof.cli; from abprof.report import csv_files, suite_csv; csv_files.csv_text(['a'], [{'a': '1'}]); "
    code += "sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
