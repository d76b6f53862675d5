"""What was looked at beside the timing, as tables and CSV: torch's profiler, proton, perf, Nsight Compute, memory traffic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from abprof.evidence.causes.wording import ns
from abprof.evidence.ncu import recording
from abprof.evidence.ncu.recording import LEVELS, Shown
from abprof.evidence.ncu.traffic import Pair, Row, beside, sums_beside
from abprof.evidence.ncu.traffic import Table as Traffic
from abprof.evidence.ncu.traffic import table as table_of
from abprof.records import KernelProfile, Profile, Run, Sampled, Trace
from abprof.records.quantities import plural
from abprof.report.csv_files import Line, csv_text, plain
from abprof.report.rows import Block, Section, Table, arm
from abprof.report.text import NOT_RECORDED, clean, markdown_table, size
from abprof.report.text import markdown as escape

ABSENT = "not launched"
ROWS_UP_TO = 30  # of a table of launches or samples; the CSV files have all
_Seen = TypeVar("_Seen", Trace, Sampled, Profile)
_Evidence = TypeVar("_Evidence", Trace, Sampled)
Evidence = Trace | Sampled
Known = tuple[int, float] | None  # times or samples, and ns, in a call; None: not there
Kernels = tuple[KernelProfile | None, KernelProfile | None]
Both = tuple[tuple[str, ...], Known, Known]  # (name, ...), first side, second side
_TRACES = ("cell", "variant", "kind", "name", "from", "to", "from_count", "to_count", "from_ns", "to_ns",
           "difference_ns", "presence", "profiler")  # fmt: skip
_SAMPLES = ("cell", "variant", "function", "object", "own", "from", "to", "from_samples", "to_samples", "from_ns", "to_ns",
            "difference_ns", "presence")  # fmt: skip
_PROFILES = ("cell", "variant", "kernel", "grid", "block", "launches_a_call", "metric", "from", "to", "from_value", "to_value",
             "change_pct", "presence", "status", "reason")  # fmt: skip
_TRACED = (
    "A few calls after all timing, with the profiler's own cost in them: they show where the time goes, not how much."
)
_ON_CPU = " On a CPU these are torch's operations: what a kernel does without torch has no row."
_SAMPLED = (
    "Calls after all timing, sampled by perf: where their time goes in all threads together, not how much it is. "
    "A difference of few samples is chance: n samples vary by the square root of n."
)
_COUNTED = (
    "Counters of single launches after all timing, with caches emptied before each and clocks left as they are: they show what "
    "a kernel does, not how fast it is. Sums are of a call; rates, shares and waits are means over its launches."
)


def files(run: Run) -> dict[str, str]:
    """traces.csv, samples.csv, profiles.csv, memory.csv and memory.md: those that the run has something for."""
    made: dict[str, str] = {}
    if run.traces:
        made["traces.csv"] = csv_text(_TRACES, _lines(run, run.traces, ("name",), "count"))
    if run.sampled:
        made["samples.csv"] = csv_text(_SAMPLES, _lines(run, run.sampled, ("function", "object", "own"), "samples"))
    if run.profiles:
        made["profiles.csv"] = csv_text(_PROFILES, _profile_lines(run))
        made |= {f"memory.{kind}": FORMATS[kind](memory_groups(run)) for kind in ("csv", "md")}
    return made


def sections(run: Run) -> Iterator[Section]:
    """A section for each profiler that the run used, with a block for each row of the run."""
    names = [name for by, name in (("torch", "torch's profiler"), ("proton", "Triton's proton"))
             if by in {one.by for one in run.traces}]  # fmt: skip
    for title, text, made, id in (
        (f"Under {' and '.join(names)}", _TRACED + (_ON_CPU if run.machine.kind == "cpu" else ""), _traces(run), ""),
        ("Under Nsight Compute", _COUNTED, counters(run), "counters"),
        ("Sampled by perf", _SAMPLED, _samples(run), ""),
    ):
        if found := list(made):
            yield Section(title, tuple(replace(block, folded=len(found) > 4) for block in found), text, id)


# ---------------------------------------------------------------- both sides beside each other


def _groups(run: Run, of: Iterable[_Seen]) -> list[list[_Seen]]:
    """What stands beside each other: of a cell and profiler the sides of each variant, base first, and each peer alone."""
    order = {side.id: place for place, side in enumerate(run.sides)}
    found: dict[tuple[str, ...], list[_Seen]] = {}
    for one in of:
        where = arm(run, one.arm)
        found.setdefault((getattr(one, "by", ""), one.cell, where.variant, where.peer), []).append(one)
    return [sorted(group, key=lambda one: order.get(arm(run, one.arm).side, len(order))) for group in found.values()]


def _pairs(run: Run, group: Sequence[_Seen]) -> list[tuple[_Seen, _Seen | None]]:
    """Base with each other side; each alone where base is not there."""
    if len(group) > 1 and arm(run, group[0].arm).side == "base":
        return [(group[0], other) for other in group[1:]]
    return [(one, None) for one in group]


def _presence(first: object, second: object, names: Sequence[str], both: str = "") -> str:
    return both if first is not None and second is not None else f"only {names[0 if second is None else 1]}"


# ---------------------------------------------------------------- torch's profiler, proton, perf


def _traces(run: Run) -> Iterator[Block]:
    for before, after in (pair for group in _groups(run, run.traces) for pair in _pairs(run, group)):
        notes, files = [], []
        for one in filter(None, (before, after)):
            side = arm(run, one.arm).side
            kind, opened = ("trace", "Perfetto (ui.perfetto.dev)") if one.by == "torch" else ("tree", "proton-viewer")
            notes += [f"{side} has no {kind}: {clean(one.missing)}"] if one.missing else []
            missing = one.census.missing if one.census else ""
            notes += [f"{side}'s launches are not known: {clean(missing)}"] if missing else []
            cut = f"the first part: {plural(one.left_out, 'event')} had no room" if one.left_out else ""
            files += [(f"{side}, for {opened}", one.file, cut)] if one.file else []
        made = _block(run, before, after, (_kind(before),), "times", "traces.csv")
        title = made.title + (", by proton" if before.by == "proton" else "")
        yield replace(made, title=title, text=tuple(notes), files=tuple(files))


def _samples(run: Run) -> Iterator[Block]:
    for before, after in (pair for group in _groups(run, run.sampled) for pair in _pairs(run, group)):
        notes = []
        for one in filter(None, (before, after)):
            side, taken = arm(run, one.arm).side, f"{plural(one.samples, 'sample')} of {clean(one.event)}"
            took = f"{side}: {taken} in {plural(one.calls, 'call')}, {one.hz} a second"
            notes.append(f"{side} was not sampled: {clean(one.missing)}" if one.missing else took)
        made = _block(run, before, after, ("function", "in", "own"), "samples", "samples.csv")
        yield replace(made, text=tuple(notes))


def _kind(one: Trace) -> str:
    return "kernel" if one.census and one.census.on_device else "operation"


def _listed(one: Evidence | None) -> dict[tuple[str, ...], tuple[int, float]] | None:
    """What a side launched or was found in; None where that is not known: it must not read as absent."""
    found: dict[tuple[str, ...], tuple[int, float]] = {}
    if isinstance(one, Sampled):
        each = 1e9 / one.hz / one.calls if one.hz and one.calls else 0.0  # ns of a call that a sample stands for
        found = {(f.name, f.object, str(f.own).lower()): (f.samples, f.samples * each) for f in one.functions}
        return None if one.missing else found
    if one and (not one.census or one.census.missing):
        return None
    for launch in one.census.launches if one and one.census else ():
        count, time = found.get((launch.name,), (0, 0.0))
        found[(launch.name,)] = count + launch.count, time + launch.ns
    return found


def _compared(before: Evidence, after: Evidence | None) -> list[Both]:
    """Every name with (times, ns) of both sides, the largest difference first; of one side alone the longest."""
    first, second = _listed(before), _listed(after)
    if first is None or second is None:
        return []
    made = [(name, first.get(name), second.get(name)) for name in dict.fromkeys((*first, *second))]
    return sorted(made, key=lambda both: -abs(_more(both)))


def _more(of: Both) -> float:
    return (of[2] or (0, 0.0))[1] - (of[1] or (0, 0.0))[1]


def _block(run: Run, before: Evidence, after: Evidence | None, names: tuple[str, ...], unit: str, file: str) -> Block:
    """The two sides' counts and times by name, as a table."""
    sides = [arm(run, one.arm).side for one in (before, after) if one]
    found = _compared(before, after)
    rows: list[tuple[str, ...]] = []
    for one in found[:ROWS_UP_TO]:
        known = one[1:] if after else one[1:2]
        counts, times = [str(t[0]) if t else "0" for t in known], [ns(t[1]) if t else "" for t in known]
        sign = "+" if _more(one) > 0 else "-" if _more(one) < 0 else ""
        last = [f"{sign}{ns(abs(_more(one)))}", _presence(*one[1:], sides)] if after else []
        rows.append((*(clean(text, 120) for text in one[0]), *counts, *times, *last))
    header = (*names, *(f"{side}, {unit}" for side in sides), *(f"{side}, time" for side in sides))
    title = clean(f"{before.cell} {arm(run, before.arm).variant}".strip())
    title += f", {' and '.join(sides)}" if after else ""
    more = f", {len(found) - len(rows)} more in {file}" if len(found) > len(rows) else ""
    caption = f"In one call; the largest difference first{more}"
    table = Table((*header, "difference", "") if after else header, tuple(rows), len(names), caption)
    return Block(title, tables=(table,) if rows else ())


