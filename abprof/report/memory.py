"""`abprof memory`: the traffic of recorded files as a table for a terminal, as CSV, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from abprof.evidence.ncu.recording import LEVELS
from abprof.evidence.ncu.traffic import Bytes, Pair, Row, Table, beside, sums_beside
from abprof.report import terminal, words
from abprof.report.lines import TextTable
from abprof.report.plain_markdown import escape
from abprof.report.tables import Line, csv_text, plain

COLUMNS = (
    "file", "shape", "kernel", "grid", "block", "kind", "launches", "launches_a_call", "warmup", "runs",
    *(f"{level}_bytes_a_launch" for level in LEVELS), *(f"{level}_bytes_a_call" for level in LEVELS),
    *(f"{level}_change_pct" for level in LEVELS), "in_files", "cell", "arm",
    *(f"{level}_minimum_bytes" for level in LEVELS), "reason",
)  # fmt: skip
_ABSENT = "not launched"
_MINIMUM = "predicted minimum"
_SENTENCES = 8  # groups that the sentence speaks of


@dataclass(frozen=True)
class Group:
    """Tables that stand beside each other, base first, and who of them has none: (cell, arm, reason)."""

    tables: tuple[Table, ...]
    failed: tuple[tuple[str, str, str], ...] = ()


def show(groups: Sequence[Group]) -> None:
    """Print it for a person."""
    shown = [(words.clean(title), table) for group in groups for title, table in titled(group.tables)]
    terminal.print_tables(shown, _notes(groups), _sentence(groups))


def csv(groups: Sequence[Group]) -> str:
    """A line for each kernel of each file and shape, for the sums (`kernel` is empty), for launches outside the calls, and
    for each arm that has no table (kind `error`)."""
    return csv_text(COLUMNS, [line for group in groups for line in _group_lines(group)])


def markdown(groups: Sequence[Group]) -> str:
    """The tables, what is to be known of them, the sentence."""
    parts = [escape(_sentence(groups)), "", *tables_markdown(groups)]
    parts += [f"- {escape(note)}" for note in _notes(groups)]
    return "\n".join(parts).rstrip("\n") + "\n"


def tables_markdown(groups: Sequence[Group]) -> list[str]:
    """The tables alone, as lines."""
    parts = []
    for title, table in (made for group in groups for made in titled(group.tables)):
        ruler = ["---"] * table.left + ["---:"] * (len(table.header) - table.left)
        parts += [f"**{escape(words.clean(title))}**", "", _bar(table.header), f"| {' | '.join(ruler)} |"]
        parts += [*map(_bar, table.rows), ""]
    return parts


def as_json(groups: Sequence[Group]) -> str:
    """The CSV's lines as objects, with notes and sentence; numbers are numbers, and what is not recorded is null."""
    lines = [line for group in groups for line in _group_lines(group)]
    whole = ("shape", "launches", "launches_a_call", "warmup", "runs")
    rows = [{name: _plain_value(name, line.get(name, ""), whole) for name in COLUMNS} for line in lines]
    content = {"sentence": _sentence(groups), "notes": _notes(groups), "rows": rows}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


FORMATS: Mapping[str, Callable[[Sequence[Group]], str]] = {"csv": csv, "md": markdown, "json": as_json}


def _plain_value(name: str, text: str, whole: Sequence[str]) -> str | int | float | None:
    if name in whole:
        return int(text) if text else None
    if "bytes" in name or name.endswith("_pct"):
        return float(text) if text else None
    return text


def _bar(row: Sequence[str]) -> str:
    return f"| {' | '.join(escape(cell) for cell in row)} |"


def titled(tables: Sequence[Table]) -> Iterator[tuple[str, TextTable]]:
    """The tables that stand beside each other, each with its title."""
    if not tables:
        return
    if len(tables) == 1:
        for shape in range(1, tables[0].shapes + 1):
            yield _title(tables[0], shape), _alone(tables[0], shape)
        return
    base = tables[0]
    for target in tables[1:]:
        for shape in range(1, max(base.shapes, target.shapes) + 1):
            of = f", shape {shape}" if max(base.shapes, target.shapes) > 1 else ""
            yield f"{base.label} (base) and {target.label}{of}: bytes a call", _two(base, target, shape)


