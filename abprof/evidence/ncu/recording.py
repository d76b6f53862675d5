"""CSV files of `ncu --csv` as launches: details or raw page, old or new columns, any unit and locale.

Other lines in the file (`==PROF==`, the program's output) are skipped; a torn row is an error, because one lost launch makes
every count wrong.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from abprof.records.errors import AbprofError

LEVELS = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
METRICS = {"dram": "dram__bytes.sum", "l2": "lts__t_bytes.sum", "l1": "l1tex__t_bytes.sum"}
DRAM_PARTS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
HOW = f"record with ncu --csv --page raw --metrics {','.join((*METRICS.values(), *DRAM_PARTS))}"
_BYTES = {*METRICS.values(), *DRAM_PARTS}
_GRID, _BLOCK = ("Grid Size", "launch__grid_size"), ("Block Size", "launch__block_size")
_HEADER = re.compile(r'"ID"(?P<quoted>[,;\t])|^ID(?P<bare>[,;\t])')
Name = tuple[str, str, str]  # kernel, grid, block; grid and block are "" if the file does not have them


@dataclass(frozen=True)
class Launch:
    """One launch. `bytes`: level -> bytes moved, recorded levels only; `values`: the other requested metrics."""

    kernel: str
    grid: str
    block: str
    bytes: Mapping[str, float]
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> Name:
        return self.kernel, self.grid, self.block


@dataclass(frozen=True)
class Recording:
    """A file's launches in order. `sources`: level -> metrics its bytes come from; `starts`: the first launch of each
    recording in the file, for each has its own header."""

    path: Path
    page: str
    launches: tuple[Launch, ...]
    sources: Mapping[str, str]
    starts: tuple[int, ...] = (0,)

    def split(self) -> list[Recording]:
        """Each recording by itself."""
        ends = (*self.starts[1:], len(self.launches))
        parts = [self.launches[start:end] for start, end in zip(self.starts, ends, strict=True)]
        return [replace(self, launches=part, starts=(0,)) for part in parts]


Key = tuple[int, str, str]  # of a launch: line of its header, process, ID
Printed = dict[str, tuple[str, str]]  # metric -> (number as printed, unit); "kernel" and "line" of the launch


def read(path: Path, metrics: Sequence[str] = ()) -> Recording:
    """The recordings in this file. Raises AbprofError with the line for what cannot be read.

    `metrics`: metrics besides bytes; the file must then be in base units and the locale C.
    """
    lines = re.split(r"\r\n|\n|\r", _text(path))
    found: dict[Key, Printed] = {}
    pages: dict[str, None] = {}
    sources: dict[str, dict[str, None]] = {}
    try:
        for header, page, rows in _tables(lines):
            pages[page] = None
            _read_rows(header, page, rows, found)
        if not pages:
            raise _no_table(lines)
        if not found:
            raise AbprofError("a header of ncu --csv and no launch below it", advice="was the filter too narrow?")
        numbers = dict.fromkeys(value for one in found.values() for value, unit in one.values() if unit)
        mark = "." if metrics else decimal_mark(numbers)
        launches = tuple(_launch(one, mark, metrics, sources) for one in found.values())
    except AbprofError as error:
        raise AbprofError(error.what, where=f"{path}{error.where}", advice=error.advice) from None
    if not any(launch.bytes for launch in launches):
        what = f"none of {', '.join(METRICS.values())} in its {len(launches)} launches"
        raise AbprofError(what, where=str(path), advice=HOW)
    headers = [header for header, _, _ in found]
    starts = tuple(n for n, header in enumerate(headers) if n == 0 or header != headers[n - 1])
    named = {level: " or ".join(names) for level, names in sources.items()}
    return Recording(path, " and ".join(pages), launches, named, starts)


def moved(values: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """(level, metric, bytes) of a launch's metrics. DRAM is read + write if their sum was not recorded."""
    for level, name in METRICS.items():
        if name in values:
            yield level, name, values[name]
        elif level == "dram" and all(part in values for part in DRAM_PARTS):
            yield level, " + ".join(DRAM_PARTS), sum(values[part] for part in DRAM_PARTS)


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise AbprofError(getattr(error, "strerror", "") or str(error), where=str(path)) from None
    if content.startswith(b"NVR"):
        advice = f"ncu -i {path.name} --csv --page raw > {path.stem}.csv"
        raise AbprofError("a report of ncu, not a CSV file", where=str(path), advice=advice)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # PowerShell's > writes this
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _no_table(lines: list[str]) -> AbprofError:
    if any('"Invocations"' in line for line in lines):
        return AbprofError("a summary over launches, without the launches", advice="record without --print-summary")
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        advice = "run ncu as root or with CAP_SYS_ADMIN, or set NVreg_RestrictProfilingToAdminUsers=0"
        return AbprofError("ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)", advice=advice)
    errors = [line for line in lines if line.startswith(("==ERROR==", "==WARNING== No kernels"))]
    what = "no table of ncu --csv in this file" + (f"; ncu printed {errors[0][:200]!r}" if errors else "")
    return AbprofError(what, advice=HOW)