def _lines(run: Run, of: Sequence[_Evidence], columns: tuple[str, ...], unit: str) -> Iterator[Line]:
    for before, after in (pair for group in _groups(run, of) for pair in _pairs(run, group)):
        first, second = arm(run, before.arm), arm(run, after.arm) if after else None
        fixed = {"cell": before.cell, "variant": first.variant, "from": first.side, "to": second.side if second else ""}
        fixed |= {"kind": _kind(before), "profiler": before.by} if isinstance(before, Trace) else {}
        for one in _compared(before, after):
            line = fixed | dict(zip(columns, one[0], strict=True))
            for label, known in zip(("from", "to"), one[1:], strict=True):
                if known or (unit == "samples" and line[label]):
                    count, time = known or (0, 0.0)
                    line |= {f"{label}_{unit}": str(count), f"{label}_ns": str(time)}
            if second:
                line |= {"difference_ns": str(_more(one)), "presence": _presence(*one[1:], ("from", "to"), "both")}
            yield {column: plain(text) for column, text in line.items()}


# ---------------------------------------------------------------- Nsight Compute


def counters(run: Run) -> Iterator[Block]:
    """A block for each row under Nsight Compute: traffic alone where only bytes were recorded, else every metric."""
    for row in _profiled(run):
        if all(one.purpose == "memory" for one in row):
            tables = [table for group in _of_row(run, row) for table in traffic_tables(group.tables)]
        else:
            compared = _pairs(run, [one for one in row if one.status == "ok"])
            tables = [t for one, two in compared for t in _kernel_tables(one, two, named=len(compared) > 1)]
        notes = [clean(f"{one.arm}: {one.status}: {one.reason}", 400) for one in row if one.status != "ok"]
        notes += [clean(f"{one.arm}: {note}", 400) for one in row for note in one.notes]
        listed = tuple((f"{one.arm}, for ncu-ui", one.file, "") for one in row if one.file)
        yield Block(clean(f"{row[0].cell} {', '.join(o.arm for o in row)}"), tuple(notes), listed, tables=tuple(tables))


