"""From a run's rounds to what abprof, and others, say of them. Pure: records in, records out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

from abprof.measure import turns
from abprof.records import ALONE, DO_BENCH_METRIC, IDLE_SECOND, SEED_METRIC, TURN_LENGTH, Block, Machine, Record, Run
from abprof.verdict import CellData, aggregate, stats
from abprof.verdict.cells import TIME
from abprof.verdict.comparison import decide

# Upper bounds of a call's time in ns: the classes of docs/DESIGN.md.
CLASSES = (("under 20 us", 20_000.0), ("20 us to 0.3 ms", 300_000.0), ("0.3 ms and longer", float("inf")))


class Alarms(Record, frozen=True, kw_only=True):
    """What a protocol said of unchanged cells of one duration class. Any `slower` or `faster` is a false alarm.

    Here and below a cell that more than two sides measured counts once for each pair of them.
    """

    protocol: str  # "abprof", or what it is compared with
    rule: str
    threshold: float  # per cent
    margin: float | None = None  # per cent; None: the protocol has no `same` that is proved
    duration_class: str  # a name of CLASSES
    cells: int
    slower: int
    faster: int
    same: int = 0
    slight: int = 0
    unclear: int = 0
    epochs: float | None = None  # mean over cells at which abprof would have stopped


class Detection(Record, frozen=True, kw_only=True):
    """What a protocol said of cells with injected work."""

    protocol: str
    threshold: float  # per cent
    how: Literal["work", "sleep"]
    inject: float  # per cent
    duration_class: str  # a name of CLASSES
    cells: int
    slower: int
    faster: int
    mean_pct: float  # of the measured changes of time


class Coverage(Record, frozen=True, kw_only=True):
    """How many 95 % intervals of unchanged cells hold zero."""

    interval: Literal["student", "repeated"]  # of four epochs, plain; over all looks of a cell together
    duration_class: str  # a name of CLASSES
    intervals: int
    covered: int


class Resolution(Record, frozen=True, kw_only=True):
    """How fine the instrument is: medians over unchanged cells, per cent of time."""

    duration_class: str  # a name of CLASSES
    cells: int
    epoch_sd: float  # between epoch values
    first_look: float  # half-width of the repeated interval at the first look
    last_look: float  # at the last look this selfcheck reached


class TurnLength(Record, frozen=True, kw_only=True):
    """How pairs of turns of one length scatter, base beside target on unchanged code in one pair of processes."""

    kernel: str  # op and steps
    call_ns: float
    calls: int  # per turn
    pairs: int
    scatter_pct: float  # of a pair's log ratio: 1.4826 times the median absolute deviation
    error_pct: float  # standard error of the pairs' median, had they been repeated for one second of turns


class IdleWorker(Record, frozen=True, kw_only=True):
    """A call with no other worker alive, and beside one that has the same cell open and does nothing."""

    kernel: str  # op and steps
    alone_ns: float  # median over both visits
    beside_ns: float
    alone_pct: float  # second visit over the first: what the machine's drift and fresh processes do by themselves
    beside_pct: float


class Selfcheck(Record, frozen=True, kw_only=True):
    """The whole result."""

    schema: int = 1
    run: str
    began: str
    arguments: tuple[str, ...]
    machine: Machine
    versions: dict[str, str]
    cells: int
    epochs: int  # the most that a cell has
    seconds: float  # from the first block that a verdict reads to the last
    busy_share: float  # time inside turns over that time, starts of workers included
    false_alarms: int  # of abprof's own at its default threshold
    alarms: tuple[Alarms, ...]
    detection: tuple[Detection, ...]
    coverage: tuple[Coverage, ...]
    resolution: tuple[Resolution, ...]
    turn_lengths: tuple[TurnLength, ...] = ()  # () with --quick
    idle_worker: tuple[IdleWorker, ...] = ()
    between_turns_us: float | None = None  # median, from a turn's end to the next one's start; None with --quick


THRESHOLDS = {"cuda": ((1.5, 0.5), (0.5, 0.5), (0.25, 0.25)), "cpu": ((5.0, 5.0), (2.0, 2.0), (1.0, 1.0))}
GROUP = stats.LOOKS[0]  # epochs of one plain interval


@dataclass(frozen=True)
class Measured:
    """One pair of sides of a cell: what is true of it, and what was read."""

    inject: float  # per cent of work that the branch has more
    how: str
    duration_class: str
    values: tuple[float, ...]  # epoch values, log ratios target/base
    pairs: tuple[tuple[float, float], ...]  # every kept round of the first look's epochs, ns
    sequential: dict[str, float]  # metric -> log ratio of one reading a side


Says = Callable[[Measured, float, float], str | None]  # a verdict, or None where the protocol has no reading


def examine(run: Run, blocks: Sequence[Block]) -> Selfcheck:
    """The result of a finished selfcheck. Cells that were not measured on both sides are left out, and counted in none."""
    judged = [block for block in blocks if block.judged]
    seconds = max((b.began + b.seconds for b in judged), default=0.0) - min((b.began for b in judged), default=0.0)
    busy = sum(turn.end - turn.start for block in judged for row in block.rounds for turn in row)
    evidence = aggregate(run, blocks).values()
    cells = [pair for item in evidence for pair in _measured(item)]
    plans = THRESHOLDS.get(run.machine.kind, THRESHOLDS["cpu"])
    alarms = tuple(_alarms(cells, plans))
    own = [row for row in alarms if row.protocol == "abprof" and row.threshold == plans[0][0]]
    return Selfcheck(
        run=run.id,
        began=run.began,
        arguments=run.options.arguments,
        machine=run.machine,
        versions=run.versions,
        cells=sum(bool(item.epoch_values("base", "target")) for item in evidence),
        epochs=max((len(cell.values) for cell in cells), default=0),
        seconds=seconds,
        busy_share=busy / 1e9 / seconds if seconds else 0.0,
        false_alarms=sum(row.slower + row.faster for row in own),
        alarms=alarms,
        detection=tuple(_detection(cells, plans)),
        coverage=tuple(_coverage(cells)),
        resolution=tuple(_resolution(cells)),
        turn_lengths=tuple(_turn_lengths(run, blocks)),
        idle_worker=tuple(_idle_worker(run, blocks)),
        between_turns_us=_between_turns_us(blocks),
    )


def _measured(item: CellData) -> Iterable[Measured]:
    """Every pair of sides. The branch (`target`) does the injected work; base, and base again (`target2`), do not."""
    inject, how = float(item.cell.params["inject"]), str(item.cell.params["how"])
    changed = [("base", "target"), ("target2", "target")]
    unchanged = [("base", "target2")] if inject else [("base", "target"), ("base", "target2"), ("target", "target2")]
    times = item.epoch_medians("base")
    for percent, pairs in ((inject, changed if inject else []), (0.0, unchanged)):
        for before, after in pairs:
            values = item.epoch_values(before, after)
            if values and times:
                ns = statistics.median(times)
                yield Measured(
                    inject=percent,
                    how=how,
                    duration_class=next(name for name, below in CLASSES if ns < below),
                    values=tuple(values),
                    pairs=tuple(_rounds(item, before, after)),
                    sequential=dict(_sequential(item, before, after)),
                )


def _rounds(item: CellData, before: str, after: str) -> Iterable[tuple[float, float]]:
    for rounds in item.judged:
        if rounds.epoch <= GROUP and {before, after} <= rounds.arms.keys():
            for a, b in zip(rounds.arms[before][TIME], rounds.arms[after][TIME], strict=True):
                if not (math.isnan(a) or math.isnan(b)):
                    yield float(a), float(b)


def _sequential(item: CellData, before: str, after: str) -> Iterable[tuple[str, float]]:
    for block in item.sequential:
        read = {block.arms[turn.arm]: turn.value for row in block.rounds for turn in row}
        if before in read and after in read:
            yield block.metric, math.log(read[after] / read[before])


# ---------------------------------------------------------------- what each protocol says


def stopped(values: Sequence[float], threshold: float, margin: float) -> tuple[str, int]:
    """(verdict, epochs) at the first planned look that decides, as a run would have stopped; `unclear` at the last."""
    for look in (look for look in stats.LOOKS if look <= len(values)):
        verdict = decide(values[:look], threshold, margin)
        if verdict is not None:
            return verdict, look
    return "unclear", len(values)


def _abprof(cell: Measured, threshold: float, margin: float) -> str | None:
    return stopped(cell.values, threshold, margin)[0]


def _fixed_rule(cell: Measured, threshold: float, _: float, *, metric: str) -> str | None:
    """One reading a side, and a change beyond the threshold counts: nothing says how sure that is."""
    if metric not in cell.sequential:
        return None
    low, high = stats.band(threshold)
    return "slower" if cell.sequential[metric] > high else "faster" if cell.sequential[metric] < low else "unclear"


def _pooled_u(cell: Measured, threshold: float, margin: float) -> str | None:
    """Mann-Whitney's U on all rounds of the first look's epochs, pooled, as if they were independent."""
    del threshold, margin
    if not cell.pairs:
        return None
    from scipy.stats import mannwhitneyu

    base, target = zip(*cell.pairs, strict=True)
    if float(mannwhitneyu(base, target).pvalue) >= 0.05:
        return "unclear"
    return "slower" if statistics.median(target) > statistics.median(base) else "faster"


OTHERS: dict[str, tuple[str, Says]] = {
    "seed": (
        "one process a side, base first; the mean of 100 calls; a fixed rule",
        partial(_fixed_rule, metric=SEED_METRIC),
    ),
    "do_bench": (
        "one process a side, base first; do_bench's median; a fixed rule",
        partial(_fixed_rule, metric=DO_BENCH_METRIC),
    ),
    "pooled U": ("Mann-Whitney U, p < 0.05, on abprof's own rounds pooled; no threshold", _pooled_u),
}


# ---------------------------------------------------------------- tables


def _alarms(cells: Sequence[Measured], plans: Sequence[tuple[float, float]]) -> Iterable[Alarms]:
    for name, here in _classes([cell for cell in cells if cell.inject == 0]):
        for threshold, margin in plans:
            found = [stopped(cell.values, threshold, margin) for cell in here]
            yield Alarms(
                protocol="abprof",
                rule=f"repeated intervals; same inside {margin:g} %",
                threshold=threshold,
                margin=margin,
                duration_class=name,
                cells=len(found),
                epochs=statistics.mean(epochs for _, epochs in found),
                **_count([verdict for verdict, _ in found]),
            )
        for protocol, (rule, says) in OTHERS.items():
            heard = [verdict for cell in here if (verdict := says(cell, *plans[0])) is not None]
            if heard:
                threshold = 0.0 if protocol == "pooled U" else plans[0][0]
                yield Alarms(
                    protocol=protocol,
                    rule=rule,
                    threshold=threshold,
                    duration_class=name,
                    cells=len(heard),
                    **_count(heard),
                )


def _count(verdicts: Sequence[str]) -> dict[str, int]:
    return {name: verdicts.count(name) for name in ("slower", "faster", "same", "slight", "unclear")}


def _detection(cells: Sequence[Measured], plans: Sequence[tuple[float, float]]) -> Iterable[Detection]:
    injected = [cell for cell in cells if cell.inject]
    protocols = {"abprof": _abprof} | {name: says for name, (_, says) in OTHERS.items()}
    for how, percent in sorted({(cell.how, cell.inject) for cell in injected}):
        for name, here in _classes([c for c in injected if (c.how, c.inject) == (how, percent)]):
            mean = statistics.mean(stats.percent(statistics.mean(cell.values)) for cell in here)
            for protocol, says in protocols.items():
                for threshold, margin in plans if protocol == "abprof" else plans[:1]:
                    heard = [verdict for cell in here if (verdict := says(cell, threshold, margin)) is not None]
                    if heard:
                        yield Detection(
                            protocol=protocol,
                            threshold=0.0 if protocol == "pooled U" else threshold,
                            how="sleep" if how == "sleep" else "work",
                            inject=percent,
                            duration_class=name,
                            cells=len(heard),
                            slower=heard.count("slower"),
                            faster=heard.count("faster"),
                            mean_pct=mean,
                        )


def _coverage(cells: Sequence[Measured]) -> Iterable[Coverage]:
    for name, here in _classes([cell for cell in cells if cell.inject == 0]):
        groups = [c.values[i : i + GROUP] for c in here for i in range(0, len(c.values) - GROUP + 1, GROUP)]
        plain = [stats.student_interval(group, 0.05) for group in groups]
        inside = sum(i.low <= 0 <= i.high for i in plain)
        yield Coverage(interval="student", duration_class=name, intervals=len(plain), covered=inside)
        looked = [[c.values[:look] for look in stats.LOOKS if look <= len(c.values)] for c in here]
        tried = [[stats.repeated_interval(values) for values in looks] for looks in looked if looks]
        held = sum(all(i is not None and i.low <= 0 <= i.high for i in looks) for looks in tried)
        yield Coverage(interval="repeated", duration_class=name, intervals=len(tried), covered=held)


def _resolution(cells: Sequence[Measured]) -> Iterable[Resolution]:
    for name, here in _classes([cell for cell in cells if cell.inject == 0 and len(cell.values) >= GROUP]):
        first = [stats.repeated_interval(cell.values[:GROUP]) for cell in here]
        last = [stats.repeated_interval(cell.values) for cell in here]
        yield Resolution(
            duration_class=name,
            cells=len(here),
            epoch_sd=100 * statistics.median(statistics.stdev(cell.values) for cell in here),
            first_look=statistics.median(stats.half_width_pct(i) for i in first if i is not None),
            last_look=statistics.median(stats.half_width_pct(i) for i in last if i is not None),
        )


def _classes(cells: Sequence[Measured]) -> Iterable[tuple[str, list[Measured]]]:
    """The duration classes that have cells, short to long."""
    for name, _ in CLASSES:
        here = [cell for cell in cells if cell.duration_class == name]
        if here:
            yield name, here


# ---------------------------------------------------------------- the studies' tables


def _turn_lengths(run: Run, blocks: Sequence[Block]) -> Iterable[TurnLength]:
    """A row for each kernel and length, in the order they were measured."""
    names = _names(run)
    for block in (block for block in blocks if block.metric == TURN_LENGTH):
        rows = [{turn.arm: turn.value for turn in row} for row in block.rounds]
        logs = [math.log(row[1] / row[0]) for row in rows if min(row.values()) > 0]
        if len(logs) < 2:
            continue
        scatter = turns.spread(logs)
        seconds = sum(turn.end - turn.start for row in block.rounds for turn in row) / 1e9
        # The standard error of a median is sqrt(pi / 2) sd / sqrt(n), and n grows with the time.
        error = math.sqrt(math.pi / 2) * scatter * math.sqrt(seconds / len(block.rounds))
        yield TurnLength(
            kernel=names[block.cell],
            call_ns=statistics.median(row[0] for row in rows),
            calls=block.calls,
            pairs=len(logs),
            scatter_pct=stats.percent(scatter),
            error_pct=stats.percent(error),
        )


def _idle_worker(run: Run, blocks: Sequence[Block]) -> Iterable[IdleWorker]:
    """A row for each kernel that has both visits of both kinds."""
    names = _names(run)
    visits: dict[str, dict[str, list[float]]] = {}
    for block in (block for block in blocks if block.metric in (ALONE, IDLE_SECOND)):
        values = [turn.value for row in block.rounds for turn in row if turn.value > 0]
        if values:
            visits.setdefault(block.cell, {}).setdefault(block.metric, []).append(statistics.median(values))
    for cell, found in visits.items():
        alone, beside = found.get(ALONE, []), found.get(IDLE_SECOND, [])
        if len(alone) == len(beside) == 2:
            yield IdleWorker(
                kernel=names[cell],
                alone_ns=statistics.mean(alone),
                beside_ns=statistics.mean(beside),
                alone_pct=100 * (alone[1] / alone[0] - 1),
                beside_pct=100 * (beside[1] / beside[0] - 1),
            )


def _between_turns_us(blocks: Sequence[Block]) -> float | None:
    """Median over neighbours inside the rounds of the turn lengths, which never re-allocate; None where there are none."""
    gaps = [
        (after.start - before.end) / 1000
        for block in blocks
        if block.metric == TURN_LENGTH
        for row in block.rounds
        for before, after in pairwise(row)
    ]
    return statistics.median(gaps) if gaps else None


def _names(run: Run) -> dict[str, str]:
    """Cell -> what it computes and how much of it."""
    return {cell.id: f"{cell.params.get('op')} {cell.params.get('steps')}" for cell in run.cells}
