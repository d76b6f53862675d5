"""Lay out a run as rows: one for each cell and variant, with the base arm, the target arm and their comparison.

All reports (terminal, output.txt, Markdown, HTML and CSV) use these rows, so that no two reports disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from abprof.records import (
    GPU_GRAPH,
    GPU_KERNELS,
    JUDGED_METRIC,
    SUSTAINED,
    Arm,
    Cell,
    CellHistory,
    Comparison,
    Metric,
    Observation,
    Run,
    Side,
    Verdict,
    Workload,
)
from abprof.records.quantities import plural
from abprof.report import sentences, text
from abprof.report.code_pages import Code

ROWS_UP_TO = 300  # of a table below the verdicts, on a page and a terminal; the CSV files have all
ORDER: tuple[Verdict | None, ...] = ("broken", "slower", "unclear", "faster", "slight", None, "same")


@dataclass(frozen=True)
class Row:
    """One cell and variant: the base arm, the arm of one target, and the comparison of the two."""

    cell: Cell
    variant: str
    metric: str  # the judged metric
    base: Observation | None
    target: Observation | None  # None in a run of one branch
    comparison: Comparison | None  # None: not judged, because the run has one branch or ended before
    past: CellHistory | None  # None: no nights

    @property
    def verdict(self) -> Verdict | None:
        return self.comparison.verdict if self.comparison else None

    @property
    def apart(self) -> str:
        """The status of both arms if both are `unsupported` or both are `missing`, else ""."""
        if self.comparison is None or self.comparison.verdict != "unclear":
            return ""
        return next((code for code in self.comparison.reasons[:1] if code in ("unsupported", "missing")), "")

    @property
    def folded(self) -> bool:
        """Whether a report hides the row at first: the verdict is `same`, or both arms are unsupported or missing."""
        return self.verdict == "same" or bool(self.apart)

    @property
    def failing(self) -> list[Observation]:
        """The arms that failed or had a wrong output. `unsupported` is a failure if the other side works."""
        fine = ("ok", "identical") if self.comparison and not self.apart else ("ok", "identical", "unsupported")
        return [seen for seen in (self.base, self.target) if seen and not self.apart and seen.status not in fine]

    def of(self, side: str) -> Observation | None:
        """Return a side's arm."""
        return self.base if side == "base" else self.target

    def ns(self, seen: Observation | None) -> float | None:
        """Return an arm's time in ns per call, by the row's metric; None if not recorded."""
        return value(seen, self.metric)


class Group:
    """The rows of one workload against `target`, sorted by verdict as in ORDER. A run of one branch has no target."""

    def __init__(self, run: Run, workload: Workload, target: Side | None, cells: Sequence[Cell]) -> None:
        """Collect the rows of `cells`, which are all cells of this workload."""
        self.run, self.workload, self.target = run, workload, target
        # The axes that differ between cells; each other axis with its one value, or with the axis that it always equals.
        self.axes, self.constants = _axes(workload, cells)
        seen = {(o.cell, o.arm): o for o in run.observations}
        judged = {(c.cell, c.from_, c.to): c for c in run.comparisons}
        rows, used = list[Row](), set()
        ran = _variants(run, workload, cells)
        nights = {(one.cell, one.variant): one for one in run.history if one.dates and len(one.dates) == len(one.ns)}
        for cell in cells:
            for variant in ran[cell.id]:
                tail = f":{variant}" if variant else ""
                key = (cell.id, f"base{tail}", f"{target.id if target else ''}{tail}")
                used.add(key)
                base, comparison = seen.get(key[:2]), judged.get(key)
                other = seen.get((cell.id, key[2])) if target else None
                metric = comparison.metric if comparison else judged_metric(run, workload, base)
                rows.append(Row(cell, variant, metric, base, other, comparison, nights.get((cell.id, variant))))
        self.rows = sorted(rows, key=lambda row: len(ORDER) if row.apart else ORDER.index(row.verdict))
        self.variants = any(row.variant for row in rows)
        names = {cell.id: cell for cell in cells}
        # Library implementations measured in the same rounds.
        found = [(names[o.cell], Arm.of(o.arm), o) for o in run.observations if o.cell in names]
        self.peers = [one for one in found if one[1].peer]
        sides = {target.id, "base"} if target else {"base"}
        others = [c for k, c in judged.items() if k not in used] + list(run.within)
        # (cell, from, to) -> comparison of another pair of arms: a peer with a side, or variants of a side with each other.
        self.others = {(c.cell, c.from_, c.to): c for c in others if c.cell in names and Arm.of(c.to).side in sides}

    @cached_property
    def lines(self) -> list[Line]:
        """The texts of the rows."""
        return [Line(self, row) for row in self.rows]

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of the columns that name a row: axes that differ between cells, and `variant` if a row has one."""
        return (*map(text.clean, self.axes), *(["variant"] if self.variants else []))

    @property
    def sides(self) -> list[str]:
        """The sides' ids, base first."""
        return ["base", self.target.id] if self.target else ["base"]

    def name(self, row: Row) -> str:
        """Name the row by its variant and the axes that differ between cells: `mask_type=full direction=fwd ws`."""
        return label(row.cell, self.axes, row.variant)

    def full_name(self, cell: Cell, variant: str = "") -> str:
        """Name the cell by its workload, its variant, and the axes that differ between cells."""
        axes = (f"{axis}={cell.params[axis]}" for axis in self.axes if axis in cell.params)
        return text.clean(" ".join(filter(None, (self.workload.name, *axes, variant))))

    @property
    def title(self) -> str:
        """The workload's name, and the target's if the run has several targets."""
        against = f" against {text.clean(self.target.label, 60)}" if self.target and len(self.run.sides) > 2 else ""
        return text.clean(self.workload.name) + against