def _profiled(run: Run) -> list[list[Profile]]:
    """The groups in the order of the run's cells, peers after the sides."""
    cells = {cell.id: place for place, cell in enumerate(run.cells)}
    found = _groups(run, run.profiles)
    return sorted(found, key=lambda row: (cells.get(row[0].cell, len(cells)), bool(arm(run, row[0].arm).peer)))


def _kernels(before: Profile, after: Profile | None) -> Iterator[tuple[KernelProfile, Kernels]]:
    """Kernels by name, grid and block, then by name alone, as the traffic's table pairs them; the later side's first."""
    one, two = table_of(before), table_of(after) if after else None
    of = {id(row): kernel for made, known in ((one, before), (two, after)) if made and known
          for row, kernel in zip(made.rows, known.kernels, strict=True)}  # fmt: skip
    for pair in beside(one, two) if two else [Pair(row, None) for row in one.rows]:
        yield of[id(pair.either)], (of.get(id(pair.base)), of.get(id(pair.target)))


def _kernel_tables(before: Profile, after: Profile | None, *, named: bool) -> Iterator[Table]:
    """A table for each kernel of a call; `named`: its title says whose."""
    arms = (before.arm, after.arm) if after else (before.arm,)
    for either, both in _kernels(before, after):
        whose = f", {' and '.join(arms)}" if named else ""
        title = clean(f"{either.name} {either.grid} x {either.block}{whose}", 200)
        rows = [("launches a call", *(str(k.launches_a_call) if k else "0" for k in both[: len(arms)]), "")]
        labels = set()
        for shown in (*recording.TABLE, *_waits(both)):
            values = [_value(shown, kernel) for kernel in both]
            if shown.label not in labels and any(value is not None for value in values):
                labels.add(shown.label)
                texts = [ABSENT if k is None else _text(v, shown.unit) for v, k in zip(values, both, strict=True)]
                rows.append((shown.label, *texts[: len(arms)], _difference(shown, *values)))
        width = 2 + (after is not None) * 2
        header = ("metric", *arms, "difference")[:width]
        yield Table(header, tuple(row[:width] for row in rows), 1, title)


