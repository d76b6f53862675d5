"""The doorway to pandas: texts go through to the letter, half tables are refused, a join loses no row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from abprof.records.errors import AbprofError
from abprof.report import tables

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


def test_what_was_written_is_read_again(tmp_path):
    lines = [{"n": str(n), "text": text} for n, text in enumerate(TRICKY)]
    path = file(tmp_path, tables.csv_text(["n", "text"], lines).encode())
    assert tables.read(path) == (("n", "text"), lines)


def test_files_of_other_programs_are_read(tmp_path):
    path = file(tmp_path, b'\xef\xbb\xbfa,"b"\r\n1.0,\r\n\r\n"x,y",NA\r\n')  # a mark, quotes, an empty line
    assert tables.read(path) == (("a", "b"), [{"a": "1.0", "b": ""}, {"a": "x,y", "b": "NA"}])


def test_a_cell_without_a_column_is_refused():
    with pytest.raises(ValueError, match="no column for c"):
        tables.csv_text(["a", "b"], [{"a": "1", "c": "2"}])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a,b\n1,2\n3\n4,5\n", "row 3 has 1 cells, the header 2"),
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
    code = (
        "import sys, abprof.cli; from abprof.report import compare_csv, tables; tables.csv_text(['a'], [{'a': '1'}]); "
    )
    code += "sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
