"""How long a run takes: from each cell's work, an assumed rate of the device, and the pacing rules. Right to a factor of a few."""

from __future__ import annotations

import math

from abprof.measure import matrix, turns
from abprof.records import Cell, Run
from abprof.verdict import stats

_TFLOPS_OF_A_CORE, _GBPS_OF_A_CPU = 0.02, 10.0
_TFLOPS_OF_A_GPU, _GBPS_OF_A_GPU = 300.0, 2000.0
_CALLS_TO_OPEN = 2  # at least: the first call, and one that is timed to choose the pace
RESTART = {"cuda": 1.5, "cpu": 5.0, "simulated": 0.0}  # seconds in which workers start, in an epoch after the first
PROGRAM = {"cuda": 14.0, "cpu": 10.0, "simulated": 1.8}  # seconds before a process's first workers


def estimate(run: Run, *, peers: bool) -> str:
    """One or two sentences for --dry-run: how long, on which assumption, and whether the first look fits the budget."""
    options, assumed = run.options, f"builds not counted, {_assumption(run)}"
    assumed += f"; on one of the devices of --executor {options.executor}" if options.executor else ""
    if options.quick:
        return f"about {span(measuring(run, 1, peers=peers)[1])} of measuring in one epoch, {assumed}"
    first, last = options.epochs or stats.LOOKS[0], options.epochs or stats.LOOKS[-1]
    fewest, usual = measuring(run, first, peers=peers)
    if fewest > options.budget:
        least = f"{first} epochs of the fewest rounds take about {span(fewest)}, {assumed}"
        budget = span(options.budget)
        return f"{least}: the first look does not fit into the budget of {budget}; fewer cells, or --budget"
    low, high = (min(each, options.budget) for each in (usual, measuring(run, last, peers=peers)[1]))
    most = f" if all is clear, at most {span(high)}" if high > low else ""
    return f"about {span(low)} of measuring{most}, {assumed}"


def measuring(run: Run, epochs: int, *, peers: bool) -> tuple[float, float]:
    """Seconds of so many epochs with the fewest and with the usual rounds, on one device or spread over `run.machines`."""
    if not run.machines:
        fewest, usual = epoch_seconds(run, peers=peers)
        return epochs * fewest, epochs * usual
    runnable, slots = _runnable(run, peers=peers), len(run.machines)
    packages = math.ceil(len({cell.kernel for cell, _ in runnable}) / slots)  # of one device
    starts = PROGRAM[run.machine.kind] + epochs * packages * turns.epoch_cost(run.machine.kind, 0)[0]
    cells = [cell_seconds(run, cell, arms) for cell, arms in runnable] or [(0.0, 0.0)]
    least, most = (starts + epochs * max(sum(column) / slots, *column) for column in zip(*cells, strict=True))
    return least, most


def epoch_seconds(run: Run, *, peers: bool) -> tuple[float, float]:
    """Seconds of an epoch with the fewest and with the usual rounds, on one device."""
    runnable = _runnable(run, peers=peers)
    starts = turns.epoch_cost(run.machine.kind, 0)[0] * len({cell.kernel for cell, _ in runnable})
    cells = [cell_seconds(run, cell, arms) for cell, arms in runnable]
    return starts + sum(least for least, _ in cells), starts + sum(most for _, most in cells)


def cell_seconds(run: Run, cell: Cell, arms: int) -> tuple[float, float]:
    """Seconds of one cell in an epoch with the fewest and with the usual rounds."""
    kind, call = run.machine.kind, call_seconds(run, cell)
    opening = turns.epoch_cost(kind, arms)[0] - turns.epoch_cost(kind, 0)[0] + _CALLS_TO_OPEN * arms * call
    at_least = max(call, 1e-6)
    paces = [turns.pace(kind, [at_least * 1e9] * arms, [0.0] * arms, run.options, share) for share in (0.0, 1.0)]
    least, most = (opening + pace.rounds * pace.calls * arms * at_least for pace in paces)
    return least, most


def call_seconds(run: Run, cell: Cell) -> float:
    """Seconds of a call at the assumed rates; 0 for a cell that states no work."""
    kind = run.machine.kind
    if kind == "simulated":
        return 0.0
    flops, gbps = _TFLOPS_OF_A_GPU, _GBPS_OF_A_GPU
    if kind == "cpu":
        flops, gbps = _TFLOPS_OF_A_CORE * max(1, run.machine.cpus), _GBPS_OF_A_CPU
    return max((cell.flops or 0.0) / flops / 1e12, (cell.bytes or 0.0) / gbps / 1e9)


def span(seconds: float) -> str:
    """`90 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _runnable(run: Run, *, peers: bool) -> list[tuple[Cell, int]]:
    """The cells that are measured and the number of their arms, without variants that only a package names."""
    loads = {load.name: load for load in run.workloads}
    cells = [cell for cell in run.cells if not cell.skip and cell.kernel]
    controlled = set() if len(run.sides) == 1 or run.options.quick else matrix.controls(cells, set())
    return [
        (c, len(matrix.arms(loads[c.workload], run.sides, (), control=c.id in controlled, peers=peers))) for c in cells
    ]


def _assumption(run: Run) -> str:
    if run.machine.kind == "simulated":
        return "calls that take no time"
    rates = f"{_TFLOPS_OF_A_GPU:g} TFLOP/s and {_GBPS_OF_A_GPU:g} GB/s"
    if run.machine.kind == "cpu":
        rates = f"{_TFLOPS_OF_A_CORE:g} TFLOP/s per core and {_GBPS_OF_A_CPU:g} GB/s"
    silent = sum(not (cell.flops or cell.bytes) for cell in run.cells if not cell.skip)
    state = "states" if silent == 1 else "state"
    return f"assuming {rates}" + (f"; {silent} of the cells {state} no work" if silent else "")