def _waits(both: Kernels) -> list[Shown]:
    """The three things that warps of either side wait for most."""
    found: dict[str, float] = {}
    for kernel in both:
        known = {r: kernel.metrics.get(recording.stall(r), 0.0) for r in recording.STALLS} if kernel else {}
        for reason in sorted(known, key=lambda reason: -known[reason])[:3]:
            found[reason] = max(found.get(reason, 0.0), known[reason])
    reasons = sorted((reason for reason in found if found[reason] > 0), key=lambda reason: -found[reason])
    return [Shown(f"waits: {reason.replace('_', ' ')}", (recording.stall(reason),), "") for reason in reasons]


def _value(shown: Shown, kernel: KernelProfile | None) -> float | None:
    if kernel is None or any(name not in kernel.metrics for name in shown.names):
        return None
    return sum(kernel.metrics[name] for name in shown.names) * (kernel.launches_a_call if shown.per_call else 1)


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return NOT_RECORDED
    if unit in ("ns", "bytes"):
        return ns(value) if unit == "ns" else size(value)
    known = {"bytes/s": f"{value / 1e9:.1f} GB/s", "%": f"{value:.1f} %", "count": f"{value:,.0f}"}
    return known.get(unit, f"{value:.2f}")


def _difference(shown: Shown, before: float | None, after: float | None) -> str:
    """Shares in points, waits as they are, all else in per cent."""
    if before is None or after is None:
        return ""
    if shown.unit == "%":
        return f"{after - before:+.1f} points"
    if not shown.unit:
        return f"{after - before:+.2f}"
    return f"{100 * (after / before - 1):+.1f} %" if before else ("" if not after else "from none")


def _profile_lines(run: Run) -> Iterator[Line]:
    """Every metric of a launch, by ncu's name in base units, and a line for each arm that has none."""
    for row in _profiled(run):
        for before, after in _pairs(run, [one for one in row if one.status == "ok"]):
            for either, both in _kernels(before, after):
                line = {"cell": before.cell, "variant": arm(run, before.arm).variant, "kernel": either.name}
                line |= {"grid": either.grid, "block": either.block, "from": before.arm, "status": "ok"}
                line |= {"to": after.arm if after else "", "launches_a_call": str(either.launches_a_call)}
                line["presence"] = _presence(*both, ("from", "to"), "both") if after else ""
                one, two = (kernel.metrics if kernel else {} for kernel in both)
                for name in dict.fromkeys((*one, *two)):
                    values = {"metric": name, "from_value": _plain(one.get(name)), "to_value": _plain(two.get(name))}
                    if one.get(name) and name in two:
                        values["change_pct"] = f"{100 * (two[name] / one[name] - 1):.4f}"
                    yield {column: plain(text) for column, text in (line | values).items()}
        for failed in (one for one in row if one.status != "ok"):
            line = {"cell": failed.cell, "variant": arm(run, failed.arm).variant, "from": failed.arm}
            line |= {"status": failed.status, "reason": failed.reason}
            yield {column: plain(text) for column, text in line.items()}


