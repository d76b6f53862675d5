"""Show what torch's profiler, perf and Nsight Compute recorded, as tables and CSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from abprof.records import Arm, Profile, Run, Sampled, Trace, ncu
from abprof.records.names import row_file
from abprof.records.quantities import plural
from abprof.report.csv_files import Line, csv_text
from abprof.report.rows import Block, Section, Table
from abprof.report.text import NOT_RECORDED, clean, duration, size

ROWS_UP_TO = 30  # of a table of launches or samples; the CSV files have all
_Seen = TypeVar("_Seen", Trace, Sampled, Profile)
Listed = dict[tuple[str, ...], tuple[int, float]]
_TRACED = "A few calls after all timing, with the profiler's own cost: where the time goes, not how much it is."
_SAMPLED = "Calls after all timing, sampled by perf: where their time goes in all threads together, not how much it is."
_COUNTED = "Single launches after all timing, with empty caches: what a kernel does, not its speed. Sums are of a call."


def files(run: Run) -> dict[str, str]:
    """Return {"memory.csv": text} if the run has profiles by Nsight Compute, else {}."""
    return {"memory.csv": FORMATS["csv"](memory_tables(run))} if run.profiles else {}


def sections(run: Run) -> Iterator[Section]:
    """Yield a section for each profiler that the run used."""
    for title, text, made in (
        ("Under torch's profiler", _TRACED, _evidence(run, run.traces)),
        ("Under Nsight Compute", _COUNTED, counters(run)),
        ("Sampled by perf", _SAMPLED, _evidence(run, run.sampled)),
    ):
        if found := list(made):
            yield Section(title, tuple(replace(block, folded=len(found) > 4) for block in found), text)


# ---------------------------------------------------------------- both sides beside each other


def _groups(run: Run, of: Iterable[_Seen]) -> list[list[_Seen]]:
    """Group the records to compare: those of one cell, variant, profiler and peer. Base is first in a group."""
    order = {side.id: place for place, side in enumerate(run.sides)}
    found: dict[tuple[str, ...], list[_Seen]] = {}
    for one in of:
        where = Arm.of(one.arm)
        found.setdefault((getattr(one, "by", ""), one.cell, where.variant, where.peer), []).append(one)
    return [sorted(group, key=lambda one: order.get(Arm.of(one.arm).side, len(order))) for group in found.values()]


def _pairs(group: Sequence[_Seen]) -> list[tuple[_Seen, _Seen | None]]:
    if len(group) > 1 and Arm.of(group[0].arm).side == "base":
        return [(group[0], other) for other in group[1:]]
    return [(one, None) for one in group]


# ---------------------------------------------------------------- torch's profiler, perf


def trace_pages(run: Run) -> dict[str, list[Trace]]:
    """Return path of a page in the run folder -> the traces of all sides of a row, for those that Perfetto can open."""
    traces = _groups(run, [one for one in run.traces if one.by == "torch" and one.file])
    return {f"traces/{row_file(of[0].cell, Arm.of(of[0].arm).variant)}.html": of for of in traces}


def _evidence(run: Run, of: Sequence[Trace] | Sequence[Sampled]) -> Iterator[Block]:
    for before, after in [pair for group in _groups(run, [*of]) for pair in _pairs(group)]:
        seen = [one for one in (before, after) if one]
        sides = [Arm.of(one.arm).side for one in seen]
        title = clean(" ".join(filter(None, (before.cell, Arm.of(before.arm).variant))))
        title += f", {' and '.join(sides)}" if after else ""
        notes, kept = [], []
        for side, one in zip(sides, seen, strict=True):
            kind = "sample" if isinstance(one, Sampled) else "trace"
            notes += [f"{side} has no {kind}: {clean(one.missing)}"] if one.missing else []
            if isinstance(one, Trace):
                opened = "Perfetto (ui.perfetto.dev)" if one.by == "torch" else "proton-viewer"  # in older runs
                cut = f"the first part: {plural(one.left_out, 'event')} had no room" if one.left_out else ""
                kept += [(f"{side}, for {opened}", one.file, cut)] if one.file else []
            elif not one.missing:
                taken = f"{plural(one.samples, 'sample')} of {clean(one.event)} in {plural(one.calls, 'call')}"
                notes.append(f"{side}: {taken}, {one.hz} a second")
        table = _table(before, after, sides)
        yield Block(title, tuple(notes), tuple(kept), tables=(table,) if table.rows else ())


def _listed(one: Trace | Sampled | None) -> Listed | None:
    """Return how often each kernel or function ran, and its ns in one call of the cell; None without a recording."""
    found: Listed = {}
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


def _table(before: Trace | Sampled, after: Trace | Sampled | None, sides: Sequence[str]) -> Table:
    on_device = isinstance(before, Trace) and before.census and before.census.on_device
    names = ("function", "in", "own") if isinstance(before, Sampled) else ("kernel" if on_device else "operation",)
    listed, unit = [_listed(before), _listed(after)], "samples" if isinstance(before, Sampled) else "times"
    rows: list[tuple[float, tuple[str, ...]]] = []
    for name in dict.fromkeys(name for of in listed for name in of or ()) if None not in listed else ():
        known = [of.get(name) if of else None for of in listed]
        counts, times = [str(t[0]) if t else "0" for t in known], [duration(t[1]) if t else "" for t in known]
        more = (known[1][1] if known[1] else 0.0) - (known[0][1] if known[0] else 0.0)
        difference = f"{'+' if more > 0 else '-' if more < 0 else ''}{duration(abs(more))}"
        figures = (*counts, *times, difference) if after else (counts[0], times[0])
        rows.append((-abs(more), (*(clean(text, 120) for text in name), *figures)))
    shown = tuple(texts for _, texts in sorted(rows, key=lambda row: row[0])[:ROWS_UP_TO])
    header = (*names, *(f"{side}, {unit}" for side in sides), *(f"{side}, time" for side in sides))
    more_rows = f", {len(rows) - len(shown)} more in run.json" if len(rows) > len(shown) else ""
    caption = f"In one call; the largest difference first{more_rows}"
    return Table((*header, "difference") if after else header, shown, len(names), caption)


# ---------------------------------------------------------------- Nsight Compute


def counters(run: Run) -> Iterator[Block]:
    """Yield a block of the report for each cell and variant, with Nsight Compute's metrics."""
    for row in _groups(run, run.profiles):
        compared = _pairs([one for one in row if one.status == "ok"])
        if all(one.purpose == "memory" for one in row):
            tables = [table for group in _of_row(row) for table in traffic_tables(group)]
        else:
            tables = [t for one, two in compared for t in _kernel_tables(one, two, named=len(compared) > 1)]
        notes = [clean(f"{one.arm}: {one.status}: {one.reason}", 400) for one in row if one.status != "ok"]
        notes += [clean(f"{one.arm}: {note}", 400) for one in row for note in one.notes]
        listed = tuple((f"{one.arm}, for ncu-ui", one.file, "") for one in row if one.file)
        yield Block(clean(f"{row[0].cell} {', '.join(o.arm for o in row)}"), tuple(notes), listed, tables=tuple(tables))


