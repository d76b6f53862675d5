"""What a command printed, as times by name: `name,ms` lines, CSV with a header, or JSON. Pure: text in, times out.

Formats, told apart by what is there (docs/ADOPT.md):
    JSON    {name: ms}, or [{"name": ..., "ms": ...}]; google-benchmark's (`--benchmark_format=json`), pytest-benchmark's
    CSV     a line whose columns are `name` and one of ns, us, ms, s, with others or without, and the rows below it
    lines   `name,ms`; whatever else stands there is passed over
A name that is printed several times was timed several times.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
LONGEST, MOST = 300, 5000  # letters of a name; names of a process
MOST_TIMES = 200_000  # of a process, of all names together: each becomes a round
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|[-+]?inf(?:inity)?", re.I)
_FRACTION = re.compile(r"[-+]?\d*\.\d+(?:e[-+]?\d+)?", re.I)
_FORMS = "`name,ms` lines, CSV with the columns name and ms (or ns, us, s), or JSON"


@dataclass(frozen=True)
class Readings:
    """Times in ns, by name in the order they were printed; one that is not positive and finite is no time."""

    times: Mapping[str, Sequence[float]]
    passed_over: Sequence[str] = field(default=())  # lines among `name,ms` lines that are none


def read(text: str) -> Readings:
    """Parse what a command printed. Raises ValueError with a one-line message if it has no times or ambiguous ones."""
    if not text.strip():
        raise ValueError(f"it printed nothing; wanted are {_FORMS}")
    loose = _json(text)
    if loose is not None:
        return Readings(_gathered(_of_json(loose)))
    lines = text.splitlines()
    for place, line in enumerate(lines):
        header = [column.strip().lower() for column in _columns(line)]
        if "name" in header and NS.keys() & set(header):
            return Readings(_gathered(_of_csv(header, lines[place + 1 :])))
        if _of_another_unit(header):  # rows below it would read as ms
            columns, units = ", ".join(header[1:]), ", ".join(NS)
            what = f"the columns of {_shown(line)} beside name are {_shown(columns)}"
            raise ValueError(f"{what}, and none is a time's unit ({units}): print a column of one")
    said = [line.strip() for line in lines if line.strip()]
    times = [(_quoted(name), float(ms) * NS["ms"]) for name, ms in map(_parted, said) if ms]
    if not times:
        raise ValueError(
            f"no line of what it printed is `name,ms`; the first is {_shown(said[0])}; wanted are {_FORMS}"
        )
    return Readings(_gathered(times), tuple(line for line in said if not _parted(line)[1]))


def _parted(line: str) -> tuple[str, str]:
    """A line as name and ms; ("", "") for one that is something else."""
    name, _, ms = (part.strip() for part in line.rpartition(","))
    return (name, ms) if name and _NUMBER.fullmatch(ms) else ("", "")


def _of_another_unit(columns: Sequence[str]) -> bool:
    """Whether a line that has no time's unit is a table's header none the less: `name,tflops`, `name,mean_us`."""
    return len(columns) > 1 and columns[0] == "name" and not any(map(_NUMBER.fullmatch, columns))


def _gathered(pairs: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for number, (name, ns) in enumerate(pairs, 1):
        if number > MOST_TIMES:
            raise ValueError(f"it printed more than {MOST_TIMES} times: print a median of each name")
        clean = " ".join(name.encode(errors="replace").decode().split())
        if not clean or len(clean) > LONGEST:
            raise ValueError(f"a name of {len(clean)} letters: {_shown(clean)}; wanted are 1 to {LONGEST}")
        times.setdefault(clean, []).append(ns)
    if not times:
        raise ValueError("it printed a table without a row")
    if len(times) > MOST:
        raise ValueError(f"it printed {len(times)} names, and {MOST} are the most")
    return times


def _shown(text: str) -> str:
    return repr(text[:60] + ("..." if len(text) > 60 else ""))


# ---------------------------------------------------------------- CSV


def _columns(line: str) -> list[str]:
    return next(csv.reader([line]), []) if len(line) < 10_000 else []


def _quoted(name: str) -> str:
    """A name as CSV writes it, or as it stands."""
    columns = _columns(name) if name.startswith('"') else []
    return columns[0] if len(columns) == 1 else name


def _of_csv(header: Sequence[str], lines: Sequence[str]) -> Iterable[tuple[str, float]]:
    """The rows to the first empty line. Raises ValueError, naming the row, for one that cannot be read."""
    name, unit = header.index("name"), next(column for column in header if column in NS)
    time, others = header.index(unit), dict[str, dict[str, str]]()
    for line in lines:
        if not line.strip():
            return
        row = _columns(line)
        if len(row) != len(header):
            raise ValueError(f"row {_shown(line)} has {len(row)} columns, the header {len(header)}")
        rest = {column: row[i] for i, column in enumerate(header) if i not in (name, time)}
        if others.setdefault(row[name], rest) != rest and not _measured(others[row[name]], rest):
            what = f"{_shown(row[name])} stands in rows that differ in {', '.join(_apart(others[row[name]], rest))}"
            raise ValueError(f"{what}: put what tells them apart into the name")
        yield row[name], _number(row[time], row[name]) * NS[unit]


def _apart(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return [column for column in one if one[column] != other[column]]


def _measured(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether rows of one name differ only in what looks measured (a number with a fraction: TFLOP/s, a deviation)."""
    differing = [row[column].strip() for column in _apart(one, other) for row in (one, other)]
    return all(_FRACTION.fullmatch(text) for text in differing)


# ---------------------------------------------------------------- JSON


def _json(text: str) -> Any:
    """The JSON value that the text is; None where it is none."""
    if text.lstrip()[:1] not in "{[":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _of_json(loose: Any) -> Iterable[tuple[str, float]]:
    rows = loose.get("benchmarks") if isinstance(loose, dict) else loose
    if isinstance(loose, dict) and not isinstance(rows, list):
        return [(name, _number(ms, name) * NS["ms"]) for name, ms in loose.items()]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"its JSON is neither {{name: ms}} nor a list of {{name, ms}}; wanted are {_FORMS}")
    # google-benchmark adds means and deviations of its repetitions, under names of their own.
    return [_entry(row) for row in rows if row.get("run_type") != "aggregate"]


def _entry(row: Mapping[str, Any]) -> tuple[str, float]:
    """One of a list: our own, google-benchmark's (`real_time`), or pytest-benchmark's (`stats`, in seconds)."""
    name = row.get("fullname") or row.get("name")
    if not isinstance(name, str):
        raise ValueError(f"an entry of its JSON has no name: {_shown(json.dumps(row))}")
    if row.get("error_occurred"):
        return name, math.nan
    stats = row.get("stats")
    if isinstance(stats, dict):
        return name, _number(stats.get("median"), name) * NS["s"]
    if "real_time" in row:
        unit = row.get("time_unit", "ns")
        if unit not in NS:
            raise ValueError(f"{_shown(name)} has the time unit {unit!r}")
        return name, _number(row["real_time"], name) * NS[unit]
    unit = next((unit for unit in NS if unit in row), None)
    if unit is None:
        raise ValueError(f"{_shown(name)} has no time: wanted is one of {', '.join(NS)}")
    return name, _number(row[unit], name) * NS[unit]


def _number(loose: object, name: str) -> float:
    """A number, or a text that is one. Raises ValueError."""
    try:
        if isinstance(loose, bool) or not isinstance(loose, int | float | str):
            raise ValueError
        return float(loose)
    except (ValueError, OverflowError):
        raise ValueError(f"{_shown(name)} has {_shown(str(loose))}, which is no time") from None
