"""The run as rows a person reads: which cells, in which order, with which two arms beside each other.

Every renderer walks these same rows, so that the terminal, the log, Markdown and HTML cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from abprof.records import (
    GPU_GRAPH,
    GPU_KERNELS,
    JUDGED_METRIC,
    Arm,
    Cell,
    Comparison,
    Observation,
    Run,
    Side,
    Verdict,
    Workload,
)
from abprof.report import places, words

ORDER: tuple[Verdict | None, ...] = ("broken", "slower", "unclear", "faster", "slight", None, "same")
APART = ("unsupported", "missing")  # on both sides: counted apart, and never as undecided


@dataclass(frozen=True)
class Row:
    """One cell (and variant): the base arm, one target's arm, and the verdict between them."""

    cell: Cell
    variant: str
    metric: str  # the judged metric
    base: Observation | None
    target: Observation | None  # None in a run of one branch
    comparison: Comparison | None

    @property
    def verdict(self) -> Verdict | None:
        """None: not judged, because the run was of one branch or ended before."""
        return self.comparison.verdict if self.comparison else None

    @property
    def apart(self) -> str:
        """`unsupported` or `missing` when both arms are; "" otherwise."""
        if self.comparison is None or self.comparison.verdict != "unclear":
            return ""  # what only the target lacks is broken
        first = self.comparison.reasons[:1]
        return next((code for code in APART if (code,) == first), "")


@dataclass(frozen=True)
class Group:
    """The rows of one workload against one target, the ones that need a person first."""

    workload: Workload
    target: Side | None
    axes: tuple[str, ...]  # axes that differ between these cells
    constants: dict[str, str]  # the others: their one value, or the name of the axis they always equal
    rows: tuple[Row, ...]
    peers: tuple[tuple[Cell, Arm, Observation], ...]  # library implementations measured beside
    others: tuple[Comparison, ...]  # of other pairs of arms: peers with a side, variants of a side with each other
    machine: str = ""  # the device's model, where the run's are of several: their times stand apart

    @cached_property
    def variants(self) -> bool:
        """Whether rows are told apart by a variant too."""
        return any(row.variant for row in self.rows)

    @cached_property
    def beside(self) -> dict[tuple[str, str, str], Comparison]:
        """`others` by cell, from and to."""
        return {(one.cell, one.from_, one.to): one for one in self.others}

    def name(self, row: Row) -> str:
        """The cell by the axes that tell it apart: `mask_type=full direction=fwd`, with the variant."""
        return label(row.cell, self.axes, row.variant)


def label(cell: Cell, axes: Iterable[str], variant: str = "") -> str:
    """A cell by these axes; its whole id when there are none."""
    parts = [f"{axis}={cell.params[axis]}" for axis in axes if axis in cell.params]
    parts += [variant] if variant else []
    return words.clean(" ".join(parts) or cell.id)


def groups(run: Run, *, together: bool = False) -> tuple[Group, ...]:
    """One group per workload that has cells, per target side, and per model of the devices where there are several (but not
    with `together`); a run of one branch has groups without a target."""
    targets: list[Side | None] = [side for side in run.sides if side.id != "base"]
    on: dict[str, str] = {seen.cell: places.model_of(run, seen) for seen in run.observations}
    models = ("",) if together or not places.models(run) else tuple(dict.fromkeys((*places.models(run), "")))
    return tuple(
        _group(run, workload, target, cells, model)
        for target in targets or [None]
        for workload in run.workloads
        for model in models
        if (
            cells := [
                c for c in run.cells if c.workload == workload.name and (len(models) < 2 or on.get(c.id, "") == model)
            ]
        )
    )


def workload_of(run: Run, cell: Cell) -> Workload:
    """Of a run that does not list the cell's, as it may be after somebody changed run.json: one that says nothing more."""
    bare = Workload(name=cell.workload, kernel=cell.kernel, suite="", axes=(), judge=run.options.judge)
    return next((load for load in run.workloads if load.name == cell.workload), bare)