# ---------------------------------------------------------------- rows

Row = tuple[int, dict[str, str]]  # line number from 1, column -> cell


def _tables(lines: list[str]) -> Iterator[tuple[int, str, list[Row]]]:
    """(line, page, rows) of each header."""
    found = [(at, match) for at, line in enumerate(lines) if (match := _HEADER.search(line)) and "Kernel Name" in line]
    ends = [*(at for at, _ in found[1:]), len(lines)]
    for (at, match), end in zip(found, ends, strict=False):
        mark = match["quoted"] or match["bare"]
        columns = [name.strip() for name in _split(lines[at][match.start() :], mark) or ()]
        page = "details" if "Metric Name" in columns else "raw"
        needed = ("Kernel Name", *(("Metric Unit", "Metric Value") if page == "details" else ()))
        missing = [name for name in needed if name not in columns]
        if missing or len(set(columns)) < len(columns):
            what = f"no column {missing[0]!r}" if missing else "the header has a column twice"
            raise AbprofError(what, where=f":{at + 1}", advice=HOW)
        # Most rows of the details page lack the last columns, those of rules.
        fewest = columns.index("Metric Value") + 1 if page == "details" else len(columns)
        rows = []
        for number in range(at + 1, end):
            cells = _cells(lines[number], number + 1, match, len(columns), fewest, units=page == "raw")
            if cells:
                rows.append((number + 1, dict(zip(columns, cells, strict=False))))
        yield at + 1, page, rows


