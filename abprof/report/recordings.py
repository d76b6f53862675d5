"""Compare two recordings of other benchmark tools (`abprof compare`): one reader for each format, one table.

The recordings were not made in turns and have no control, so the table has changes and scatter, but no verdicts. The
keys are those of nvbench (json_printer.cu, file version 1), pytest-benchmark (--benchmark-json), Google Benchmark
(json_reporter.cc, schema 1) and github-action-benchmark (extract.ts, write.ts).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError
from abprof.records.quantities import plural, signed
from abprof.report.csv_files import csv_text, ms, save
from abprof.report.rows import Table
from abprof.report.text import clean, duration
from abprof.system import files as disk

NO_VERDICT = (
    "No verdict: these recordings were not measured in turns and have no control, so a warmer or busier machine looks "
    "like a change. `abprof BASE TARGET` measures both sides together."
)
_SCRIPT = b"window.BENCHMARK_DATA = "  # begins the data.js of github-action-benchmark
_NS = {"s": 1e9, "sec": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_MALFORMED = (*UNREADABLE, LookupError, TypeError, AttributeError, ValueError, OverflowError)


@dataclass
class Recording:
    """What a file has. `device`: facts that identify the device; {} if the format has none."""

    device: dict[str, str] = field(default_factory=dict)
    times: dict[str, tuple[float, float | None]] = field(default_factory=dict)  # name -> ns, standard deviation in ns
    left_out: int = 0  # entries that failed, or are not times

    def add(self, name: str, ns: float | None, deviation: float | None = None) -> None:
        """Add a time. Raises ValueError if the name is taken."""
        if ns is None or not isfinite(ns) or ns <= 0:
            self.left_out += 1
        elif name in self.times:
            raise ValueError(f"two entries are named {clean(name, 80)!r}")
        else:
            self.times[name] = ns, None if deviation is None or not isfinite(deviation) else deviation


def _nvbench(file: Any) -> Recording:
    states = [(bench["name"], state) for bench in file["benchmarks"] for state in bench["states"] or ()]
    used = {state.get("device") for _, state in states}
    devices = [device for device in file["devices"] or () if device["id"] in used]
    keys = dict.fromkeys(key for device in devices for key in device if key != "id")
    made = Recording({key: ", ".join(str(device.get(key)) for device in devices) for key in keys})
    for bench, state in states:
        summaries = [] if state["is_skipped"] else state["summaries"] or []
        found = {one["tag"]: float(part["value"])  # a text: JSON's numbers would lose digits
                 for one in summaries for part in one.get("data") or () if part["name"] == "value"}  # fmt: skip
        kind = next((kind for kind in ("nv/cold/time/gpu", "nv/cpu_only/time/cpu") if f"{kind}/mean" in found), "")
        seconds, relative = found.get(f"{kind}/mean"), found.get(f"{kind}/stdev/relative")
        axes = state["name"] if len(used) > 1 else re.sub(r"\bDevice=\d+ ?", "", state["name"])
        ns = seconds and seconds * 1e9
        made.add(f"{bench} {axes}".strip(), ns, ns and relative and relative * ns)
    return made


def _pytest(file: Any) -> Recording:
    machine = file["machine_info"]
    cpu = machine.get("cpu") or {}
    facts = {
        "host": machine.get("node"),
        "processor": cpu.get("brand_raw") or cpu.get("brand"),
        "cores": cpu.get("count"),
    }
    made = Recording({name: str(fact) for name, fact in facts.items() if fact})
    for one in file["benchmarks"]:  # in seconds; single calls have outliers, which only the mean and stddev see
        stats = one.get("stats") or {}
        time, spread = stats.get("median", stats.get("mean")), stats.get("iqr")
        deviation = stats.get("stddev") if spread is None else spread / 1.35
        made.add(one["fullname"], time and time * 1e9, deviation and deviation * 1e9)
    return made


def _google(file: Any) -> Recording:
    names = {"host_name": "host", "num_cpus": "cores", "caches": "caches"}
    made = Recording({names[key]: str(fact) for key, fact in file["context"].items() if key in names})
    samples: dict[str, list[float]] = {}
    whole: dict[tuple[str, str], float] = {}
    for run in file["benchmarks"]:
        name, kind = run.get("run_name", run["name"]), run.get("aggregate_name", "")
        if run.get("error_occurred") or run.get("skipped"):
            made.left_out += 1
        elif "real_time" in run and not kind:
            samples.setdefault(name, []).append(run["real_time"] * _NS[run["time_unit"]])
        elif "real_time" in run:  # the others are fits of complexity
            whole[name, kind] = run["real_time"] * _NS[run["time_unit"]]
    for name, times in samples.items():
        made.add(name, statistics.median(times), statistics.stdev(times) if len(times) > 1 else None)
    for name in [name for name, kind in whole if kind == "median" and name not in samples]:  # aggregates alone
        made.add(name, whole[name, "median"], whole.get((name, "stddev")))
    return made


def _action(file: Any) -> Recording:
    """Read the array that the action is given, or the newest commit of each suite in its data.js."""
    entries = {"": [{"benches": file}]} if isinstance(file, list) else file["entries"]
    made = Recording()
    for suite, one in ((suite, one) for suite, commits in entries.items() if commits for one in commits[-1]["benches"]):
        value, unit = float(one["value"]), re.sub("[µμ]s", "us", one["unit"].strip().lower())
        time, rate = (re.fullmatch(form, unit) for form in (r"(\w+)(?:/iter|/op)?", r"(?:iter|ops)/(\w+)"))
        scale = _NS.get(found[1] if (found := time or rate) else "")
        ns = None if not scale or value <= 0 else scale / value if rate else value * scale
        half = re.search(r"(?:±|\+-) *([\d.]+(?:e[+-]?\d+)?) *(%?)", str(one.get("range", "")))
        share = float(half[1]) / (100 if half[2] else value) if half and ns else None
        made.add(f"{suite} {one['name']}" if len(entries) > 1 else one["name"], ns, ns and share and share * ns)
    return made


_READERS: dict[str, tuple[set[str], Callable[[Any], Recording]]] = {  # keys of the file's top level, its reader
    "nvbench JSON": ({"devices", "benchmarks"}, _nvbench),
    "pytest-benchmark JSON": ({"machine_info", "benchmarks"}, _pytest),
    "Google Benchmark JSON": ({"context", "benchmarks"}, _google),
    "github-action-benchmark JSON": ({"entries"}, _action),
}


def read(path: Path) -> tuple[str, Recording]:
    """Return the format and the content of a recording; ("", nothing) if the file is not JSON, such as a CSV file.
    Raises AbprofError for a file that cannot be read, JSON of another tool, and a recording without times."""
    format, data = "", disk.read_named(path, 256 << 20).removeprefix(b"\xef\xbb\xbf").strip()
    if not data.startswith((b"{", b"[", _SCRIPT)):
        return "", Recording()
    try:
        content = msgspec.json.decode(data.removeprefix(_SCRIPT).removesuffix(b";"))
        keys = {"entries"} if isinstance(content, list) else set(content)
        format = next((name for name, (needed, _) in _READERS.items() if needed <= keys), "")
        made = _READERS[format][1](content) if format else Recording()
    except _MALFORMED as error:
        what = f"not a recording of a known tool: {type(error).__name__} {error}"
        what = f"this {format} lacks {error}" if format and isinstance(error, KeyError) else what
        raise AbprofError(clean(what), where=str(path)) from None
    if not made.times:
        what = f"no time in this {format}" if format else "JSON of an unknown tool"
        raise AbprofError(what, where=str(path), advice=f"known are {', '.join(_READERS)} and profile CSVs")
    return format, made


def compare(base: Path, target: Path, threshold: float, out: Path | None) -> tuple[Table, list[str], str] | None:
    """Compare two recordings; return a table, notes and a sentence, or None if neither is JSON. Write the table to `out`,
    a CSV file. Raises AbprofError for recordings of two formats or devices, or without a common name."""
    (format, one), (format_of_target, other) = read(base), read(target)
    if format != format_of_target:
        what = f"{format_of_target or 'not JSON'}, but {base} is {format or 'not JSON'}"
        raise AbprofError(what, where=str(target), advice="compare two recordings of one tool")
    if not format:
        return None
    for fact in one.device:
        if (there := other.device.get(fact, one.device[fact])) != one.device[fact]:
            what = f"recordings of different devices: {fact} {clean(one.device[fact], 60)} and {clean(there, 60)}"
            raise AbprofError(what, where=f"{base}, {target}", advice="record both on one device")
    lines, rows, changes = [], [], []
    for name in (name for name in one.times if name in other.times):
        (before, scatter), (after, scatter_after) = one.times[name], other.times[name]
        changes.append(100 * (after / before - 1))
        pct = [None if sd is None else 100 * sd / ns for sd, ns in ((scatter, before), (scatter_after, after))]
        texts = ["not recorded" if part is None else f"{part:.{1 if part < 10 else 0}f} %" for part in pct]
        rows.append((clean(name), duration(before), duration(after), signed(changes[-1]), *texts))
        lines.append({"name": clean(name), "base_ms": ms(before), "target_ms": ms(after), "change_pct": changes[-1],
                      "base_scatter_pct": pct[0], "target_scatter_pct": pct[1]})  # fmt: skip
    if not rows:
        raise AbprofError(f"no entry of {base} is in this file", where=str(target))
    if out:
        save(out, csv_text([*lines[0]], lines))
    beyond = sum(abs(change) > threshold for change in changes)
    sentence = f"{beyond} of {len(rows)} times differ by more than {threshold:g} %. {NO_VERDICT}"
    header = ("name", "base", "target", "change of time", "scatter, base", "scatter, target")
    return Table(header, tuple(rows), 1, f"{format}: {base} and {target}"), [*_notes(one, other)], sentence


def _notes(one: Recording, other: Recording) -> Iterator[str]:
    shared = [one.device[fact] for fact in ("name", "processor", "host") if fact in one.device and fact in other.device]
    unknown = "The files do not say on which device they were made."
    yield f"Device of both: {clean(shared[0], 80)}" if shared else unknown
    for place, of, than in (("base", one, other), ("target", other, one)):
        if alone := sum(name not in than.times for name in of.times):
            yield f"{plural(alone, 'name')} only in the {place}"
        if of.left_out:
            yield f"{plural(of.left_out, 'entry', 'entries')} of the {place} left out: failed, skipped or not a time"
