"""Estimate a run's duration from each cell's work, an assumed rate of the device, and the number of calls to time.

The estimate may be wrong by a factor of a few.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from abprof.measure import followup, matrix, turns
from abprof.records import LOOKS, Cell, Run
from abprof.records.quantities import plural, span

RATES = {"cuda": (300.0, 2000.0), "cpu": (0.02, 10.0), "simulated": (math.inf, math.inf)}  # TFLOP/s (a core's), GB/s
_CALLS_TO_OPEN = 2  # calls to open an arm, at least: the first, and one timed to choose the pace
# Usual standard deviation of an epoch's value in per cent, for calls up to so many seconds (docs/MEASUREMENT.md).
_SCATTER = {
    "cuda": ((30e-6, 0.8), (math.inf, 0.3)),
    "cpu": ((0.3e-3, 1.0), (math.inf, 3.6)),
    "simulated": ((math.inf, 0.3),),
}
PROGRAM = {"cuda": 7.0, "cpu": 10.0, "simulated": 1.8}  # seconds from a process's start to its first worker


@dataclass(frozen=True)
class Estimate:
    """Estimated times of a run, in seconds."""

    run: Run

    def text(self, needed: Callable[[float, float, float], int], *, peers: bool) -> tuple[str, bool]:
        """Return a text that forecasts the run's duration, and whether the first look fits into the budget.

        `needed(scatter, margin, seconds)` returns the epochs that an unchanged cell takes to be `same`, from the
        standard deviation of an epoch's value and the margin (per cent) and the seconds of a call.
        """
        options, (tflops, gbps) = self.run.options, self._rates()
        silent = sum(not (cell.flops or cell.bytes) for cell in self.run.cells if not cell.skip)
        assumed = f"builds not counted, assuming {tflops:g} TFLOP/s and {gbps:g} GB/s"
        assumed += f", and no time for {silent} of the cells, which state no work" if silent else ""
        if options.quick:
            return f"about {span(self._seconds(1, peers=peers))} of measuring in one epoch, {assumed}", True
        first, last = options.epochs or LOOKS[0], options.epochs or LOOKS[-1]
        low, high = (self._seconds(epochs, peers=peers) for epochs in (first, last))
        if low > options.budget:
            least = f"{first} epochs take about {span(low)}, {assumed}"
            budget = span(options.budget)
            missed = (
                f"the first look does not fit into the budget of {budget}, which decides the shortest cells or none"
            )
            return f"{least}: {missed}; fewer cells, or --budget", False
        most = f" if the first look decides, at most {span(min(high, options.budget))}" if high > low else ""
        about = f"about {span(low)} of measuring{most}, {assumed}"
        start = self._seconds(0, peers=peers)
        each = self._seconds(1, peers=peers) - start
        epochs = min(last, int((options.budget - start) / each)) if each else last
        cells = [cell for cell in self.run.cells if not (cell.skip or cell.id.endswith("/"))]  # not of broken workloads
        decided = f"{sum(epochs >= self._needed(cell, needed) for cell in cells)} of {plural(len(cells), 'cell')}"
        decided = f"at most {decided}" if silent else decided
        return f"{about}; {epochs} epochs fit into the budget, enough to decide {decided} if nothing changed", True

    def _needed(self, cell: Cell, needed: Callable[[float, float, float], int]) -> int:
        call, options = self.call(cell), self.run.options
        scatter = next(sd for longest, sd in _SCATTER[self.run.machine.kind] if call <= longest)
        return needed(scatter, min(options.margin, options.threshold_of(cell.id)), call)

    def _seconds(self, epochs: int, *, peers: bool) -> float:
        """Return the seconds of `epochs` epochs, shared among the run's machines."""
        start = PROGRAM[self.run.machine.kind] if self.run.machines else 0.0
        return epochs * self.epoch(peers=peers) / max(1, len(self.run.machines)) + start

    def epoch(self, *, peers: bool) -> float:
        """Return the seconds of an epoch of all cells on one device."""
        loads = {load.name: load for load in self.run.workloads}
        cells = [cell for cell in self.run.cells if not cell.skip and cell.kernel]
        controlled = matrix.controls(cells, self.run.sides, quick=self.run.options.quick)
        seconds = turns.epoch_cost(self.run.machine.kind, 0) * len({cell.kernel for cell in cells})
        for cell in cells:
            arms = matrix.arms(loads[cell.workload], self.run.sides, (), control=cell.id in controlled, peers=peers)
            seconds += self.cell(cell, len(arms))
        return seconds

    def cell(self, cell: Cell, arms: int) -> float:
        """Return the seconds of one cell with `arms` arms in an epoch."""
        kind, call = self.run.machine.kind, self.call(cell)
        set_up = turns.epoch_cost(kind, arms) - turns.epoch_cost(kind, 0) + _CALLS_TO_OPEN * arms * call
        at_least = max(call, 1e-6)
        pace = turns.pace(kind, [at_least * 1e9] * arms, [0.0] * arms, self.run.options)
        seconds = set_up + pace.rounds * pace.calls * arms * at_least
        if self.run.options.regime == "sustained" and not self.run.options.quick:
            slices = (1 + 2 * arms) * followup.slice_calls(at_least * 1e9, arms)
            seconds += (slices + _CALLS_TO_OPEN * arms) * at_least
        return seconds

    @property
    def start_up(self) -> float:
        """Return the seconds of a process that gives a first look, without those of its cells."""
        kind = self.run.machine.kind
        return PROGRAM[kind] + LOOKS[0] * turns.epoch_cost(kind, 0)

    def call(self, cell: Cell) -> float:
        """Return the seconds of a call at the assumed rates; 0 if the cell states no work."""
        tflops, gbps = self._rates()
        return max((cell.flops or 0.0) / tflops / 1e12, (cell.bytes or 0.0) / gbps / 1e9)

    def _rates(self) -> tuple[float, float]:
        tflops, gbps = RATES[self.run.machine.kind]
        return tflops * (max(1, self.run.machine.cpus) if self.run.machine.kind == "cpu" else 1), gbps
