"""What a command printed, as times by name: `name,ms` lines, CSV with a header, or JSON (docs/ADOPT.md). Pure.

    JSON    {name: ms}, or [{"name": ..., "ms": ...}]; google-benchmark's and pytest-benchmark's
    CSV     a line with the columns `name` and one of ns, us, ms, s, and the rows below it
    lines   `name,ms`; other lines are passed over
A name that is printed several times was timed several times.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
LONGEST, MOST = 300, 5000  # letters of a name; names of a process
MOST_TIMES = 200_000  # of a process, of all names together: each becomes a round
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|[-+]?inf(?:inity)?", re.I)
_FRACTION = re.compile(r"[-+]?\d*\.\d+(?:e[-+]?\d+)?", re.I)
_FORMS = "`name,ms` lines, CSV with the columns name and ms (or ns, us, s), or JSON"


@dataclass(frozen=True)
class Readings:
    """Times in ns, by name in the order they were printed; a time may be non-positive or not finite."""

    times: Mapping[str, Sequence[float]]
    passed_over: Sequence[str] = ()  # lines among `name,ms` lines that are none


def read(text: str) -> Readings:
    """Parse what a command printed. Raises ValueError with a one-line message if it has no times or ambiguous ones."""
    if not text.strip():
        raise ValueError(f"it printed nothing; wanted are {_FORMS}")
    if text.lstrip()[:1] in "{[":
        try:
            loose = json.loads(text)
        except (ValueError, RecursionError):
            loose = None
        if loose is not None:
            return Readings(_by_name(_of_json(loose)))
    lines = text.splitlines()
    for place, line in enumerate(lines):
        header = [column.strip().lower() for column in _columns(line)]
        if "name" in header and NS.keys() & set(header):
            return Readings(_by_name(_of_csv(header, lines[place + 1 :])))
        if len(header) > 1 and header[0] == "name" and not any(map(_NUMBER.fullmatch, header)):
            what = f"the columns of {_shown(line)} beside name are {_shown(', '.join(header[1:]))}"
            raise ValueError(f"{what}, and none is a time's unit ({', '.join(NS)}): print a column of one")
    times, other, first = [], [], ""
    for line in filter(None, map(str.strip, lines)):
        first = first or line
        name, _, ms = (part.strip() for part in line.rpartition(","))
        if name and _NUMBER.fullmatch(ms):
            quoted = _columns(name) if name.startswith('"') else []
            times.append((quoted[0] if len(quoted) == 1 else name, float(ms) * NS["ms"]))
        else:
            other.append(line)
    if not times:
        raise ValueError(f"no line of what it printed is `name,ms`; the first is {_shown(first)}; wanted are {_FORMS}")
    return Readings(_by_name(times), tuple(other))


def _by_name(pairs: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
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


def _columns(line: str) -> list[str]:
    return next(csv.reader([line]), []) if len(line) < 10_000 else []


def _of_csv(header: Sequence[str], lines: Sequence[str]) -> Iterable[tuple[str, float]]:
    """The rows to the first empty line. Raises ValueError, naming the row, for one that cannot be read."""
    unit = next(column for column in header if column in NS)
    name, time, others = header.index("name"), header.index(unit), dict[str, dict[str, str]]()
    for line in lines:
        if not line.strip():
            return
        row = _columns(line)
        if len(row) != len(header):
            raise ValueError(f"row {_shown(line)} has {len(row)} columns, the header {len(header)}")
        rest = {column: row[i] for i, column in enumerate(header) if i not in (name, time)}
        before = others.setdefault(row[name], rest)
        differing = [column for column in before if before[column] != rest[column]]
        # Columns that look measured (a number with a fraction: TFLOP/s, a deviation) may differ.
        if not all(_FRACTION.fullmatch(each[column].strip()) for column in differing for each in (before, rest)):
            what = f"{_shown(row[name])} stands in rows that differ in {', '.join(differing)}"
            raise ValueError(f"{what}: put what tells them apart into the name")
        yield row[name], _number(row[time], row[name]) * NS[unit]


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
    if isinstance(row.get("stats"), dict):
        return name, _number(row["stats"].get("median"), name) * NS["s"]
    unit = row.get("time_unit", "ns") if "real_time" in row else next((unit for unit in NS if unit in row), None)
    if unit is None:
        raise ValueError(f"{_shown(name)} has no time: wanted is one of {', '.join(NS)}")
    if unit not in tuple(NS):  # it may be unhashable
        raise ValueError(f"{_shown(name)} has the time unit {unit!r}")
    return name, _number(row["real_time" if "real_time" in row else unit], name) * NS[unit]


def _number(loose: object, name: str) -> float:
    try:
        if isinstance(loose, bool) or not isinstance(loose, int | float | str):
            raise ValueError
        return float(loose)
    except (ValueError, OverflowError):
        raise ValueError(f"{_shown(name)} has {_shown(str(loose))}, which is no time") from None