def judged_metric(run: Run, workload: Workload, seen: Observation | None = None) -> str:
    """The name of the metric verdicts are made by; the wall clock when a GPU's is asked for and was not recorded."""
    name = JUDGED_METRIC["wall" if workload.judge == "gpu" and run.options.judge != "gpu" else workload.judge]
    if seen and seen.metrics and name not in seen.metrics:
        return next(
            (other for other in ("gpu_span", GPU_GRAPH, GPU_KERNELS, "gpu_busy", "wall") if other in seen.metrics), name
        )
    return name


def arm(run: Run, id: str) -> Arm:
    """The arm with this id."""
    del run
    return Arm.of(id)


def _group(run: Run, workload: Workload, target: Side | None, cells: list[Cell], machine: str) -> Group:
    axes, constants = _axes(workload, cells)
    seen = {(o.cell, o.arm): o for o in run.observations}
    judged = {(c.cell, c.from_, c.to): c for c in run.comparisons}
    variants = _variants(run, workload, cells)
    rows, used = [], set()
    for cell in cells:
        for variant in variants[cell.id]:
            tail = f":{variant}" if variant else ""
            key = (cell.id, f"base{tail}", f"{target.id if target else ''}{tail}")
            base, comparison = seen.get(key[:2]), judged.get(key)
            used.add(key)
            metric = comparison.metric if comparison else judged_metric(run, workload, base)
            other = seen.get((cell.id, key[2])) if target else None
            rows.append(Row(cell, variant, metric, base, other, comparison))
    names = {cell.id: cell for cell in cells}
    peers = [(names[o.cell], Arm.of(o.arm), o) for o in run.observations if o.cell in names and Arm.of(o.arm).peer]
    sides = {target.id, "base"} if target else {"base"}
    others = [c for k, c in judged.items() if k not in used] + list(run.within)
    others = [c for c in others if c.cell in names and Arm.of(c.to).side in sides]
    ranked = tuple(sorted(rows, key=_rank))
    return Group(workload, target, axes, constants, ranked, tuple(peers), tuple(others), machine)


def _rank(row: Row) -> int:
    return len(ORDER) if row.apart else ORDER.index(row.verdict)


def _variants(run: Run, workload: Workload, cells: list[Cell]) -> dict[str, list[str]]:
    """Cell -> variants that a worker of either side ran or should have run; [""] when the package has none."""
    sides = {side.id for side in run.sides}
    arms = {one: arm(run, one) for one in {o.arm for o in run.observations}}
    arms = {id: one for id, one in arms.items() if one.side in sides}  # a control stands in no row
    seen: dict[str, list[Arm]] = {cell.id: [] for cell in cells}
    for observation in run.observations:
        if observation.cell in seen and observation.arm in arms:
            seen[observation.cell].append(arms[observation.arm])
    found = {}
    for cell, ran in seen.items():
        names = list(dict.fromkeys([*workload.variants, *(one.variant for one in ran if one.variant)]))
        plain = any(one.id in sides for one in ran)
        found[cell] = names if names and not plain else ["", *names]
    return found


def _axes(workload: Workload, cells: list[Cell]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The axes that tell cells apart, and what the others are: one value, or always the value of another axis."""
    names = list(dict.fromkeys([*workload.axes, *(axis for cell in cells for axis in cell.params)]))
    columns = {axis: tuple(str(cell.params.get(axis, "")) for cell in cells) for axis in names}
    varying: dict[tuple[str, ...], str] = {}
    constants: dict[str, str] = {}
    for axis, column in columns.items():
        if len(set(column)) == 1:
            constants[axis] = column[0]
        elif column in varying:
            constants[axis] = varying[column]  # zipped axes: k_block_size=q_block_size
        else:
            varying[column] = axis
    return tuple(varying.values()), constants