def _plain(value: float | None) -> str:
    return "" if value is None else repr(value) if value != int(value) else str(int(value))


# ---------------------------------------------------------------- memory traffic (`abprof memory`)

_MINIMUM = "predicted minimum"
_MEMORY = (
    "file", "shape", "kernel", "grid", "block", "kind", "launches", "launches_a_call", "warmup", "runs",
    *(f"{level}_bytes_a_launch" for level in LEVELS), *(f"{level}_bytes_a_call" for level in LEVELS),
    *(f"{level}_change_pct" for level in LEVELS), "in_files", "cell", "arm",
    *(f"{level}_minimum_bytes" for level in LEVELS), "reason",
)  # fmt: skip


@dataclass(frozen=True)
class MemoryGroup:
    """Tables that stand beside each other, base first, and the arms without one: (cell, arm, reason)."""

    tables: tuple[Traffic, ...]
    failed: tuple[tuple[str, str, str], ...] = ()


def memory_groups(run: Run) -> list[MemoryGroup]:
    """The sides of each row of the run beside each other, and each peer alone."""
    return [made for row in _profiled(run) for made in _of_row(run, row)]


def _of_row(run: Run, row: Sequence[Profile]) -> Iterator[MemoryGroup]:
    failed = tuple((one.cell, one.arm, f"{one.status}: {one.reason}") for one in row if one.status != "ok")
    ok = [one for one in row if one.status == "ok"]
    together = [ok] if not ok or arm(run, ok[0].arm).side == "base" else [[one] for one in ok]
    for group in together:
        yield MemoryGroup(tuple(map(table_of, group)), failed)
        failed = ()


def traffic_tables(tables: Sequence[Traffic]) -> Iterator[Table]:
    """The tables that stand beside each other, each with its title."""
    if len(tables) == 1:
        for shape in range(1, tables[0].shapes + 1):
            of = f", shape {shape} of {tables[0].shapes}" if tables[0].shapes > 1 else ""
            calls = f"{plural(tables[0].of.runs, 'call')} after {tables[0].of.warmup} warm-ups"
            yield _one_file(tables[0], shape, clean(f"{tables[0].label}{of}: {calls}"))
    for target in tables[1:]:
        base, shapes = tables[0], max(tables[0].shapes, target.shapes)
        for shape in range(1, shapes + 1):
            of = f", shape {shape}" if shapes > 1 else ""
            title = clean(f"{base.label} (base) and {target.label}{of}: bytes a call")
            yield _two_files(base, target, shape, title)


def _named(row: Row) -> str:
    return clean(row.kernel, 60) or f"all {row.kind} kernels".replace("all all", "all")


def _one_file(table: Traffic, shape: int, title: str) -> Table:
    """A file's kernels; where one is launched several times a call also what a launch moves."""
    rows, sums = ([row for row in of if row.shape == shape] for of in (table.rows, table.sums))
    several = any(row.a_call > 1 for row in rows)
    header = ["kernel", "grid", "block", "kind", "launches a call", *(f"{name} a call" for name in LEVELS.values())]
    header += [f"{name} a launch" for name in LEVELS.values()] if several else []
    lines = []
    for row in [*rows, *(sums if len(sums) > 2 else sums[-1:])]:  # of one kind, its sum is that of all
        line = [_named(row), row.grid, row.block, row.kind if row.kernel else "", str(row.a_call)]
        line += [size(row.per_call[level]) for level in LEVELS]
        line += [size(row.per_launch[level]) if row.kernel else "" for level in LEVELS] if several else []
        lines.append(tuple(map(clean, line)))
    if table.of.minimum:
        least = (size(table.of.minimum[level]) if level in table.of.minimum else "" for level in LEVELS)
        lines.append((_MINIMUM, "", "", "", "", *least, *([""] * len(LEVELS) if several else [])))
    return Table(tuple(header), tuple(lines), 4, title)


