"""What is known of a cell when it is judged: every arm's outcome over the epochs, and the epoch values of every pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from abprof import stats
from abprof.digest import Column, Digest, digest
from abprof.model import (
    Block,
    Cell,
    CheckResult,
    Status,
)

RUNS: frozenset[Status] = frozenset({"ok", "identical"})


@dataclass(frozen=True)
class ArmState:
    """An arm of one cell over all its epochs."""

    status: Status
    reason: str = ""
    log: str = ""
    check: CheckResult | None = None
    proof_broken: bool = False
    flaky: bool = False  # one epoch failed and at least two did not: ok, with a warning
    settled: bool = True  # False: one failure so far, further attempts decide
    seen: bool = True  # False: no epoch has tried it yet

    @property
    def runs(self) -> bool:
        return self.status in RUNS


@dataclass(frozen=True)
class Evidence:
    """Everything measured about one cell."""

    cell: Cell
    digests: tuple[Digest, ...]
    states: dict[str, ArmState]
    quick: bool
    allow_wrong: bool
    attempts: int  # distinct epochs that tried this cell
    metric: str  # the judged one: gpu_span, wall or reported
    blocks: tuple[Block, ...] = field(repr=False)
    read: tuple[Digest, ...] = field(default=(), repr=False)  # as they were read, where `digests` are at one clock
    sequential: tuple[Block, ...] = field(default=(), repr=False)  # timed as others do: one round, a turn a side
    sustained: tuple[Digest, ...] = field(default=(), repr=False)  # without a pause (abprof/sustained.py)
    beside: tuple[Block, ...] = field(default=(), repr=False)  # of a launch-bound cell, by graphs (abprof/graphed.py)

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

    def epoch_values(self, before: str, after: str) -> list[float]:
        """D of each epoch in which both arms ran through, in the order of epochs (log ratios after/before)."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm])

    def epoch_sustained(self, before: str, after: str) -> list[float]:
        """The same of slices without a pause."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm], self.sustained)

    def epoch_graphs(self, before: str, after: str) -> list[float]:
        """The same of calls replayed from CUDA graphs, of a launch-bound cell."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm], self.graphs)

    @cached_property
    def graphs(self) -> tuple[Digest, ...]:
        """The rounds by graphs, of graphs that hold all that a call launches."""
        return tuple(digest(block) for block in self.beside if block.rounds and not self._torn(block))

    def uncaptured(self, arm: str) -> str:
        """Why this launch-bound arm has no time in a graph; "" where it has, or is not launch-bound."""
        if any(arm in each.values for each in self.graphs):
            return ""
        torn = next((why for block in self.beside if (why := self._torn(block))), "")
        said = [block.outcomes[arm].reason for block in self.beside if arm in block.outcomes]
        return torn or next((reason for reason in said if reason), "")

    def _torn(self, block: Block) -> str:
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
        """Whether the judged times are what they would be at the cell's mean clock (abprof/digest.py)."""
        return self.read is not self.digests

    def epoch_read(self, before: str, after: str) -> list[float]:
        """The same of the times as they were read."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm], self.read)

    def epoch_cycles(self, before: str, after: str) -> list[float]:
        """The same of time x the device's clock; no epoch in which turns did not read it."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.values[arm] * digest.clocks[arm], self.read)

    def epoch_clocks(self, before: str, after: str) -> list[float]:
        """The same of the clock alone."""
        return self._epoch_ratios(before, after, lambda digest, arm: digest.clocks[arm], self.read)

    def _epoch_ratios(
        self,
        before: str,
        after: str,
        column: Callable[[Digest, str], Column],
        of: Sequence[Digest] | None = None,
    ) -> list[float]:
        if not (self.numbers(before) and self.numbers(after)):
            return []
        values = []
        for _, digests in self._by_epoch(before, after, of=self.digests if of is None else of):
            pairs = [(column(d, before), column(d, after)) for d in digests]
            first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
            both = ~(np.isnan(first) | np.isnan(second))
            if both.any():
                values.append(stats.round_median(first[both], second[both]))
        return values

    def epoch_savings(self, before: str, after: str) -> list[tuple[float, float]]:
        """What the second arm saves of the first's time in each epoch, as shares of it: by the worker's timer, and by the
        parent's clock, which no code under test can reach. No epoch in which the parent's was not told."""
        if not (self.numbers(before) and self.numbers(after)):
            return []
        found = []
        for _, digests in self._by_epoch(before, after, of=self.read or self.digests):
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
        if not self.numbers(arm):
            return []
        medians = []
        of = {"sustained": self.sustained, "graph": self.graphs}.get(clock, self.digests)
        for _, digests in self._by_epoch(arm, of=of):
            columns = [(d.walls if clock == "wall" else d.values)[arm] for d in digests]
            column = np.concatenate(columns)
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