def _title(table: Table, shape: int) -> str:
    of = f", shape {shape} of {table.shapes}" if table.shapes > 1 else ""
    calls = words.plural(table.runs, "call")
    return f"{table.label}{of}: {calls} after {table.warmup} warm-ups"


def _alone(table: Table, shape: int) -> TextTable:
    """A file's kernels; where one is launched several times a call also what a launch moves."""
    rows = [row for row in table.rows if row.shape == shape]
    several = any(row.a_call > 1 for row in rows)
    header = ["kernel", "grid", "block", "kind", "launches a call", *(f"{name} a call" for name in LEVELS.values())]
    header += [f"{name} a launch" for name in LEVELS.values()] if several else []
    lines = []
    sums = [row for row in table.sums if row.shape == shape]
    for row in [*rows, *(sums if len(sums) > 2 else sums[-1:])]:  # of one kind, its sum is that of all
        name = words.clean(row.kernel, 60) or f"all {row.kind} kernels".replace("all all", "all")
        line = [name, row.grid, row.block, row.kind if row.kernel else "", str(row.a_call), *_sizes(row.per_call)]
        line += (_sizes(row.per_launch) if row.kernel else [""] * len(LEVELS)) if several else []
        lines.append(tuple(words.clean(cell) for cell in line))
    if table.minimum:
        sizes = [_least(table, level) for level in LEVELS]
        lines.append((_MINIMUM, "", "", "", "", *sizes, *([""] * len(LEVELS) if several else [])))
    return TextTable(tuple(header), tuple(lines), 4)


def _two(base: Table, target: Table, shape: int) -> TextTable:
    """Two files: a line for each kernel and level."""
    pairs = [pair for pair in beside(base, target) if pair.either.shape == shape]
    sums = [pair for pair in sums_beside(base, target) if pair.either.shape == shape]
    lines: list[tuple[str, ...]] = []
    for pair in [*pairs, *(sums if len(sums) > 2 else [pair for pair in sums if pair.either.kind == "all"])]:
        row = pair.either
        name = words.clean(row.kernel, 60) or f"all {row.kind} kernels".replace("all all", "all")
        calls = " → ".join(dict.fromkeys(str(one.a_call) if one else "0" for one in (pair.base, pair.target)))
        for level, label in LEVELS.items():
            before, after = (_size(one, level) for one in (pair.base, pair.target))
            lines.append((name, row.kind if row.kernel else "", label, calls, before, after, _change(pair, level)))
    for level, label in LEVELS.items():
        least = [_least(one, level) for one in (base, target)]
        if any(least):
            lines.append((_MINIMUM, "", label, "", *least, ""))
    return TextTable(("kernel", "kind", "level", "launches a call", "base", "target", "change"), tuple(lines), 3)


def _least(table: Table, level: str) -> str:
    """What is predicted; nothing where the workload does not say."""
    return words.size(table.minimum[level]) if level in table.minimum else ""


def _sizes(of: Bytes) -> list[str]:
    return [words.size(of[level]) for level in LEVELS]


def _size(row: Row | None, level: str) -> str:
    return words.size(row.per_call[level]) if row else _ABSENT


def _change(pair: Pair, level: str) -> str:
    pct = pair.pct(level)
    return "" if pct is None else f"{pct:+.1f} %"


def _notes(groups: Sequence[Group]) -> list[str]:
    """What a reader must know: who failed, how launches were counted, what lies outside the calls, what is not
    comparable."""
    failed = [words.clean(f"{cell} {arm}: {reason}", 400) for group in groups for cell, arm, reason in group.failed]
    return failed + [note for group in groups for note in _group_notes(group.tables)]


def _group_notes(tables: Sequence[Table]) -> list[str]:
    found = [words.clean(f"{table.label}: {note}", 400) for table in tables for note in _of(table)]
    for other in tables[1:]:
        if other.shapes != tables[0].shapes:
            found.append(f"{other.label} has {other.shapes} shapes, {tables[0].label} {tables[0].shapes}")
        for level in LEVELS:
            first, second = tables[0].sources.get(level), other.sources.get(level)
            if first and second and first != second:
                found.append(f"{LEVELS[level]}: {first} in {tables[0].label}, {second} in {other.label}")
    return found