def groups(run: Run) -> tuple[Group, ...]:
    """Return a group of rows for each target and workload; in a run of one branch, for each workload."""
    targets: list[Side | None] = [side for side in run.sides if side.id != "base"]
    return tuple(
        Group(run, workload, target, cells)
        for target in targets or [None]
        for workload in run.workloads
        if (cells := [cell for cell in run.cells if cell.workload == workload.name])
    )


def _variants(run: Run, workload: Workload, cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Return {cell id: names of its variants}; "" stands for the arm without a variant."""
    sides = {side.id for side in run.sides}
    arms = {one: Arm.of(one) for one in {o.arm for o in run.observations}}
    ran: dict[str, list[Arm]] = {cell.id: [] for cell in cells}
    for seen in run.observations:
        if seen.cell in ran and arms[seen.arm].side in sides:  # controls have no row
            ran[seen.cell].append(arms[seen.arm])
    found = {}
    for cell, these in ran.items():
        names = list(dict.fromkeys([*workload.variants, *(one.variant for one in these if one.variant)]))
        found[cell] = names if names and not any(one.id in sides for one in these) else ["", *names]
    return found


def _axes(workload: Workload, cells: Sequence[Cell]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the axes whose values differ between cells, and the common value of each other axis."""
    varying: dict[tuple[str, ...], str] = {}
    constants: dict[str, str] = {}
    for axis in dict.fromkeys([*workload.axes, *(axis for cell in cells for axis in cell.params)]):
        column = tuple(str(cell.params.get(axis, "")) for cell in cells)
        if len(set(column)) == 1 or column in varying:
            constants[axis] = varying.get(column, column[0])
        else:
            varying[column] = axis
    return tuple(varying.values()), constants


def label(cell: Cell, axes: Iterable[str], variant: str = "") -> str:
    """Return a name such as `seqlen=4096 ws`, from `axes` and the variant; the cell's id if both are empty."""
    parts = [f"{axis}={cell.params[axis]}" for axis in axes if axis in cell.params]
    return text.clean(" ".join([*parts, *([variant] if variant else [])]) or cell.id)


def workload_of(run: Run, cell: Cell) -> Workload:
    """Return the cell's workload; if the run does not list the workload, a new one without axes."""
    bare = Workload(name=cell.workload, kernel=cell.kernel, suite="", axes=(), judge=run.options.judge)
    return next((load for load in run.workloads if load.name == cell.workload), bare)


def judged_metric(run: Run, workload: Workload, seen: Observation | None = None) -> str:
    """Return the name of the metric that decides the verdict, or of another metric if `seen` lacks this one."""
    if run.options.regime == "sustained" and seen and SUSTAINED in seen.metrics:
        return SUSTAINED
    name = JUDGED_METRIC["wall" if workload.judge == "gpu" and run.options.judge != "gpu" else workload.judge]
    if seen and seen.metrics and name not in seen.metrics:
        others = ("gpu_span", GPU_GRAPH, GPU_KERNELS, "gpu_busy", "wall")
        return next((other for other in others if other in seen.metrics), name)
    return name


def arm(run: Run, id: str) -> Arm:
    """Return the run's arm with this id: in older runs a control's id lacks the variant."""
    return next((known for known in run.arms if known.id == id), None) or Arm.of(id)


def arm_name(run: Run, id: str) -> str:
    """Name an arm in words: the side's label and the variant, or `peer NAME`."""
    one = arm(run, id)
    if one.peer:
        return f"peer {text.clean(one.peer)}"
    side = next((side for side in run.sides if side.id == one.side), None)
    name = text.clean(side.label if side else one.side, 60)
    if side and sum(other.label == side.label for other in run.sides) > 1:
        name += f" ({side.id})"
    return name + (f" {text.clean(one.variant)}" if one.variant else "")


# ---------------------------------------------------------------- numbers of an arm


def metric(seen: Observation | None, name: str) -> Metric | None:
    return seen.metrics.get(name) if seen else None


def value(seen: Observation | None, name: str) -> float | None:
    """Return the value of the metric `name`, in ns per call or in bytes; None if not recorded."""
    found = metric(seen, name)
    return found.value if found else None


def tflops(cell: Cell, ns: float | None) -> float | None:
    """Return the rate in TFLOP/s; None if the cell's FLOP count or the time is missing."""
    return cell.flops / ns / 1e3 if cell.flops and ns else None


def gbps(cell: Cell, ns: float | None) -> float | None:
    """Return the rate in GB/s; None if the cell's number of bytes or the time is missing."""
    return cell.bytes / ns if cell.bytes and ns else None


class Breakdown:
    """The time in ns of each phase (part) of an arm's call, measured by profiling. None: the phase was not recorded.

    `phases` are those of the cell's direction, named without the direction: `run` for `fwd_run`. `others` are those of
    the opposite direction, as a backward call may compute the output again. `all` has both.
    """

    def __init__(self, cell: Cell, seen: Observation | None) -> None:
        recorded = dict(seen.phases) if seen and seen.phases else {}
        self.total, self.residual = recorded.pop("total", None), recorded.pop("residual", None)
        here = str(cell.params.get("direction", ""))
        away = {"fwd": "bwd_", "bwd": "fwd_"}.get(here, "\0")
        self.phases = {name.removeprefix(f"{here}_"): ns for name, ns in recorded.items() if not name.startswith(away)}
        self.others = {name: ns for name, ns in recorded.items() if name.startswith(away) and ns is not None}
        self.all = {**self.phases, **self.others}


# ---------------------------------------------------------------- rows and arms as text


@dataclass(frozen=True)
class Table:
    """A table of texts. The first `left` columns name the row, the other columns hold figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    caption: str = ""


@dataclass(frozen=True)
class Block:
    """A titled part of a section. `folded`: collapsed until the reader clicks the title."""

    title: str = ""
    text: tuple[str, ...] = ()
    files: tuple[tuple[str, str, str], ...] = ()  # label, path from the run folder, remark
    facts: Sequence[tuple[str, str]] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: tuple[Block, ...]
    text: str = ""


class Line:
    """The texts that reports show for one row. In a run of one branch, `after` and `change` are empty."""

    id = ""  # HTML id of the row's entry under "Cell by cell"; "" without an entry
    code: Sequence[Code] = ()  # pages with both sides' code, first the one that has the line `at`
    changed: Mapping[str, str] = {}  # "-" and "+" -> that line before and after

    def __init__(self, group: Group, row: Row) -> None:
        judged, target = row.comparison, group.target
        rates = [text.rate(tflops(row.cell, row.ns(seen))) for seen in (row.base, row.target)]
        values = tuple(text.clean(row.cell.params.get(axis, "-")) for axis in group.axes)
        self.row, self.case = row, group.name(row)
        self.values = (*values, text.clean(row.variant)) if group.variants else values  # of Group.columns
        self.verdict = row.apart or (judged.shown if judged else "not judged" if target else "")
        self.mark = "" if row.apart or not judged else sentences.MARKS[self.verdict]
        self.before = time_text(row.base, row.metric)
        self.after = time_text(row.target, row.metric) if target else ""
        self.change = sentences.change_text(judged) if judged else ""
        # The interval of the change; in a run of one branch, the interval of the time.
        self.interval = sentences.reach(judged) if judged else own_interval(row.base, row.metric)
        self.rate = _arrow(rates, target.id) if target else rates[0]
        self.note = sentences.note(judged)  # what qualifies the verdict
        self.why = sentences.because(judged)  # the causes of a change
        self.brief = sentences.because(judged, notes=False)
        at = judged.causes[0].at if judged and judged.causes else ""
        self.at = at if at and self.brief.startswith(at) else ""  # the line of source that both begin with
        self.past = row.past
        self.nights = f"{text.spark(row.past.ns)} {sentences.history(row.past)}" if row.past else ""


def _arrow(texts: list[str], target: str) -> str:
    """Join the rates of base and target: `613.2 → 653.7`. `target` is the target's side id."""
    known = list(dict.fromkeys(rate for rate in texts if rate != text.NOT_RECORDED))
    if text.NOT_RECORDED in texts and known:
        return f"{known[0]} ({'base' if texts[0] == known[0] else target} only)"
    return " → ".join(known) or text.NOT_RECORDED


def time_text(seen: Observation | None, name: str) -> str:
    """Return an arm's time as text, from the metric `name`; without a time, return the arm's status."""
    if seen is None:
        return "not measured"
    ns = value(seen, name)
    if ns is None:
        return {"ok": text.NOT_RECORDED, "identical": "identical code"}.get(seen.status, sentences.status(seen.status))
    return f"{text.duration(ns)}{', wrong output' if seen.status == 'wrong' else ''}"


def own_interval(seen: Observation | None, name: str) -> str:
    """Return the interval of an arm's time as text; without a time, return why there is none."""
    timed = metric(seen, name)
    if timed is None:  # a failed build has its own line below the tables
        return text.clean(seen.reason, 80) if seen and seen.status != "build_failed" else ""
    if timed.low is None or timed.high is None:
        return sentences.NO_INTERVAL
    return text.span(timed.low, timed.high)


# ---------------------------------------------------------------- arms that have no speed


@dataclass(frozen=True)
class Failed:
    """A failure and the cells that it affects. A failed build affects all cells of its package."""

    arm: str  # in words, by `arm_name`
    status: str
    reason: str
    log: str  # path inside the run folder
    cases: tuple[str, ...]
    seen: tuple[Observation, ...]

    @property
    def what(self) -> str:
        """The name of the affected cell; for several cells, their number and the name of the first."""
        several = len(self.cases) > 1
        return f"{plural(len(self.cases), 'cell')} (first: {self.cases[0]})" if several else self.cases[0]

    def line(self) -> str:
        """Describe the failure on one line: arm, cells, status, reason and log."""
        log = f" [{text.clean(self.log)}]" if self.log else ""
        return f"{self.arm}, {self.what}: {self.status}: {text.clean(self.reason, 160)}{log}"


def all_failures(run: Run, every: Iterable[Group]) -> list[Failed]:
    """Return the failures of sides, then those of peers. Cells with the same failure share an entry."""
    every = list(every)
    nothing = all(row.apart for group in every for row in group.rows)
    found = [(seen, group.full_name(row.cell, row.variant)) for group in every for row in group.rows
             for seen in ((row.base, row.target) if nothing else row.failing) if seen]  # fmt: skip
    fine = ("ok", "identical", "unsupported", "missing")
    found += [(s, group.full_name(cell)) for group in every for cell, _, s in group.peers if s.status not in fine]
    merged: dict[tuple[str, str, str], list[tuple[Observation, str]]] = {}
    for seen, case in found:
        whose = Arm.of(seen.arm).side if seen.status == "build_failed" else seen.arm  # of all variants and peers
        merged.setdefault((whose, seen.status, seen.reason), []).append((seen, case))
    return [
        Failed(
            arm=arm_name(run, whose),
            status=sentences.status(pairs[0][0].status),
            reason=text.clean(reason, text.LONGEST) or sentences.status(pairs[0][0].status),
            log=log_path(pairs[0][0].log),
            cases=tuple(dict.fromkeys(case for _, case in pairs)),
            seen=tuple(seen for seen, _ in pairs),
        )
        for (whose, _, reason), pairs in merged.items()
    ]


def log_path(name: str) -> str:
    """Return a log's path relative to the run folder: logs/NAME if `name` has no folder."""
    return f"logs/{name}" if name and "/" not in name else name
