"""A CSV file of `ncu --csv` as its launches, whichever ncu wrote it: details or raw page, old columns or new.

What others print into the same file (`==PROF==` lines, the profiled program's output) is passed over; a row that was
torn by it is refused, because a launch that is lost makes every count wrong.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from abprof.evidence.memory import numbers
from abprof.records.errors import AbprofError

LEVELS = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
METRICS = {"dram": "dram__bytes.sum", "l2": "lts__t_bytes.sum", "l1": "l1tex__t_bytes.sum"}
DRAM_PARTS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
HOW = f"record with ncu --csv --page raw --metrics {','.join((*METRICS.values(), *DRAM_PARTS))}"
_WANTED = {*METRICS.values(), *DRAM_PARTS}
_GRID, _BLOCK = ("Grid Size", "launch__grid_size"), ("Block Size", "launch__block_size")
_PLAIN = {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream",
          "Block Size", "Grid Size", "Device", "CC"}  # fmt: skip
_HEADER = re.compile(r'"ID"(?P<quoted>[,;\t])|^ID(?P<bare>[,;\t])')


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel. `bytes`: level -> bytes moved; a level that was not recorded is not there.

    `values`: other metrics that were asked for, as they were printed.
    """

    kernel: str
    grid: str  # "" where the file does not say
    block: str
    bytes: Mapping[str, float]
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """The launches of a file in their order; `sources`: level -> the metrics its bytes come from; `starts`: with which launch
    each recording in it begins, for several may stand in one file, each below a header of its own."""

    path: Path
    page: str
    launches: tuple[Launch, ...]
    sources: Mapping[str, str]
    starts: tuple[int, ...] = (0,)

    def apart(self) -> list[Recording]:
        """Each recording by itself."""
        ends = (*self.starts[1:], len(self.launches))
        parts = [self.launches[start:end] for start, end in zip(self.starts, ends, strict=True)]
        return [replace(self, launches=part, starts=(0,)) for part in parts]


@dataclass
class _Seen:
    """A launch while its rows are read."""

    kernel: str
    line: int
    grid: str = ""
    block: str = ""
    values: dict[str, tuple[str, str, int]] = field(default_factory=dict)  # metric -> number, unit, line


@dataclass(frozen=True)
class _Read:
    """What is read of a file so far."""

    wanted: Set[str]  # metrics
    seen: dict[tuple[int, str, str], _Seen] = field(default_factory=dict)
    telling: list[str] = field(default_factory=list)  # numbers that may tell the decimal mark


@dataclass(frozen=True)
class _Header:
    columns: tuple[str, ...]
    mark: str
    quoted: bool
    page: str
    place: int

    @property
    def fewest(self) -> int:
        """The details page leaves out the last columns of most rows: those of rules."""
        return self.columns.index("Metric Value") + 1 if self.page == "details" else len(self.columns)


def read(path: Path, metrics: Sequence[str] = ()) -> Recording:
    """The recording in this file. Raises AbprofError, naming the line, for what cannot be read as one.

    `metrics`: others than bytes to be read too; the file is then in base units and in the locale C.
    """
    lines = re.split(r"\r\n|\n|\r", _text(path))
    into = _Read(_WANTED | set(metrics))
    pages: dict[str, None] = {}
    try:
        for header, rows in _tables(lines):
            pages[header.page] = None
            take = _details if header.page == "details" else _raw
            take(header, rows, into)
        if not pages:
            raise _headless(lines)
        if not into.seen:
            raise AbprofError("a header of ncu --csv and no launch below it", advice="was the filter too narrow?")
        mark = "." if metrics else numbers.decimal_mark(dict.fromkeys(into.telling))
        launches, sources = _launches(into.seen.values(), mark, metrics)
    except AbprofError as error:
        raise AbprofError(error.what, where=f"{path}{error.where}", advice=error.advice) from None
    if not any(launch.bytes for launch in launches):
        what = f"none of {', '.join(METRICS.values())} in its {len(launches)} launches"
        raise AbprofError(what, where=str(path), advice=HOW)
    headers = [place for place, _, _ in into.seen]
    starts = tuple(n for n, place in enumerate(headers) if n == 0 or place != headers[n - 1])
    return Recording(path, " and ".join(pages), launches, sources, starts)


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise AbprofError(said, where=str(path)) from None
    if content.startswith(b"NVR"):
        advice = f"ncu -i {path.name} --csv --page raw > {path.stem}.csv"
        raise AbprofError("a report of ncu, not a CSV file", where=str(path), advice=advice)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # PowerShell's > writes this
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _headless(lines: list[str]) -> AbprofError:
    """Why there is no table: ncu says it itself, if it got so far."""
    if any('"Invocations"' in line for line in lines):
        what = "a summary over launches: which of them are warm-ups is lost"
        return AbprofError(what, advice="record without --print-summary")
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        how = "run ncu as root, or allow it: NVreg_RestrictProfilingToAdminUsers=0"
        return AbprofError("ncu was not permitted to read the GPU's counters (ERR_NVGPUCTRPERM)", advice=how)
    said = next((line for line in lines if line.startswith("==ERROR==")), "")
    said = said or next((line for line in lines if line.startswith("==WARNING== No kernels")), "")
    what = "no table of ncu --csv in this file" + (f"; ncu said {said[:200]!r}" if said else "")
    return AbprofError(what, advice=HOW)