def _kernel_tables(before: Profile, after: Profile | None, *, named: bool) -> Iterator[Table]:
    arms = (before.arm, after.arm) if after else (before.arm,)
    one, two = ncu.table(before), ncu.table(after) if after else None
    for pair in (pair for pair in ncu.beside(one, two) if pair.either.kernel):
        both = [pair.base, pair.target][: len(arms)]
        rows = {"launches a call": [*(str(k.a_call) if k else "0" for k in both), ""][: len(arms) * 2 - 1]}
        most = {r: max(k.metrics.get(ncu.stall(r), 0.0) for k in both if k) for r in ncu.STALLS}
        waits = [ncu.Shown(f"waits: {reason.replace('_', ' ')}", (ncu.stall(reason),), "")
                 for reason in sorted(most, key=lambda r: -most[r])[:4] if most[reason]]  # fmt: skip
        for shown in (*ncu.TABLE, *waits):
            values = [_value(shown, kernel) for kernel in both]
            if shown.label not in rows and any(value is not None for value in values):
                texts = ["" if kernel is None else _text(v, shown.unit) for v, kernel in zip(values, both, strict=True)]
                rows[shown.label] = [*texts, _difference(shown, *values)] if after else texts
        whose = f", {' and '.join(arms)}" if named else ""
        title = clean(f"{pair.either.kernel} {pair.either.grid} x {pair.either.block}{whose}", 200)
        header = ("metric", *arms, "difference") if after else ("metric", *arms)
        yield Table(header, tuple((label, *texts) for label, texts in rows.items()), 1, title)


