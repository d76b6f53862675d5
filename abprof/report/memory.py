"""`abprof memory`: the traffic of recorded files as a table for a terminal, as CSV, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from abprof.memory.recording import LEVELS
from abprof.memory.traffic import Bytes, Pair, Row, Table, beside, sums_beside

from . import terminal, words
from .lines import TextTable
from .markdown import escape
from .tables import Line, csv_text, plain

COLUMNS = (
    "file", "shape", "kernel", "grid", "block", "kind", "launches", "launches_a_call", "warmup", "runs",
    *(f"{level}_bytes_a_launch" for level in LEVELS), *(f"{level}_bytes_a_call" for level in LEVELS),
    *(f"{level}_change_pct" for level in LEVELS), "in_files",
)  # fmt: skip
_ABSENT = "not launched"


def show(tables: Sequence[Table]) -> None:
    """Print it for a person."""
    titled = [(words.clean(title), table) for title, table in _tables(tables)]
    terminal.print_tables(titled, _notes(tables), _sentence(tables))


def csv(tables: Sequence[Table]) -> str:
    """A line for each kernel of each file and shape, for the sums (`kernel` is empty), and for launches outside the calls."""
    return csv_text(COLUMNS, [line for place, table in enumerate(tables) for line in _lines(tables[0], table, place)])


def markdown(tables: Sequence[Table]) -> str:
    """The tables, what is to be known of them, the sentence."""
    parts = [escape(_sentence(tables)), ""]
    for title, table in _tables(tables):
        ruler = ["---"] * table.left + ["---:"] * (len(table.header) - table.left)
        parts += [f"**{escape(words.clean(title))}**", "", _bar(table.header), f"| {' | '.join(ruler)} |"]
        parts += [*map(_bar, table.rows), ""]
    parts += [f"- {escape(note)}" for note in _notes(tables)]
    return "\n".join(parts).rstrip("\n") + "\n"


def as_json(tables: Sequence[Table]) -> str:
    """The CSV's lines as objects, with notes and sentence; numbers are numbers, and what is not recorded is null."""
    lines = [line for place, table in enumerate(tables) for line in _lines(tables[0], table, place)]
    whole = ("shape", "launches", "launches_a_call", "warmup", "runs")
    rows = [{name: _plain_value(name, line.get(name, ""), whole) for name in COLUMNS} for line in lines]
    content = {"sentence": _sentence(tables), "notes": _notes(tables), "rows": rows}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


FORMATS: Mapping[str, Callable[[Sequence[Table]], str]] = {"csv": csv, "md": markdown, "json": as_json}


def _plain_value(name: str, text: str, whole: Sequence[str]) -> str | int | float | None:
    if name in whole:
        return int(text) if text else None
    if "bytes" in name or name.endswith("_pct"):
        return float(text) if text else None
    return text


def _bar(row: Sequence[str]) -> str:
    return f"| {' | '.join(escape(cell) for cell in row)} |"


def _tables(tables: Sequence[Table]) -> Iterator[tuple[str, TextTable]]:
    if len(tables) == 1:
        for shape in range(1, tables[0].shapes + 1):
            yield _title(tables[0], shape), _alone(tables[0], shape)
        return
    base = tables[0]
    for target in tables[1:]:
        for shape in range(1, max(base.shapes, target.shapes) + 1):
            of = f", shape {shape}" if max(base.shapes, target.shapes) > 1 else ""
            yield f"{base.path} (base) and {target.path}{of}: bytes a call", _two(base, target, shape)


def _title(table: Table, shape: int) -> str:
    of = f", shape {shape} of {table.shapes}" if table.shapes > 1 else ""
    calls = words.plural(table.runs, "call")
    return f"{table.path}{of}: {calls} after {table.warmup} warm-ups"


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
    return TextTable(tuple(header), tuple(lines), 4)


def _two(base: Table, target: Table, shape: int) -> TextTable:
    """Two files: a line for each kernel and level."""
    pairs = [pair for pair in beside(base, target) if pair.either.shape == shape]
    sums = [pair for pair in sums_beside(base, target) if pair.either.shape == shape]
    lines = []
    for pair in [*pairs, *(sums if len(sums) > 2 else [pair for pair in sums if pair.either.kind == "all"])]:
        row = pair.either
        name = words.clean(row.kernel, 60) or f"all {row.kind} kernels".replace("all all", "all")
        calls = " → ".join(dict.fromkeys(str(one.a_call) if one else "0" for one in (pair.base, pair.target)))
        for level, label in LEVELS.items():
            before, after = (_size(one, level) for one in (pair.base, pair.target))
            lines.append((name, row.kind if row.kernel else "", label, calls, before, after, _change(pair, level)))
    return TextTable(("kernel", "kind", "level", "launches a call", "base", "target", "change"), tuple(lines), 3)


def _sizes(of: Bytes) -> list[str]:
    return [words.size(of[level]) for level in LEVELS]


def _size(row: Row | None, level: str) -> str:
    return words.size(row.per_call[level]) if row else _ABSENT


def _change(pair: Pair, level: str) -> str:
    pct = pair.pct(level)
    return "" if pct is None else f"{pct:+.1f} %"


def _notes(tables: Sequence[Table]) -> list[str]:
    """What a reader must know: how launches were counted, what lies outside the calls, what is not comparable."""
    found = [words.clean(f"{table.path}: {note}", 400) for table in tables for note in _of(table)]
    for other in tables[1:]:
        if other.shapes != tables[0].shapes:
            found.append(f"{other.path} has {other.shapes} shapes, {tables[0].path} {tables[0].shapes}")
        for level in LEVELS:
            first, second = tables[0].sources.get(level), other.sources.get(level)
            if first and second and first != second:
                found.append(f"{LEVELS[level]}: {first} in {tables[0].path}, {second} in {other.path}")
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


def _sentence(tables: Sequence[Table]) -> str:
    """What it comes to: of one file a call's bytes, of several how they differ."""
    if len(tables) == 1:
        return "; ".join(_moves(row, tables[0].shapes) for row in tables[0].sums if row.kind == "all")
    said = []
    for target in tables[1:]:
        whole = [pair for pair in sums_beside(tables[0], target) if pair.either.kind == "all"]
        said += [f"{target.path}{_shape(pair.either, target.shapes)}: {_differs(pair)}" for pair in whole]
    return words.clean("; ".join(said), 1000)


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
    line |= {"launches_a_call": str(row.a_call if here else 0), "warmup": str(table.warmup), "runs": str(table.runs)}
    for level in LEVELS:
        if here:
            line[f"{level}_bytes_a_launch"] = _figure(row.per_launch[level], 1)
            line[f"{level}_bytes_a_call"] = _figure(row.per_call[level], 1)
        line[f"{level}_change_pct"] = _figure(pair.pct(level), 4)
    return line


def _figure(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"
