"""What is known of a cell when it is judged: every arm's outcome over the epochs, and the epoch values of every pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from abprof.records import Block, Cell, CheckResult, Status
from abprof.verdict import stats
from abprof.verdict.columns import Column, Digest, at_one_clock, digest

P = ParamSpec("P")
T = TypeVar("T")
RUNS: frozenset[Status] = frozenset({"ok", "identical"})


@dataclass(frozen=True)
class ArmState:
    """An arm of one cell over all its epochs."""

    status: Status
    reason: str = ""
    log: str = ""
    at: str = ""  # the workload's own function that raised it, and its file
    check: CheckResult | None = None
    proof_broken: bool = False
    flaky: bool = False  # one epoch failed and at least two did not: ok, with a warning
    settled: bool = True  # False: one failure so far, further attempts decide
    seen: bool = True  # False: no epoch has tried it yet

    @property
    def runs(self) -> bool:
        return self.status in RUNS


def _values(digest: Digest, arm: str) -> Column:
    return digest.values[arm]


def _clocks(digest: Digest, arm: str) -> Column:
    return digest.clocks[arm]


def _cycles(digest: Digest, arm: str) -> Column:
    return digest.values[arm] * digest.clocks[arm]


@dataclass(frozen=True)
class Columns:
    """A cell's rounds."""

    read: tuple[Digest, ...]  # as they were read
    judged: tuple[Digest, ...]  # at one clock where that is quieter, else `read`
    sustained: tuple[Digest, ...]  # without a pause (abprof/measure/sustained.py)
    graphs: tuple[Digest, ...]  # by graphs that hold all that a call launches


class Desk:
    """Where one cell's rounds lie open at a time, with what was read of them: of ten thousand cells all together would fill
    the memory."""

    def __init__(self) -> None:
        self._open: tuple[Evidence, Columns] | None = None
        self._numbers: tuple[Evidence, dict[object, list[Any]]] | None = None

    def numbers(self, item: Evidence) -> dict[object, list[Any]]:
        """What was read of this cell's rounds since they lie open."""
        if self._numbers is None or self._numbers[0] is not item:
            self._numbers = item, {}
        return self._numbers[1]

    def columns(self, item: Evidence) -> Columns:
        """This cell's. Raises ValueError on a judged time that is not positive and finite."""
        if self._open is None or self._open[0] is not item:
            read = tuple(digest(block) for block in item.blocks)
            whole = (block for block in item.beside if block.rounds and not item.torn(block))
            columns = Columns(
                read=read,
                judged=at_one_clock(read) or read,
                sustained=tuple(digest(block) for block in item.pauseless),
                graphs=tuple(digest(block) for block in whole),
            )
            self._open = item, columns
        return self._open[1]


