"""Values of the index as a table: the columns of `abprof history query` and of its exports."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import IO

from abprof.extras.history.index import Row
from abprof.extras.history.night import Value
from abprof.records.visible import cell

COLUMNS = (
    "series", "night", "kind", "began", "base_commit", "head_commit", "subject", "cell", "variant", "metric", "unit",
    "base", "head", "base_status", "head_status", "verdict", "pct", "low_pct", "high_pct", "machine", "run",
)  # fmt: skip


def rows(values: Iterable[tuple[Row, Value]]) -> Iterator[tuple[str | int | float | None, ...]]:
    """One tuple per value, in the order of COLUMNS: times in ns, memory in bytes, None for what was not recorded."""
    for night, value in values:
        unit = "bytes" if value.metric.endswith("_bytes") else "ns"
        yield (night.series, night.number, night.kind, night.began, night.base, night.head, night.subject, value.cell,
               value.variant, value.metric, unit, value.base, value.head, value.base_status, value.head_status,
               value.verdict, value.pct, value.low_pct, value.high_pct, night.machine, night.folder)  # fmt: skip


def write_csv(values: Iterable[tuple[Row, Value]], out: IO[str]) -> int:
    """The table as CSV, unrounded, empty for what was not recorded; how many rows. Nothing in a text ends its line, steers a
    terminal, or is a formula to a spreadsheet."""
    writer, count = csv.writer(out, lineterminator="\n"), 0
    writer.writerow(COLUMNS)
    for row in rows(values):
        writer.writerow([cell(item) if isinstance(item, str) else item for item in row])
        count += 1
    return count
