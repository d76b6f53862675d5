"""Read kernel launches from ncu's CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.records.ncu import BYTES, METRICS, STALLS, TABLE, TIME, Name, stall
from abprof.records.quantities import plural
from abprof.system.files import read_named

MEMORY = (*BYTES, TIME)
PROFILE = tuple(dict.fromkeys((*MEMORY, *(name for row in TABLE for name in row.names), *map(stall, STALLS))))

# ---------------------------------------------------------------- CSV files

_HOW = f"record with LC_ALL=C ncu --csv --page raw --log-file FILE --metrics {','.join(BYTES)}"
_UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2})?", re.ASCII)  # of the locale C
_NO_NUMBER = ("", "n/a", "nan", "(!) nan", "no data", "-")


@dataclass(frozen=True)
class Launch:
    """A kernel launch and its metrics in ncu's base units. Metrics without a number are left out."""

    name: Name
    metrics: Mapping[str, float]


def read(path: Path, metrics: Sequence[str] = BYTES) -> list[Launch]:
    """Return the launches in a CSV file of ncu: its raw page (a row per launch) or details page (a row per metric).

    Skips lines outside the table. Raises AbprofError for an incomplete row, and for a number that is not in the format
    of the C locale.
    """
    lines = read_named(path, 1 << 30).decode("utf-8-sig", "replace").splitlines()
    headers = [at for at, line in enumerate(lines) if line.startswith('"ID",') and '"Kernel Name"' in line]
    if len(headers) != 1:
        errors = [f"; ncu printed {s[:200]!r}" for s in lines if s.startswith(("==ERROR==", "==WARNING== No kernels"))]
        what = f"{plural(len(headers), 'table')} of ncu --csv in this file, expected one{''.join(errors[:1])}"
        how = f"{_HOW}; from a report: ncu --import REPORT.ncu-rep --csv --page raw"
        raise AbprofError(what, where=str(path), advice=how)
    found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}  # process, ID -> metric -> number, unit
    try:
        for row, units in _rows(lines, headers[0]):
            launch = found.setdefault((row.get("Process ID", ""), row["ID"]), {})
            if units is not None and launch:
                raise AbprofError(f"launch {row['ID']} has two rows", advice=_HOW)
            launch |= {name: (row.get(name, "").strip(), "") for name in ("Kernel Name", "Grid Size", "Block Size")}
            if units is None:
                launch[row["Metric Name"]] = row["Metric Value"], row["Metric Unit"]
            else:
                launch |= {name: (row[name], units.get(name, "")) for name in metrics if name in row}
        launches = [_launch(launch, metrics) for launch in found.values()]
        if not any(launch.metrics.keys() & set(BYTES) for launch in launches):
            raise AbprofError(f"none of the {len(launches)} launches has {' or '.join(METRICS.values())}", advice=_HOW)
    except AbprofError as error:
        raise AbprofError(error.what, where=f"{path}{error.where}", advice=error.advice) from None
    return launches


def _rows(lines: Sequence[str], header: int) -> Iterator[tuple[dict[str, str], dict[str, str] | None]]:
    """Yield the cells and the units of each row, both by column; units are None on a details page."""
    columns = _cells(lines[header])
    details = {"Metric Name", "Metric Unit", "Metric Value"} <= set(columns)
    # Most rows of the details page lack the last columns, those of rules.
    fewest = columns.index("Metric Value") + 1 if details else len(columns)
    units: dict[str, str] | None = None if details else {}
    for number, line in enumerate(lines[header + 1 :], header + 2):
        if not re.match(r'"\d*","', line):
            continue
        cells = _cells(line)
        if not fewest <= len(cells) <= len(columns):
            what = f"an incomplete row: {len(cells)} of {len(columns)} cells (cut off, or mixed with other output)"
            raise AbprofError(what, where=f":{number}", advice="record again with ncu --log-file FILE")
        row = dict(zip(columns, cells, strict=False))
        if row["ID"]:
            yield row, units
        elif not details:
            units = row


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        return []


def _launch(row: Mapping[str, tuple[str, str]], metrics: Sequence[str]) -> Launch:
    found = {}
    for name in (name for name in metrics if name in row):
        text, unit = (part.strip() for part in row[name])
        scale = _UNITS.get(unit) if name in BYTES else 1.0
        if scale and _NUMBER.fullmatch(text) and not (unit == "byte" and "." in text):  # bytes are whole
            found[name] = float(text.replace(",", "")) * scale
        elif name in BYTES and text.lower() not in _NO_NUMBER:
            what = f"{name}: {text!r} {unit} is not a number of bytes in the locale C"
            raise AbprofError(what, advice="record again with LC_ALL=C and --print-units base")
    kernel, grid, block = (row[name][0] for name in ("Kernel Name", "Grid Size", "Block Size"))
    return Launch((" ".join(kernel.split()), grid, block), found)


# ---------------------------------------------------------------- the source page: a table of instructions per launch

_SAMPLES = ("Warp Stall Sampling (All Samples)", "# Samples", "Sampling Data (All)")  # ncu renamed the column
_STALL = re.compile(r"stall_(\w+)")
_WAITS = {  # as metrics name them (records.ncu.STALLS)
    "dispatch": "dispatch_stall", "imc": "imc_miss", "lg": "lg_throttle", "long_sb": "long_scoreboard",
    "math": "math_pipe_throttle", "mio": "mio_throttle", "no_inst": "no_instruction", "sleep": "sleeping",
    "short_sb": "short_scoreboard", "tex": "tex_throttle",
}  # fmt: skip


def sampled(path: Path, kernel: str) -> dict[int, dict[str, int]]:
    """Return offset of an instruction -> stall reason -> samples, over all launches of `kernel` in ncu's source page.

    Samples without a reason have the reason "". Empty if several kernels may be meant, such as two instances of a
    template. Raises AbprofError if the file cannot be read.
    """
    each: dict[str, dict[int, dict[str, int]]] = {}  # name in the file -> what is returned
    name, header, start = "", list[str](), -1
    for line in read_named(path, 1 << 30).decode("utf-8-sig", "replace").splitlines():
        cells = _cells(line)
        if cells[:1] == ["Kernel Name"]:
            name, header = "".join(cells[1:2]), []
        elif "Source" in cells and "Address" in cells:
            header, start = cells, -1
        elif header and len(cells) == len(header) and _plain(name) == _plain(kernel):
            row = dict(zip(header, cells, strict=True))
            try:
                at, whole = int(row["Address"], 0), int(next((row[n] for n in _SAMPLES if row.get(n)), "0"))
            except ValueError:
                continue
            start = at if start < 0 else start
            counts = {_WAITS.get(m[1], m[1]): int(v) for n, v in row.items()
                      if (m := _STALL.fullmatch(n)) and v.isdecimal() and int(v)}  # fmt: skip
            here = each.setdefault(name, {}).setdefault(at - start, {})
            for reason, n in (counts | {"": max(0, whole - sum(counts.values()))}).items():
                here[reason] = here.get(reason, 0) + n
    same = [name for name in each if len(each) == 1 or _instance(name) == _instance(kernel)]
    return each[same[0]] if len(same) == 1 else {}


def _instance(name: str) -> str:
    """Return a kernel's name with template arguments, without parameters: tools write these differently."""
    return "".join(name.partition("(")[0].split())


def _plain(name: str) -> str:
    """Return a kernel's name without return type, namespaces, template arguments and parameters."""
    words = re.split("[<(]", name.replace("(anonymous namespace)", ""), maxsplit=1)[0].split()
    return words[-1].rpartition("::")[2] if words else ""
