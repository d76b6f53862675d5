"""The doorway to pandas: lines of texts become a table, which is written and read.

Every cell stays the text it is, but for letters that steer a terminal and what a spreadsheet would take for a formula. No number
is parsed or printed here, so that `-1.0000`, four decimals and empty cells mean the same before and after. pandas takes half a
second to import: it waits until a table is read. Every run writes some, with the writer of the standard library, which pandas
uses too.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from abprof.records.errors import AbprofError
from abprof.records.visible import cell
from abprof.report import words

if TYPE_CHECKING:
    from pandas import DataFrame

Line = dict[str, str]  # column -> cell


def csv_text(header: Sequence[str], lines: Iterable[Line]) -> str:
    """A CSV file with these columns; a line's missing ones are empty. Lines may be made as they are written: ten thousand as
    texts are many times their file. Raises ValueError for a column not among them."""
    known = set(header)
    written = StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(map(cell, header))
    for line in lines:
        if unknown := line.keys() - known:
            raise ValueError(f"no column for {', '.join(sorted(unknown))}")
        writer.writerow([cell(line.get(name, "")) for name in header])
    return written.getvalue()


def read(path: Path) -> tuple[tuple[str, ...], list[Line]]:
    """A CSV file's columns and lines, every cell as text. Raises AbprofError for anything that is no whole table."""
    import pandas as pd

    try:
        # The Python engine tells a row that is too short from one with empty cells, and says where a quote stays open.
        frame = pd.read_csv(BytesIO(path.read_bytes()), header=None, dtype=str, keep_default_na=False,
                            encoding="utf-8-sig", engine="python")  # fmt: skip
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=str(path)) from None
    except pd.errors.EmptyDataError:
        raise AbprofError("no rows", where=str(path)) from None
    except (UnicodeDecodeError, pd.errors.ParserError) as error:
        raise AbprofError(f"not a CSV file: {error}", where=str(path)) from None
    _refuse_ragged(frame, path)
    header, *rows = frame.to_numpy().tolist()
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise AbprofError(f"column {twice!r} stands twice in the header", where=str(path))
    if not rows:
        raise AbprofError("no rows", where=str(path))
    return tuple(header), [dict(zip(header, row, strict=True)) for row in rows]


def plain(text: str) -> str:
    """Foreign text as a cell: one line of some hundred letters, and never taken for a formula by a spreadsheet."""
    return cell(words.clean(text))


def _refuse_ragged(frame: DataFrame, path: Path) -> None:
    """A row that ends early has missing cells, which are not the same as empty ones."""
    short = frame.isna().any(axis=1)
    if short.any():
        first = int(short.to_numpy().argmax())
        cells = int(frame.iloc[first].notna().sum())
        raise AbprofError(f"row {first + 1} has {cells} cells, the header {frame.shape[1]}", where=str(path))