def _read_once(method: Callable[Concatenate[Evidence, P], list[T]]) -> Callable[Concatenate[Evidence, P], list[T]]:
    """What was read of the rounds once is asked for again and again."""

    @wraps(method)
    def known(self: Evidence, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        key = method.__name__, args, tuple(kwargs.items())
        numbers = self.desk.numbers(self)
        if key not in numbers:
            numbers[key] = method(self, *args, **kwargs)
        return list(numbers[key])

    return known


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything measured about one cell, for one head of a run."""

    cell: Cell
    states: dict[str, ArmState]
    quick: bool
    allow_wrong: bool
    attempts: int  # distinct epochs that tried this cell
    metric: str  # the judged one: gpu_span, wall or reported
    blocks: tuple[Block, ...] = field(repr=False)
    sequential: tuple[Block, ...] = field(default=(), repr=False)  # timed as others do: one round, a turn a side
    pauseless: tuple[Block, ...] = field(default=(), repr=False)  # slices without a pause (abprof/measure/sustained.py)
    beside: tuple[Block, ...] = field(
        default=(), repr=False
    )  # of a launch-bound cell, by graphs (abprof/measure/graphs.py)
    desk: Desk = field(default_factory=Desk, repr=False)
    _concluded: dict[object, Any] = field(default_factory=dict, repr=False)

    def once(self, question: object, answer: Callable[[], T]) -> T:
        """What this cell says to a question, worked out when it is asked for the first time. All that the answer is made of
        must be the evidence, the run's head that it was gathered for, and the question itself (abprof/verdict/cache.py)."""
        if question not in self._concluded:
            self._concluded[question] = answer()
        known: T = self._concluded[question]
        return known

    def state(self, arm: str) -> ArmState:
        return self.states.get(arm, ArmState("missing", f"there is no {arm}", seen=False))

    @property
    def device(self) -> str:
        """Which of the run's devices it was measured on; "" in a run on one, and where it was not."""
        return next((block.device for block in self.blocks if block.device), "")

    def numbers(self, arm: str) -> bool:
        """Whether this arm's times may be shown: a speed is never reported on a wrong answer, nor on wrong code."""
        state = self.state(arm)
        return state.runs or (state.status == "wrong" and self.allow_wrong)

    @property
    def digests(self) -> tuple[Digest, ...]:
        """The rounds that are judged."""
        return self.desk.columns(self).judged

    def protocols(self, arm: str) -> list[str]:
        """How the arm was timed, each way once."""
        return [*dict.fromkeys(self._protocols(arm))]

    @_read_once
    def _protocols(self, arm: str) -> list[str]:
        return [digest.protocol for digest in self.digests if arm in digest.values]

    def epoch_values(self, before: str, after: str) -> list[float]:
        """D of each epoch in which both arms ran through, in the order of epochs (log ratios after/before)."""
        return self._epoch_ratios(before, after, "judged")

    def epoch_sustained(self, before: str, after: str) -> list[float]:
        """The same of slices without a pause."""
        return self._epoch_ratios(before, after, "sustained")

    def epoch_graphs(self, before: str, after: str) -> list[float]:
        """The same of calls replayed from CUDA graphs, of a launch-bound cell."""
        return self._epoch_ratios(before, after, "graphs")

    def uncaptured(self, arm: str) -> str:
        """Why this launch-bound arm has no time in a graph; "" where it has, or is not launch-bound."""
        if not self.beside or any(arm in each.values for each in self.desk.columns(self).graphs):
            return ""
        torn = next((why for block in self.beside if (why := self.torn(block))), "")
        said = [block.outcomes[arm].reason for block in self.beside if arm in block.outcomes]
        return torn or next((reason for reason in said if reason), "")

    def torn(self, block: Block) -> str:
        """What is against a block's graphs: of one that runs less than the call launches a part went elsewhere."""
        for arm, nodes in block.nodes.items():
            told = [o.census for o in (b.outcomes.get(arm) for b in self.blocks) if o is not None and o.census]
            for census in (one for one in told if one.on_device and not one.missing):
                count = sum(launch.count for launch in census.launches)
                if nodes < count:
                    return f"part: the graph of {arm} runs {nodes} of the {count} that a call launches"
        return ""

    @property
    def at_one_clock(self) -> bool:
        """Whether the judged times are what they would be at the cell's mean clock (abprof/verdict/columns.py)."""
        return any(self._at_one_clock())

    @_read_once
    def _at_one_clock(self) -> list[bool]:
        columns = self.desk.columns(self)
        return [columns.read is not columns.judged]

    def epoch_read(self, before: str, after: str) -> list[float]:
        """The same of the times as they were read."""
        return self._epoch_ratios(before, after, "read")

    def epoch_cycles(self, before: str, after: str) -> list[float]:
        """The same of time x the device's clock; no epoch in which turns did not read it."""
        return self._epoch_ratios(before, after, "read", _cycles)

    def epoch_clocks(self, before: str, after: str) -> list[float]:
        """The same of the clock alone."""
        return self._epoch_ratios(before, after, "read", _clocks)

    @_read_once
    def _epoch_ratios(
        self, before: str, after: str, of: str, column: Callable[[Digest, str], Column] = _values
    ) -> list[float]:
        if not (self.numbers(before) and self.numbers(after)):
            return []
        values = []
        for _, digests in self._by_epoch(before, after, of=getattr(self.desk.columns(self), of)):
            pairs = [(column(d, before), column(d, after)) for d in digests]
            first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
            both = ~(np.isnan(first) | np.isnan(second))
            if both.any():
                values.append(stats.round_median(first[both], second[both]))
        return values

    @_read_once
    def epoch_savings(self, before: str, after: str) -> list[tuple[float, float]]:
        """What the second arm saves of the first's time in each epoch, as shares of it: by the worker's timer, and by the
        parent's clock, which no code under test can reach. No epoch in which the parent's was not told."""
        if not (self.numbers(before) and self.numbers(after)):
            return []
        found = []
        for _, digests in self._by_epoch(before, after, of=self.desk.columns(self).read):
            timer = np.concatenate([digest.values[before] - digest.values[after] for digest in digests])
            parent = np.concatenate([digest.waits[before] - digest.waits[after] for digest in digests])
            told = ~(np.isnan(timer) | np.isnan(parent))
            if told.any():
                whole = float(np.nanmedian(np.concatenate([digest.values[before] for digest in digests])))
                found.append((float(np.median(timer[told])) / whole, float(np.median(parent[told])) / whole))
        return found

    def epoch_medians(self, arm: str, clock: str = "value") -> list[float]:
        """The arm's median time of each epoch, ns per call: `clock` is "value" (the judged metric), "wall", "sustained" or
        "graph"."""
        if clock == "value":  # which causes and warnings, of all cells together, ask for again
            return list(self.once(("medians", arm), lambda: tuple(self._epoch_medians(arm, clock))))
        return self._epoch_medians(arm, clock)

    @_read_once
    def _epoch_medians(self, arm: str, clock: str) -> list[float]:
        if not self.numbers(arm):
            return []
        medians = []
        columns = self.desk.columns(self)
        of = {"sustained": columns.sustained, "graph": columns.graphs}.get(clock, columns.judged)
        for _, digests in self._by_epoch(arm, of=of):
            column = np.concatenate([(d.walls if clock == "wall" else d.values)[arm] for d in digests])
            column = column[~np.isnan(column)]
            if column.size:
                medians.append(float(np.median(column)))
        return medians

    def _by_epoch(self, *arms: str, of: Sequence[Digest]) -> list[tuple[int, list[Digest]]]:
        """Digests in which all `arms` ran through, grouped by epoch: one epoch is one unit, however many blocks."""
        groups: dict[int, list[Digest]] = {}
        for each in of:
            if all(arm in each.values and self._usable(each, arm) for arm in arms):
                groups.setdefault(each.epoch, []).append(each)
        return sorted(groups.items())

    def _usable(self, digest: Digest, arm: str) -> bool:
        outcome = digest.outcomes.get(arm)
        return outcome is None or outcome.status in RUNS or (outcome.status == "wrong" and self.allow_wrong)
