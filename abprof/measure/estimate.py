"""How long a run may take, for `--dry-run`: from each cell's work, a rough rate of the device, and the rules of turns.py.

Right to a factor of a few, and it says on what it rests. Builds and references are not counted. A run on several devices takes
at least its fair share on each, or its longest cell.
"""

from __future__ import annotations

import math

from abprof.measure import matrix, turns
from abprof.measure.sequential import PROTOCOLS
from abprof.records import Cell, Run, Workload
from abprof.verdict import stats

_TFLOPS_OF_A_CORE, _GBPS_OF_A_CPU = 0.02, 10.0
_TFLOPS_OF_A_GPU, _GBPS_OF_A_GPU = 300.0, 2000.0
_CALLS_TO_OPEN = 2  # at least: the first call, and one that is timed to choose the pace
# Seconds in which fresh workers start, in an epoch after the first.
RESTART = {"cuda": 1.5, "cpu": 5.0, "simulated": 0.0}
PROGRAM = {
    "cuda": 14.0,
    "cpu": 10.0,
    "simulated": 1.8,
}  # seconds before a process's first workers: abprof, torch, discovery


def estimate(planned: Run, *, peers: bool) -> str:
    """One or two sentences: how long, on which assumption, and whether the first look fits into the budget."""
    settings = planned.options
    rests_on = f"builds not counted, {_assumption(planned)}"
    rests_on += f"; on one of the devices of --executor {planned.options.executor}" if planned.options.executor else ""
    beside = beside_seconds(planned) / max(1, len(planned.machines))
    rests_on += f"; --protocol {settings.protocol} takes about {span(beside)} more" if beside else ""
    if settings.quick:
        return f"about {span(measuring(planned, 1, peers=peers)[1])} of measuring in one epoch, {rests_on}"
    first, last = settings.epochs or stats.LOOKS[0], settings.epochs or stats.LOOKS[-1]
    fewest, usual = measuring(planned, first, peers=peers)
    if fewest > settings.budget:
        least = f"{first} epochs of the fewest rounds take about {span(fewest)}, {rests_on}"
        return (
            f"{least}: the first look does not fit into the budget of {span(settings.budget)}; fewer cells, or --budget"
        )
    low, high = (min(each, settings.budget) for each in (usual, measuring(planned, last, peers=peers)[1]))
    least = f"about {span(low)} of measuring"
    return f"{least}{f' if all is clear, at most {span(high)}' if high > low else ''}, {rests_on}"


def measuring(planned: Run, epochs: int, *, peers: bool) -> tuple[float, float]:
    """Seconds until so many epochs of every cell are measured, of the fewest rounds and of as many as the rules give: on one
    device, or spread over those of `planned.machines`."""
    if not planned.machines:
        fewest, usual = epoch_seconds(planned, peers=peers)
        return epochs * fewest, epochs * usual
    runnable, slots = _runnable(planned, peers=peers), len(planned.machines)
    packages = math.ceil(len({cell.kernel for cell, _ in runnable}) / slots)  # of one device
    starts = PROGRAM[planned.machine.kind] + epochs * packages * turns.epoch_cost(planned.machine.kind, 0)[0]
    cells = [cell_seconds(planned, cell, arms) for cell, arms in runnable] or [(0.0, 0.0)]
    least, most = (starts + epochs * max(sum(column) / slots, *column) for column in zip(*cells, strict=True))
    return least, most


def epoch_seconds(planned: Run, *, peers: bool) -> tuple[float, float]:
    """An epoch of the fewest rounds, and one of as many as the rules give, on one device."""
    cells = _runnable(planned, peers=peers)
    fewest = usual = sum(turns.epoch_cost(planned.machine.kind, 0)[0] for _ in {cell.kernel for cell, _ in cells})
    for cell, arms in cells:
        least, most = cell_seconds(planned, cell, arms)
        fewest += least
        usual += most
    return fewest, usual


def cell_seconds(planned: Run, cell: Cell, arms: int) -> tuple[float, float]:
    """One cell's part of an epoch: of the fewest rounds, and of as many as the rules give."""
    kind, call = planned.machine.kind, call_seconds(planned, cell)
    opening = turns.epoch_cost(kind, arms)[0] - turns.epoch_cost(kind, 0)[0] + _CALLS_TO_OPEN * arms * call
    return opening + _turns(planned, call, arms, 0.0), opening + _turns(planned, call, arms, 1.0)


def beside_seconds(planned: Run) -> float:
    """What `--protocol` adds after the epochs, whatever the budget: one process a side and package."""
    protocol = PROTOCOLS.get(planned.options.protocol)
    if protocol is None:
        return 0.0
    runnable = [cell for cell in planned.cells if not cell.skip and cell.kernel]
    loads = {load.name: load for load in planned.workloads}
    starts = len(planned.sides) * len({cell.kernel for cell in runnable}) * turns.epoch_cost(planned.machine.kind, 0)[0]
    calls = protocol.warm_up + protocol.calls + _CALLS_TO_OPEN
    return starts + sum(
        _arms(planned, loads[cell.workload], control=False, peers=False) * calls * call_seconds(planned, cell)
        for cell in runnable
    )


def call_seconds(planned: Run, cell: Cell) -> float:
    """What a call takes at the assumed rates; 0 for a cell that states no work."""
    of = planned.machine
    if of.kind == "simulated":
        return 0.0
    flops, gbps = (_TFLOPS_OF_A_GPU, _GBPS_OF_A_GPU) if of.kind == "cuda" else (_cpu_tflops(planned), _GBPS_OF_A_CPU)
    return max((cell.flops or 0.0) / flops / 1e12, (cell.bytes or 0.0) / gbps / 1e9)


def span(seconds: float) -> str:
    """`90 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _runnable(planned: Run, *, peers: bool) -> list[tuple[Cell, int]]:
    """The cells that are measured, and how many take turns in each."""
    loads = {load.name: load for load in planned.workloads}
    cells = [cell for cell in planned.cells if not cell.skip and cell.kernel]
    alone = len(planned.sides) == 1 or planned.options.quick
    controlled = set() if alone else matrix.controls(cells, set())
    return [(c, _arms(planned, loads[c.workload], control=c.id in controlled, peers=peers)) for c in cells]


def _arms(planned: Run, load: Workload, *, control: bool, peers: bool) -> int:
    """As far as is known before the builds: variants that only a package names come on top."""
    return len(matrix.arms(load, planned.sides, (), control=control, peers=peers))


def _turns(planned: Run, call: float, arms: int, share: float) -> float:
    pace = turns.pace(planned.machine.kind, [max(call, 1e-6) * 1e9] * arms, [0.0] * arms, planned.options, share)
    return pace.rounds * pace.calls * arms * max(call, 1e-6)


def _cpu_tflops(planned: Run) -> float:
    return _TFLOPS_OF_A_CORE * max(1, planned.machine.cpus)


def _assumption(planned: Run) -> str:
    kind = planned.machine.kind
    if kind == "simulated":
        return "calls that take no time"
    rates = f"{_TFLOPS_OF_A_GPU:g} TFLOP/s and {_GBPS_OF_A_GPU:g} GB/s"
    if kind == "cpu":
        rates = f"{_TFLOPS_OF_A_CORE:g} TFLOP/s per core and {_GBPS_OF_A_CPU:g} GB/s"
    silent = sum(not (cell.flops or cell.bytes) for cell in planned.cells if not cell.skip)
    state = "states" if silent == 1 else "state"
    return f"assuming {rates}" + (f"; {silent} of the cells {state} no work" if silent else "")