def _two_files(base: Traffic, target: Traffic, shape: int, title: str) -> Table:
    """Two files: a line for each kernel and level."""
    found, sums = ([p for p in of(base, target) if p.either.shape == shape] for of in (beside, sums_beside))
    lines: list[tuple[str, ...]] = []
    for pair in [*found, *(sums if len(sums) > 2 else [pair for pair in sums if pair.either.kind == "all"])]:
        row = pair.either
        calls = " → ".join(dict.fromkeys(str(one.a_call) if one else "0" for one in (pair.base, pair.target)))
        for level, label in LEVELS.items():
            sizes = (size(one.per_call[level]) if one else ABSENT for one in (pair.base, pair.target))
            lines.append((_named(row), row.kind if row.kernel else "", label, calls, *sizes, _change(pair, level)))
    for level, label in LEVELS.items():
        least = [size(one.of.minimum[level]) if level in one.of.minimum else "" for one in (base, target)]
        lines += [(_MINIMUM, "", label, "", *least, "")] if any(least) else []
    header = ("kernel", "kind", "level", "launches a call", "base", "target", "change")
    return Table(header, tuple(lines), 3, title)


def _change(pair: Pair, level: str) -> str:
    pct = pair.pct(level)
    return "" if pct is None else f"{pct:+.1f} %"


def memory_notes(groups: Sequence[MemoryGroup]) -> list[str]:
    """Who failed, how launches were counted, what lies outside the calls, what is not comparable."""
    found = [f"{cell} {name}: {reason}" for group in groups for cell, name, reason in group.failed]
    for tables in (group.tables for group in groups):
        for table in tables:
            notes = list(table.of.notes)
            missing = ", ".join(name for level, name in LEVELS.items() if level not in table.sources)
            notes += [f"{missing}: {NOT_RECORDED}"] if missing else []
            notes += [f"DRAM is {table.sources['dram']}"] if "+" in table.sources.get("dram", "") else []
            if outside := [f"{clean(name[0], 60)}: {count}" for name, count in table.outside.items()]:
                more = f" and {len(outside) - 6} more" if len(outside) > 6 else ""
                notes.append(f"launches that belong to no call: {'; '.join(outside[:6])}{more}")
            found += [f"{table.label}: {note}" for note in notes]
        for other in tables[1:]:
            if other.shapes != tables[0].shapes:
                found.append(f"{other.label} has {other.shapes} shapes, {tables[0].label} {tables[0].shapes}")
            for level, label in LEVELS.items():
                one, two = tables[0].sources.get(level), other.sources.get(level)
                if one and two and one != two:
                    found.append(f"{label}: {one} in {tables[0].label}, {two} in {other.label}")
    return [clean(note, 400) for note in found]


def memory_sentence(groups: Sequence[MemoryGroup]) -> str:
    """Of one file a call's bytes, of several how they differ."""
    found = []
    for tables in (group.tables for group in groups if group.tables):
        parts = []
        for row in (row for row in tables[0].sums if row.kind == "all" and len(tables) == 1):
            sizes = ", ".join(f"{label} {size(row.per_call[level])}" for level, label in LEVELS.items())
            parts.append(f"A call{f', shape {row.shape}' if tables[0].shapes > 1 else ''} moves {sizes}")
        for target in tables[1:]:
            for pair in (pair for pair in sums_beside(tables[0], target) if pair.either.kind == "all"):
                changes = [f"{label} {change}" for level, label in LEVELS.items() if (change := _change(pair, level))]
                moved = f"a call moves {', '.join(changes)} against base" if changes else "no level that both recorded"
                differs = _presence(pair.base, pair.target, ("in base", "in target"), moved)
                parts.append(f"{target.label}{f', shape {pair.either.shape}' if target.shapes > 1 else ''}: {differs}")
        named = f"{tables[0].label}: " if len(tables) == 1 < len(groups) else ""
        found += [named + "; ".join(parts)] if parts else []
    more = [f"and {len(found) - 8} more"] if len(found) > 8 else []
    return clean("; ".join([*found[:8], *more]) or "nothing was recorded", 1000)