def _value(shown: ncu.Shown, kernel: ncu.Row | None) -> float | None:
    if kernel is None or any(name not in kernel.metrics for name in shown.names):
        return None
    return sum(kernel.metrics[name] for name in shown.names) * (kernel.a_call if shown.per_call else 1)


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return NOT_RECORDED
    if unit in ("ns", "bytes"):
        return duration(value) if unit == "ns" else size(value)
    known = {"bytes/s": f"{value / 1e9:.1f} GB/s", "%": f"{value:.1f} %", "count": f"{value:,.0f}"}
    return known.get(unit, f"{value:.2f}")


def _difference(shown: ncu.Shown, before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return ""
    if shown.unit in ("%", ""):
        return f"{after - before:+.1f} points" if shown.unit else f"{after - before:+.2f}"
    return f"{100 * (after / before - 1):+.1f} %" if before else ("" if not after else "from none")


# ---------------------------------------------------------------- memory traffic (`abprof memory`)

_MEMORY = (
    "file", "shape", "kernel", "grid", "block", "kind", "launches", "launches_a_call", "warmup", "runs",
    *(f"{level}_bytes_a_launch" for level in ncu.LEVELS), *(f"{level}_bytes_a_call" for level in ncu.LEVELS),
    *(f"{level}_change_pct" for level in ncu.LEVELS), "in_files", "cell", "arm",
    *(f"{level}_minimum_bytes" for level in ncu.LEVELS), "reason",
)  # fmt: skip


def memory_tables(run: Run) -> list[list[ncu.Table]]:
    """Return each arm's memory traffic as a table. Tables to compare share a list; a failed arm's table is empty."""
    return [tables for row in _groups(run, run.profiles) for tables in _of_row(row)]


def _of_row(row: Sequence[Profile]) -> list[list[ncu.Table]]:
    tables = [ncu.table(one) for one in sorted(row, key=lambda one: one.status != "ok")]
    beside_base = Arm.of(tables[0].of.arm).side == "base"
    return [tables] if beside_base else [[one] for one in tables]


def traffic_tables(tables: Sequence[ncu.Table]) -> Iterator[Table]:
    """Yield a table that compares the first profile with each other profile, or the table of a single profile."""
    levels = (f"{name} a call" for name in ncu.LEVELS.values())
    header = ("kernel", "grid", "block", "kind", "launches a call", *levels)
    tables = [one for one in tables if one.of.status == "ok"]
    for files in [[tables[0], other] for other in tables[1:]] or [[one] for one in tables]:
        pairs = ncu.beside(*files)
        kinds = {pair.either.kind for pair in pairs if not pair.either.kernel}
        lines = []
        for pair in pairs:
            row, both = pair.either, (pair.base, pair.target)[: len(files)]
            if row.kernel or row.kind == "all" or len(kinds) > 2:  # the sum of a sole kind equals that of all
                name = clean(row.kernel, 60) or f"all {row.kind} kernels".replace("all all", "all")
                calls = " → ".join(dict.fromkeys(str(one.a_call) if one else "0" for one in both))
                moved = [" → ".join(dict.fromkeys(size(one.per_call[level]) if one else "not launched" for one in both))
                         + (f", {pct:+.1f} %" if (pct := pair.pct(level)) is not None else "") for level in ncu.LEVELS]  # fmt: skip
                lines.append((name, row.grid, row.block, row.kind if row.kernel else "", calls, *moved))
        least = [" → ".join(dict.fromkeys(size(one.of.minimum[level]) for one in files if level in one.of.minimum))
                 for level in ncu.LEVELS]  # fmt: skip
        lines += [("predicted minimum", "", "", "", "", *least)] if any(least) else []
        calls = f"{plural(files[0].of.runs, 'call')} after {files[0].of.warmup} warm-ups"
        title = f"{' → '.join(one.label for one in files)}: {calls}"
        yield Table(header, tuple(tuple(map(clean, line)) for line in lines), 4, clean(title))


def memory_notes(groups: Sequence[Sequence[ncu.Table]]) -> list[str]:
    """Return notes on failed arms, on metrics that are not recorded, and on kernel launches outside the calls."""
    tables = [table for group in groups for table in group]
    found = [f"{t.label}: {t.of.status}: {t.of.reason}" for t in tables if t.of.status != "ok"]
    for table in (table for table in tables if table.of.status == "ok"):
        notes = list(table.of.notes)
        missing = ", ".join(name for level, name in ncu.LEVELS.items() if level not in table.sources)
        notes += [f"{missing}: {NOT_RECORDED}"] if missing else []
        notes += [f"DRAM is {table.sources['dram']}"] if "+" in table.sources.get("dram", "") else []
        if outside := [f"{clean(name[0], 60)}: {count}" for name, count in table.outside.items()]:
            notes.append(f"launches that belong to no call: {'; '.join(outside)}")
        found += [f"{table.label}: {note}" for note in notes]
    return [clean(note, 400) for note in found]


def memory_sentence(groups: Sequence[Sequence[ncu.Table]]) -> str:
    """Return a sentence that says how many bytes one call moves, for each arm or file."""
    tables = [table for group in groups for table in group if table.of.status == "ok"]
    found = []
    for table in tables:
        for row in (row for row in table.sums if row.kind == "all"):
            moved = ", ".join(f"{name} {size(row.per_call[level])}" for level, name in ncu.LEVELS.items())
            found.append(f"{f'{table.label}: a' if len(tables) > 1 else 'A'} call moves {moved}")
    return clean("; ".join(found) or "nothing was recorded", 1000)


def _memory_lines(groups: Sequence[Sequence[ncu.Table]]) -> Iterator[Line]:
    for group in groups:
        for table in group:
            of = table.of
            if of.status != "ok":
                yield {"cell": of.cell, "arm": of.arm, "kind": "error", "reason": clean(f"{of.status}: {of.reason}")}
                continue
            compared = table is not group[0]
            for pair in ncu.beside(group[0], table if compared else None):
                row, here = pair.either, pair.target if compared else pair.base
                both = "both" if pair.base and pair.target else "target only" if pair.target else "base only"
                line: Line = {
                    "file": str(Path(of.csv)), "shape": 1, "kernel": row.kernel, "grid": row.grid, "block": row.block,
                    "kind": row.kind, "launches": here.launches if here else 0,
                    "launches_a_call": here.a_call if here else 0, "warmup": of.warmup, "runs": of.runs,
                    "in_files": both if compared else "", "cell": of.cell, "arm": of.arm,
                }  # fmt: skip
                if here:
                    for level in ncu.LEVELS:
                        line[f"{level}_bytes_a_launch"] = here.per_launch[level]
                        line[f"{level}_bytes_a_call"] = here.per_call[level]
                        line[f"{level}_change_pct"] = pair.pct(level)
                        line[f"{level}_minimum_bytes"] = of.minimum.get(level) if row.kind == "all" else None
                yield line
            for (kernel, grid, block), count in table.outside.items():
                yield {"file": str(Path(of.csv)), "kernel": kernel, "grid": grid, "block": block, "kind": "outside",
                       "launches": count}  # fmt: skip


def _memory_csv(groups: Sequence[Sequence[ncu.Table]]) -> str:
    lines = ({name: f"{value:.4f}" if name.endswith("_pct") and value is not None else value
              for name, value in line.items()} for line in _memory_lines(groups))  # fmt: skip
    return csv_text(_MEMORY, lines, "{:.1f}".format)


def _memory_json(groups: Sequence[Sequence[ncu.Table]]) -> str:
    rows = [{name: line.get(name) for name in _MEMORY} for line in _memory_lines(groups)]
    content = {"sentence": memory_sentence(groups), "notes": memory_notes(groups), "rows": rows}
    return json.dumps(content, indent=1) + "\n"


FORMATS: Mapping[str, Callable[[Sequence[Sequence[ncu.Table]]], str]] = {"csv": _memory_csv, "json": _memory_json}
