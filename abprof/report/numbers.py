"""Numbers that follow from a cell's observation: milliseconds, TFLOP/s, GB/s, phases and their residual."""

from __future__ import annotations

from dataclasses import dataclass

from abprof.records import SEQUENTIAL_METRICS, Cell, Metric, Observation, Run

RESIDUAL, TOTAL = "residual", "total"


@dataclass(frozen=True)
class Breakdown:
    """An arm's phases in ns per call, from a pass of their own; None: the range never ran, or there was no pass."""

    phases: dict[str, float | None]  # of the cell's own direction
    total: float | None
    residual: float | None
    others: dict[
        str, float
    ]  # of the other direction, by their full names: a backward call may compute the output again

    @property
    def all(self) -> dict[str, float | None]:
        """Every phase that may stand beside the residual, the cell's own first."""
        return {**self.phases, **self.others}


def metric(observation: Observation | None, name: str) -> Metric | None:
    """The metric of this name, or None."""
    return observation.metrics.get(name) if observation else None


def time_ns(observation: Observation | None, name: str) -> float | None:
    """Time of a call in ns by the metric `name`."""
    found = metric(observation, name)
    return found.value if found else None


def sequential(run: Run) -> list[str]:
    """The metrics of this run that were timed as others do (abprof/measure/sequential.py): `seed_latency`, `do_bench_latency`."""
    return [name for name in SEQUENTIAL_METRICS if any(name in seen.metrics for seen in run.observations)]


def tflops(cell: Cell, ns: float | None) -> float | None:
    """TFLOP/s = flops / seconds / 1e12, by the workload's own FLOP convention."""
    return cell.flops / ns / 1e3 if cell.flops and ns else None


def gbps(cell: Cell, ns: float | None) -> float | None:
    """GB/s = bytes / seconds / 1e9, by the workload's own count of ideal bytes."""
    return cell.bytes / ns if cell.bytes and ns else None


def breakdown(cell: Cell, observation: Observation | None) -> Breakdown:
    """The phases of this cell's direction, their names without it (`fwd_run` of a forward cell is `run`)."""
    recorded = dict(observation.phases) if observation and observation.phases else {}
    total, residual = recorded.pop(TOTAL, None), recorded.pop(RESIDUAL, None)
    here = str(cell.params.get("direction", ""))
    away = {"fwd": "bwd_", "bwd": "fwd_"}.get(here, "\0")
    mine = {name.removeprefix(f"{here}_"): ns for name, ns in recorded.items() if not name.startswith(away)}
    others = {name: ns for name, ns in recorded.items() if name.startswith(away) and ns is not None}
    return Breakdown(mine, total, residual, others)