def memory_csv(groups: Sequence[MemoryGroup]) -> str:
    return csv_text(_MEMORY, _memory_lines(groups))


def _memory_lines(groups: Sequence[MemoryGroup]) -> Iterator[Line]:
    """A line for each kernel of each file and shape, for the sums (`kernel` is empty), for launches outside the calls, and for
    each arm without a table (kind `error`)."""
    for group in groups:
        for place, table in enumerate(group.tables):
            base, found = group.tables[0], [Pair(None, row) for row in (*table.rows, *table.sums)]
            for pair in [*beside(base, table), *sums_beside(base, table)] if place else found:
                yield _memory_line(table, pair, compared=place > 0)
            for launched, count in table.outside.items():
                kernel, grid, block = map(plain, launched)
                yield {"file": plain(str(Path(table.of.csv))), "kernel": kernel, "grid": grid, "block": block,
                       "kind": "outside", "launches": str(count)}  # fmt: skip
        for cell, name, reason in group.failed:
            yield {"cell": plain(cell), "arm": plain(name), "kind": "error", "reason": plain(reason)}


def _memory_line(table: Traffic, pair: Pair, *, compared: bool) -> Line:
    """A row of this file; a kernel that only base has is named, with 0 launches."""
    row, here = pair.either, pair.target is not None
    names = {"file": str(Path(table.of.csv)), "kernel": row.kernel, "grid": row.grid, "block": row.block}
    line = {name: plain(text) for name, text in (names | {"cell": table.of.cell, "arm": table.of.arm}).items()}
    both = "both" if pair.base and pair.target else "target only" if pair.target else "base only"
    line |= {"shape": str(row.shape), "kind": row.kind, "launches": str(row.launches if here else 0)}
    line["in_files"] = both if compared else ""
    line |= {
        "launches_a_call": str(row.a_call if here else 0),
        "warmup": str(table.of.warmup),
        "runs": str(table.of.runs),
    }
    figures = {f"{level}_change_pct": (pair.pct(level), 4) for level in LEVELS}
    for level in LEVELS if here else ():
        figures[f"{level}_bytes_a_launch"] = row.per_launch[level], 1
        figures[f"{level}_bytes_a_call"] = row.per_call[level], 1
        if row.kind == "all":
            figures[f"{level}_minimum_bytes"] = table.of.minimum.get(level), 1
    return line | {name: "" if value is None else f"{value:.{places}f}" for name, (value, places) in figures.items()}


def memory_markdown(groups: Sequence[MemoryGroup]) -> str:
    """The sentence, the tables, the notes."""
    parts = [str(escape(memory_sentence(groups))), ""]
    for table in (made for group in groups for made in traffic_tables(group.tables)):
        parts += [f"**{escape(table.caption)}**", "", markdown_table(table.header, table.rows, table.left), ""]
    parts += [f"- {escape(note)}" for note in memory_notes(groups)]
    return "\n".join(parts).rstrip("\n") + "\n"


def memory_json(groups: Sequence[MemoryGroup]) -> str:
    """The CSV's lines as objects, with notes and sentence; numbers are numbers, and what is not recorded is null."""

    whole = ("shape", "launches", "launches_a_call", "warmup", "runs")

    def value(name: str, text: str) -> str | int | float | None:
        if name in whole or "bytes" in name or name.endswith("_pct"):
            return None if not text else int(text) if name in whole else float(text)
        return text

    rows = [{name: value(name, line.get(name, "")) for name in _MEMORY} for line in _memory_lines(groups)]
    content = {"sentence": memory_sentence(groups), "notes": memory_notes(groups), "rows": rows}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


FORMATS: Mapping[str, Callable[[Sequence[MemoryGroup]], str]] = {
    "csv": memory_csv,
    "md": memory_markdown,
    "json": memory_json,
}