def _tables(lines: list[str]) -> Iterator[tuple[_Header, list[tuple[int, list[str]]]]]:
    """Each header with the rows below it; a file to which several recordings were appended has several."""
    found = [(place, match) for place, line in enumerate(lines) if (match := _HEADER.search(line))]
    found = [(place, match) for place, match in found if "Kernel Name" in lines[place]]
    ends = [*(place for place, _ in found[1:]), len(lines)]
    for (place, match), end in zip(found, ends, strict=False):
        header = _header(lines[place][match.start() :], match, place + 1)
        rows = [(n + 1, row) for n in range(place + 1, end) if (row := _row(lines[n], n + 1, header))]
        yield header, rows


def _header(line: str, match: re.Match[str], place: int) -> _Header:
    mark = match["quoted"] or match["bare"]
    columns = tuple(name.strip() for name in _split(line, mark) or ())
    page = "details" if "Metric Name" in columns else "raw"
    needed = ("Kernel Name", *(("Metric Unit", "Metric Value") if page == "details" else ()))
    missing = [name for name in needed if name not in columns]
    if missing:
        raise AbprofError(f"no column {missing[0]!r}", where=f":{place}", advice=HOW)
    if len(set(columns)) < len(columns):
        raise AbprofError("a column stands twice in the header", where=f":{place}", advice=HOW)
    return _Header(columns, mark, match["quoted"] is not None, page, place)


