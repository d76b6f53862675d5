"""The matrix: makes cells and arms from what workloads declare and options ask (presets, --set, --cell)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from abprof.records import Arm, Build, Cell, Judge, Side, Timer, Value, Workload, arm_id, variants_of
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.filters import nearest
from abprof.records.names import id_parts

Axes = list[tuple[list[str], list[Any]]]  # (names of an axis or of zipped axes, rows of values), in file order
_CONTROLS = 6  # most cells of a run with a control arm
_JUDGES: dict[Timer, Judge] = {"events": "gpu", "graph": "graph", "cupti": "kernels", "cpu": "wall"}


def judge(timer: Timer, kind: str, declared: str = "") -> Judge:
    """Return the clock whose times are judged on a device of `kind`: `timer`, or what the workload `declared`."""
    if kind == "cpu":
        return "wall"
    wanted = declared or ("gpu" if kind == "cuda" else "wall")
    return _JUDGES.get(timer, "gpu" if wanted == "gpu" else "wall")


def workload(
    described: wire.Described, sha256: str, kind: str, peers: Sequence[str] = (), timer: Timer = "auto"
) -> Workload:
    """Return a workload's record for run.json. `peers`: those named with --peer; (): the workload's default peers."""
    default = described.peers if described.default_peers is None else described.default_peers
    chosen = tuple(peer for peer in described.peers if peer in (peers or default) or "all" in peers)
    clock = judge(timer, kind, described.declared_judge)
    kept = {field.name: getattr(described, field.name) for field in fields(Workload)}
    return Workload(**kept | {"judge": clock, "peers": chosen, "sha256": sha256})


def known_peers(matrix: Iterable[wire.Described], peers: Sequence[str]) -> None:
    """Raise AbprofError if no workload has the peer that --peer names."""
    there = {name for described in matrix for name in described.peers}
    for name in peers:
        if name not in there and name != "all":
            advice = nearest(name, there) or "no workload has peers"
            raise AbprofError(f"no workload has a peer {name!r}", where="--peer", advice=advice)


def preset(name: str, described: wire.Described, wanted: str, where: str) -> Axes:
    """Return the axes of preset `wanted`. Raises AbprofError, naming `where`, if it is unknown or repeats a value."""
    if wanted not in described.presets:
        known = ", ".join(described.presets)
        raise AbprofError(f"workload {name} has no preset {wanted!r}", where=where, advice=f"it has {known}")
    axes: Axes = [(list(names), [list(row) for row in rows]) for names, rows in described.presets[wanted]]
    _no_value_twice(axes, f"workload {name}, preset {wanted}")
    return axes


def cases(axes: Axes) -> list[dict[str, Value]]:
    """Return all combinations of the axes' values. Zipped axes count as one axis with rows of values."""
    rows = [[list(zip(names, row, strict=True)) for row in values] for names, values in axes]
    return [dict(itertools.chain(*point)) for point in itertools.product(*rows)]


def exactly(matrices: Mapping[str, Axes], ids: Sequence[str]) -> dict[str, list[dict[str, Value]]]:
    """Return workload -> cases of the cells `ids` (--cell), in a preset or not. Skips ids of other workloads.

    Raises AbprofError for an impossible axis or value, and for an id that does not name every axis.
    """
    found: dict[str, list[dict[str, Value]]] = {name: [] for name in matrices}
    for id in dict.fromkeys(ids):
        name, settings = id_parts(id)
        if name not in matrices:
            continue
        try:
            made = cases(set_axes({name: matrices[name]}, settings, commas=False)[name])
        except AbprofError as error:  # about a value: --set is not involved
            raise AbprofError(error.what, where=f"--cell {id}", advice=error.advice) from error
        case = next((case for case in made if wire.cell_id(name, case) == id), None)
        if case is None:
            like = ", ".join(wire.cell_id(name, case) for case in made[:3])
            raise AbprofError(f"no cell {id}", where="--cell", advice=f"an id names every axis: {like}")
        found[name].append(case)
    return found