def _of(table: Table) -> Iterator[str]:
    yield from table.notes
    missing = [name for level, name in LEVELS.items() if level not in table.sources]
    if missing:
        yield f"{', '.join(missing)}: {words.NOT_RECORDED}"
    if "dram" in table.sources and "+" in table.sources["dram"]:
        yield f"DRAM is {table.sources['dram']}"
    if table.outside:
        shown = [f"{words.clean(name[0], 60)}: {count}" for name, count in table.outside.items()]
        more = f" and {len(shown) - 6} more" if len(shown) > 6 else ""
        yield f"launches that belong to no call: {'; '.join(shown[:6])}{more}"


def _sentence(groups: Sequence[Group]) -> str:
    """What it comes to: of one file a call's bytes, of several how they differ."""
    said = [text for group in groups if (text := _group_sentence(group.tables, alone=len(groups) == 1))]
    more = [f"and {len(said) - _SENTENCES} more"] if len(said) > _SENTENCES else []
    return words.clean("; ".join([*said[:_SENTENCES], *more]) or "nothing was recorded", 1000)


def _group_sentence(tables: Sequence[Table], *, alone: bool) -> str:
    if len(tables) == 1:
        of = "" if alone else f"{tables[0].label}: "
        return of + "; ".join(_moves(row, tables[0].shapes) for row in tables[0].sums if row.kind == "all")
    differ = []
    for target in tables[1:]:
        whole = [pair for pair in sums_beside(tables[0], target) if pair.either.kind == "all"]
        differ += [f"{target.label}{_shape(pair.either, target.shapes)}: {_differs(pair)}" for pair in whole]
    return "; ".join(differ)


def _shape(row: Row, shapes: int) -> str:
    return f", shape {row.shape}" if shapes > 1 else ""


def _moves(row: Row, shapes: int) -> str:
    sizes = ", ".join(f"{label} {words.size(row.per_call[level])}" for level, label in LEVELS.items())
    return f"A call{_shape(row, shapes)} moves {sizes}"


def _differs(pair: Pair) -> str:
    if not pair.base or not pair.target:
        return f"only in {'target' if pair.target else 'base'}"
    changes = [f"{label} {change}" for level, label in LEVELS.items() if (change := _change(pair, level))]
    return f"a call moves {', '.join(changes)} against base" if changes else "nothing that both recorded"


def _group_lines(group: Group) -> Iterator[Line]:
    for place, table in enumerate(group.tables):
        yield from _lines(group.tables[0], table, place)
    for cell, arm, reason in group.failed:
        yield {"cell": plain(cell), "arm": plain(arm), "kind": "error", "reason": plain(reason)}


def _lines(base: Table, table: Table, place: int) -> Iterator[Line]:
    pairs = [Pair(None, row) for row in (*table.rows, *table.sums)]
    if place:
        pairs = [*beside(base, table), *sums_beside(base, table)]
    for pair in pairs:
        both = (
            "" if not place else "both" if pair.base and pair.target else "target only" if pair.target else "base only"
        )
        yield _line(table, pair, both)
    for name, count in table.outside.items():
        kernel, grid, block = map(plain, name)
        yield {"file": plain(str(table.path)), "kernel": kernel, "grid": grid, "block": block, "kind": "outside",
               "launches": str(count)}  # fmt: skip


def _line(table: Table, pair: Pair, in_files: str) -> Line:
    """A row of this file; of a kernel that only base has its name, with 0 launches."""
    row, here = pair.either, pair.target is not None
    line = {
        "file": str(table.path),
        "shape": str(row.shape),
        "kernel": row.kernel,
        "grid": row.grid,
        "block": row.block,
    }
    line = {name: plain(text) for name, text in line.items()}
    line |= {"kind": row.kind, "launches": str(row.launches if here else 0), "in_files": in_files}
    line |= {"cell": plain(table.cell), "arm": plain(table.arm)}
    line |= {"launches_a_call": str(row.a_call if here else 0), "warmup": str(table.warmup), "runs": str(table.runs)}
    for level in LEVELS:
        if here:
            line[f"{level}_bytes_a_launch"] = _figure(row.per_launch[level], 1)
            line[f"{level}_bytes_a_call"] = _figure(row.per_call[level], 1)
        line[f"{level}_change_pct"] = _figure(pair.pct(level), 4)
        if row.kind == "all" and here:
            line[f"{level}_minimum_bytes"] = _figure(table.minimum.get(level), 1)
    return line


def _figure(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"