def _cells(line: str, number: int, header: re.Match[str], width: int, fewest: int, *, units: bool) -> list[str] | None:
    """A row's cells; None for a line that is not a row. Raises AbprofError for a torn row."""
    mark, start = header["quoted"] or header["bare"], 0
    if not (units and line.startswith(f'""{mark}""' if header["quoted"] else mark * 2)):
        found = re.search(rf'"\d+"{mark}' if header["quoted"] else rf"^\d+{mark}", line, re.ASCII)
        if not found:
            return None
        start = found.start()
    cells = _split(line[start:], mark)
    if cells is not None and fewest <= len(cells) <= width:
        return cells
    if start and (cells is None or len(cells) < width // 2):
        return None  # a line of the program
    have = f"{len(cells)} of {width} cells" if cells else "an open quote"
    what = f"a torn row: it has {have} (cut off, or mixed with the program's output)"
    raise AbprofError(what, where=f":{number}", advice="record again with ncu --log-file FILE")


def _split(line: str, mark: str) -> list[str] | None:
    try:
        return next(csv.reader([line], delimiter=mark, strict=True), None)
    except csv.Error:
        return None


def _read_rows(header: int, page: str, rows: list[Row], found: dict[Key, Printed]) -> None:
    """Raw page: a row of units, then a row per launch, with a column per metric. Details page: a row per metric."""
    units: dict[str, str] = {}
    for line, row in rows:
        if page == "raw" and not row["ID"]:
            units = row
            continue
        if page == "raw" and not units:
            what = "no row of units between the header and the first launch"
            raise AbprofError(what, where=f":{line}", advice="leave the file as ncu wrote it")
        key, kernel = (header, row.get("Process ID", ""), row["ID"]), " ".join(row["Kernel Name"].split())
        if page == "raw" and key in found:
            raise AbprofError(f"launch {row['ID']} is there twice", where=f":{line}")
        one = found.setdefault(key, {"kernel": (kernel, ""), "line": (str(line), "")})
        if one["kernel"][0] != kernel:
            what = f"launch {row['ID']} is {one['kernel'][0][:80]!r} above and {kernel[:80]!r} here"
            raise AbprofError(what, where=f":{line}", advice="two recordings in one file keep a header each")
        shape = {name: (row[name].strip(), "") for name in (_GRID[0], _BLOCK[0]) if row.get(name, "").strip()}
        if page == "raw":
            one |= {name: (value.strip(), units[name].strip()) for name, value in row.items()} | shape
            continue
        one |= shape
        name, printed = row["Metric Name"].strip(), (row["Metric Value"].strip(), row["Metric Unit"].strip())
        before = one.setdefault(name, printed)
        if before != printed and name in _BYTES:
            what = f"{name} of one launch is {' '.join(before)} and {' '.join(printed)}"
            raise AbprofError(what, where=f":{line}")


def _launch(one: Printed, mark: str, metrics: Sequence[str], sources: dict[str, dict[str, None]]) -> Launch:
    found: dict[str, float] = {}
    for name in [name for name in one if name in _BYTES]:
        try:
            number = bytes_of(*one[name], mark)
        except AbprofError as error:
            raise AbprofError(f"{name}: {error.what}", where=f":{one['line'][0]}", advice=error.advice) from None
        if number is not None:
            found[name] = number
    levels: dict[str, float] = {}
    for level, source, number in moved(found):
        levels[level] = number
        sources.setdefault(level, {})[source] = None
    grid, block = (next((v for name in names if (v := one.get(name, ("", ""))[0])), "") for names in (_GRID, _BLOCK))
    others = {name: _parsed(_BLANKS.sub("", one[name][0]), mark) for name in metrics if name in one}
    known = {name: value for name, value in others.items() if value is not None}
    return Launch(one["kernel"][0], grid, block, levels, known)


# ---------------------------------------------------------------- numbers, in the locale and unit of whoever recorded

_SCALES = {f"{prefix}{word}": 1000.0**power  # ncu scales by thousands: 49152 bytes are its 49.15 Kbyte
           for power, prefix in enumerate(("", "k", "m", "g", "t")) for word in ("byte", "bytes", "b")}  # fmt: skip
_SCALES |= {f"{prefix}ib": 1024.0**power for power, prefix in enumerate("kmgt", 1)}
_BLANKS = re.compile(r"[\s'\u2019]")  # separators of thousands in French and Swiss locales


def decimal_mark(numbers: Iterable[str]) -> str:
    """The decimal mark of a file's numbers, `.` or `,`: `2.508.800` and `65,77` can be read in one way only. "" if none
    tells. Raises AbprofError for both."""
    found: dict[str, str] = {}
    for number in numbers:
        plain = _BLANKS.sub("", number)
        ways = [mark for mark in ".," if _parsed(plain, mark) is not None]
        if len(ways) == 1 and ("." in plain or "," in plain):
            found.setdefault(ways[0], number)
    if len(found) == 2:
        what = f"its numbers mix locales: {found['.']!r} has a decimal point, {found[',']!r} a decimal comma"
        raise AbprofError(what, advice="record again with LC_ALL=C, or split the file")
    return next(iter(found), "")


def bytes_of(text: str, unit: str, mark: str) -> float | None:
    """A number with its unit in bytes; None for an empty cell, `n/a`, `(!) nan`, `no data`. Raises AbprofError.

    Without a `mark` a number that can be read in two ways is an error, except plain bytes: they are whole, so a mark
    separates thousands.
    """
    plain = _BLANKS.sub("", text)
    if plain.lower().removeprefix("(!)") in ("", "n/a", "nan", "-", "nodata"):
        return None
    scale = _SCALES.get(unit.strip().lower())
    if scale is None:
        raise AbprofError(f"{unit!r} is not a unit of bytes", advice="record with --print-units base")
    ways = {value for way in mark or ".," if (value := _parsed(plain, way)) is not None}
    advice = "record again with LC_ALL=C and --print-units base"
    if not ways:
        raise AbprofError(f"{text!r} is not a number", advice=advice)
    if len(ways) == 2 and scale != 1:
        raise AbprofError(f"{text!r} is ambiguous: the file does not show which mark is the decimal one", advice=advice)
    return max(ways) * scale


def _parsed(text: str, mark: str) -> float | None:
    """The number if `mark` is the decimal mark and the other one separates thousands; None if it cannot be."""
    between = re.escape("," if mark == "." else ".")
    shape = rf"[+-]?(?:[1-9]\d{{0,2}}(?:{between}\d{{3}})+|\d+)(?:{re.escape(mark)}\d*)?(?:[eE][+-]?\d{{1,3}})?"
    if not re.fullmatch(shape, text, re.ASCII):
        return None
    value = float(text.replace("," if mark == "." else ".", "").replace(mark, "."))
    return value if 0 <= value < 1e30 else None


# ---------------------------------------------------------------- metrics

TIME = "gpu__time_duration.sum"
L1_BYTES, L2_BYTES = (METRICS["l1"],), (METRICS["l2"],)
DRAM_BYTES = ((METRICS["dram"],), DRAM_PARTS)  # either: not every device has both
MEMORY = (*METRICS.values(), *DRAM_PARTS, TIME)
# What a warp waits for, as ncu's warp states have it, but `selected`. The last exists on Hopper only.
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard",
    "sleeping", "tex_throttle", "wait", "gmma",
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A row of the metric table."""

    label: str
    names: tuple[str, ...]  # ncu's; added up
    unit: Literal["ns", "bytes", "bytes/s", "%", "count", ""]
    better: Literal["lower", "higher", "none"] = "none"
    per_call: bool = False  # a sum over the call's launches; else per launch


def stall(reason: str) -> str:
    """The metric of a stall reason: warps waiting per issued instruction."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


_PEAK = "pct_of_peak_sustained"
DRAM_BUSY = f"gpu__dram_throughput.avg.{_PEAK}_elapsed"
L2_HITS = "lts__t_sector_hit_rate.pct"
LOAD_EFFICIENCY = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
STORE_EFFICIENCY = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"
TABLE = (
    Shown("time under ncu", (TIME,), "ns", "lower", per_call=True),
    *(Shown("DRAM bytes", names, "bytes", "lower", per_call=True) for names in DRAM_BYTES),
    Shown("L2 bytes", L2_BYTES, "bytes", "lower", per_call=True),
    Shown("L1 bytes", L1_BYTES, "bytes", "lower", per_call=True),
    *(Shown("DRAM rate", tuple(f"{name}.per_second" for name in names), "bytes/s", "higher") for names in DRAM_BYTES),
    Shown("L2 rate", (f"{METRICS['l2']}.per_second",), "bytes/s", "higher"),
    Shown("L1 rate", (f"{METRICS['l1']}.per_second",), "bytes/s", "higher"),
    Shown("DRAM busy", (DRAM_BUSY,), "%"),
    Shown("L2 hit rate", (L2_HITS,), "%", "higher"),
    Shown("L1 hit rate", ("l1tex__t_sector_hit_rate.pct",), "%", "higher"),
    Shown("tensor cores busy", (f"sm__pipe_tensor_cycles_active.avg.{_PEAK}_active",), "%", "higher"),
    Shown("issue slots busy", (f"smsp__issue_active.avg.{_PEAK}_active",), "%", "higher"),
    Shown("SM busy", (f"sm__throughput.avg.{_PEAK}_elapsed",), "%"),
    Shown("occupancy", (f"sm__warps_active.avg.{_PEAK}_active",), "%", "higher"),
    Shown("registers a thread", ("launch__registers_per_thread",), "count"),
    Shown("shared bank conflicts", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",), "count", "lower", True),
    Shown("global load efficiency", (LOAD_EFFICIENCY,), "%", "higher"),
    Shown("global store efficiency", (STORE_EFFICIENCY,), "%", "higher"),
)
PROFILE = tuple(dict.fromkeys((*MEMORY, *(name for row in TABLE for name in row.names), *map(stall, STALLS))))