def _row(line: str, place: int, header: _Header) -> list[str] | None:
    """The cells of a row; None for a line that is none. Raises AbprofError for a torn one."""
    if line.startswith(f'""{header.mark}""' if header.quoted else header.mark * 2) and header.page == "raw":
        start = 0  # the units
    else:
        shape = rf'"\d+"{header.mark}' if header.quoted else rf"^\d+{header.mark}"
        found = re.search(shape, line, re.ASCII)
        if not found:
            return None
        start = found.start()
    cells = _split(line[start:], header.mark)
    if cells is not None and header.fewest <= len(cells) <= len(header.columns):
        return cells
    if start and (cells is None or len(cells) < len(header.columns) // 2):
        return None  # the program's own line
    have = f"{len(cells)} of {len(header.columns)} cells" if cells else "an open quote"
    what = f"a torn row: it has {have} (cut off, or mixed with the program's output)"
    raise AbprofError(what, where=f":{place}", advice="record again with ncu --log-file FILE")


def _split(line: str, mark: str) -> list[str] | None:
    try:
        return next(csv.reader([line], delimiter=mark, strict=True), None)
    except csv.Error:
        return None


def _details(header: _Header, rows: list[tuple[int, list[str]]], into: _Read) -> None:
    """A row for each metric of each launch."""
    for place, cells in rows:
        row = dict(zip(header.columns, cells, strict=False))
        one = _of(header, row, place, into.seen)
        name, unit, value = row["Metric Name"].strip(), row["Metric Unit"].strip(), row["Metric Value"].strip()
        _keep(one, name, unit, value, place, into.wanted)
        if unit:
            into.telling.append(value)


def _raw(header: _Header, rows: list[tuple[int, list[str]]], into: _Read) -> None:
    """A row for each launch, a column for each metric; the first row has the units."""
    units: dict[str, str] = {}
    metrics = [name for name in header.columns if name not in _PLAIN]
    for place, cells in rows:
        row = dict(zip(header.columns, cells, strict=True))
        if not row["ID"]:
            units = row
            continue
        if not units:
            what = "no row of units between the header and the first launch"
            raise AbprofError(what, where=f":{place}", advice="leave the file as ncu wrote it")
        if _key(header, row) in into.seen:
            raise AbprofError(f"launch {row['ID']} stands twice", where=f":{place}")
        one = _of(header, row, place, into.seen)
        for name in metrics:
            _keep(one, name, units[name].strip(), row[name].strip(), place, into.wanted)
        into.telling.extend(row[name] for name in metrics if units[name])


def _key(header: _Header, row: Mapping[str, str]) -> tuple[int, str, str]:
    return header.place, row.get("Process ID", ""), row["ID"]


def _of(header: _Header, row: Mapping[str, str], place: int, seen: dict[tuple[int, str, str], _Seen]) -> _Seen:
    """The launch that this row belongs to."""
    kernel = " ".join(row["Kernel Name"].split())
    one = seen.setdefault(_key(header, row), _Seen(kernel, place))
    if one.kernel != kernel:
        what = f"launch {row['ID']} is {one.kernel[:80]!r} in line {one.line} and {kernel[:80]!r} here"
        raise AbprofError(what, where=f":{place}", advice="two recordings in one file keep a header each")
    one.grid = row.get("Grid Size", "").strip() or one.grid
    one.block = row.get("Block Size", "").strip() or one.block
    return one


def _keep(one: _Seen, name: str, unit: str, value: str, place: int, wanted: Set[str]) -> None:
    if name in _GRID:
        one.grid = one.grid or value
    elif name in _BLOCK:
        one.block = one.block or value
    elif name in wanted:
        before = one.values.setdefault(name, (value, unit, place))
        if before[:2] != (value, unit):
            what = f"{name} of one launch is {before[0]} {before[1]} in line {before[2]} and {value} {unit} here"
            raise AbprofError(what, where=f":{place}")


def _launches(seen: Iterable[_Seen], mark: str, metrics: Sequence[str]) -> tuple[tuple[Launch, ...], dict[str, str]]:
    """Every launch with its bytes, and for each level the metrics that they are read from."""
    launches: list[Launch] = []
    sources: dict[str, dict[str, None]] = {}
    for one in seen:
        of_levels: dict[str, float] = {}
        for level, source, number in moved(_numbers(one, mark)):
            of_levels[level] = number
            sources.setdefault(level, {})[source] = None
        launches.append(Launch(one.kernel, one.grid, one.block, of_levels, _others(one, mark, metrics)))
    return tuple(launches), {level: " or ".join(names) for level, names in sources.items()}


def _numbers(one: _Seen, mark: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in _WANTED & one.values.keys():
        value, unit, place = one.values[name]
        try:
            number = numbers.bytes_of(value, unit, mark)
        except AbprofError as error:
            raise AbprofError(f"{name}: {error.what}", where=f":{place}", advice=error.advice) from None
        if number is not None:
            found[name] = number
    return found


def _others(one: _Seen, mark: str, metrics: Sequence[str]) -> dict[str, float]:
    told = {name: numbers.plain(one.values[name][0], mark) for name in metrics if name in one.values}
    return {name: number for name, number in told.items() if number is not None}


def moved(found: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """Of a launch's metrics: level, metric, bytes. DRAM's is read + write where the sum of both was not recorded."""
    for level, name in METRICS.items():
        if name in found:
            yield level, name, found[name]
        elif level == "dram" and all(part in found for part in DRAM_PARTS):
            yield level, " + ".join(DRAM_PARTS), sum(found[part] for part in DRAM_PARTS)