def set_axes(matrices: Mapping[str, Axes], settings: Sequence[str], *, commas: bool = True) -> dict[str, Axes]:
    """Return workload -> axes, with the values of `settings` (--set AXIS=V1,V2) in place of the preset's.

    `commas`: whether commas separate values. Raises AbprofError for an axis that no workload has, and for an axis or a
    value that is given twice.
    """
    given: dict[str, list[str]] = {}
    for setting in settings:
        axis, equals, values = setting.partition("=")
        if not equals or not axis or not values:
            raise AbprofError(f"{setting!r} is not AXIS=V1,V2", where="--set")
        given.setdefault(axis, []).append(values)
    for axis, texts in given.items():
        if len(texts) > 1:
            advice = f"write {axis}={','.join(dict.fromkeys(texts))}"
            raise AbprofError(f"{axis} is given more than once", where="--set", advice=advice)
    wanted = {axis: texts[0].split(",") if commas else texts for axis, texts in given.items()}
    known = {axis for axes in matrices.values() for names, _ in axes for axis in names}
    for axis in wanted:
        if axis not in known:
            raise AbprofError(f"no workload has an axis {axis!r}", where="--set", advice=nearest(axis, known))
    chosen = {name: [_set_group(name, names, rows, wanted) for names, rows in axes] for name, axes in matrices.items()}
    for axes in chosen.values():
        _no_value_twice(axes, "--set")
    return chosen


def _set_group(
    load: str, names: list[str], rows: list[Any], wanted: dict[str, list[str]]
) -> tuple[list[str], list[Any]]:
    given = [axis for axis in names if axis in wanted]
    if not given:
        return names, rows
    if not rows:
        raise AbprofError(
            f"axis {given[0]} has no values in this preset", where="--set", advice="choose another --preset"
        )
    columns = {axis: [_typed(text, rows[0][names.index(axis)], axis) for text in wanted[axis]] for axis in given}
    if len(given) == len(names):
        if len({len(values) for values in columns.values()}) > 1:
            raise AbprofError(f"{', '.join(names)} are zipped and need equally many values", where="--set")
        return names, [list(row) for row in zip(*(columns[axis] for axis in names), strict=True)]
    kept = [row for row in rows if all(row[names.index(axis)] in columns[axis] for axis in given)]
    if not kept:
        values = ", ".join(f"{axis}={','.join(wanted[axis])}" for axis in given)
        what = f"no row of workload {load} has {values}: it zips {', '.join(names)}"
        raise AbprofError(what, where="--set", advice="set all of these, or leave the workload out (--workloads)")
    return names, kept


def _typed(text: str, like: Value, axis: str) -> Value:
    try:
        if isinstance(like, bool):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if isinstance(like, int):
            return int(text)
        return float(text) if isinstance(like, float) else text
    except (KeyError, ValueError):
        what = f"{axis}={text}: expected {type(like).__name__}, like {wire.shown(like)}"
        raise AbprofError(what, where="--set") from None


def _no_value_twice(axes: Axes, where: str) -> None:
    """Raise AbprofError if an axis repeats a value, which would give two cells the same id."""
    for names, rows in axes:
        shown = [",".join(map(wire.shown, row)) for row in rows]
        twice = next((value for value in shown if shown.count(value) > 1), None)
        if twice is not None:
            raise AbprofError(f"{','.join(names)} has {twice} twice", where=where)


def arms(
    load: Workload, sides: Sequence[Side], builds: Sequence[Build], *, control: bool, peers: bool
) -> tuple[Arm, ...]:
    """Return the arms that take turns in a cell: each side, or each variant of it, then the control and the peers."""
    variants = variants_of(load, builds)
    rows = [
        Arm(id=arm_id(side.id, variant), side=side.id, variant=variant)
        for variant in variants or ("",)
        for side in sides
    ]
    if control:  # the id has the variant, because packages of a run may have different variants
        variant = variants[0] if variants else ""
        rows.append(Arm(id=f"control:{variant}" if variant else "control", side="control", variant=variant))
    if peers:
        rows += [Arm(id=f"peer:{name}", side="base", peer=name) for name in load.peers]
    return tuple(rows)


def controls(
    cells: Sequence[Cell], sides: Sequence[Side], identical: Collection[str] = (), *, quick: bool = False
) -> set[str]:
    """Return the ids of the cells that get a control arm; none for one side or if `quick`.

    Chooses cells of `identical` code first, and among them some with little and some with much work.
    """
    if len(sides) == 1 or quick:
        return set()
    ordered = sorted((c for c in cells if not c.skip), key=lambda c: (c.flops or 0.0, c.id))
    chosen: set[str] = set()
    for same in (True, False):
        ids, count = [c.id for c in ordered if (c.id in identical) == same], _CONTROLS - len(chosen)
        chosen.update(ids if len(ids) <= count else (ids[(2 * i + 1) * len(ids) // (2 * count)] for i in range(count)))
    return chosen
