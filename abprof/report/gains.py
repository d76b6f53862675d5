"""What the arms of one side say of each other: speed-ups over the ladder's steps and over peers, scaling, configurations.

A speed-up of two arms that were compared (abprof/verdict/comparison.py) is that of their turns beside each other, with interval and
verdict; of others it is the ratio of their own times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abprof.records import Observation
from abprof.report import numbers, words
from abprof.report.steps import ArmOf, number
from abprof.report.tables import Line, plain
from abprof.report.view import Group

_NUMBERS = ("", "_low", "_high")
_CONFIGURATIONS = ("autotuned", "configuration")  # facts of the form `BLOCK_M=128 num_warps=8`


@dataclass(frozen=True)
class Gain:
    """Speed-up of one arm over another of the same cell; 2 is half the time. No interval and no verdict: not compared."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""

    @property
    def text(self) -> str:
        """`1.110 × (1.104 to 1.116), faster`, `1.11 ×` where the two were not compared."""
        if self.ratio is None:
            return "-"
        if not self.verdict:
            return f"{self.ratio:.2f} ×"
        around = f"{self.low:.3f} to {self.high:.3f}" if self.low and self.high else words.NO_INTERVAL
        return f"{self.ratio:.3f} × ({around}), {self.verdict}"


def gain(group: Group, before: Observation | None, after: Observation | None, metric: str) -> Gain:
    """Speed-up of `after` over `before`."""
    times = [numbers.time_ns(one, metric) for one in (before, after)]
    if not (before and after and times[0] and times[1]):
        return Gain()
    judged = group.beside.get((after.cell, before.arm, after.arm))
    if judged is None or judged.pct is None:
        return Gain(times[0] / times[1])
    ratio, low, high = (_speedup(pct) for pct in (judged.pct, judged.high_pct, judged.low_pct))
    return Gain(ratio, low, high, judged.verdict)


def _speedup(pct: float | None) -> float | None:
    """What a change of time is as a speed-up: -50 % is 2."""
    return None if pct is None else 1 / (1 + pct / 100)


def peers(group: Group) -> dict[str, dict[str, Observation]]:
    """Peer -> cell -> what it did."""
    found: dict[str, dict[str, Observation]] = {}
    for cell, arm, seen in group.peers:
        found.setdefault(arm.peer, {})[cell.id] = seen
    return found


def efficiency(group: Group, arm: ArmOf) -> dict[tuple[str, str], float]:
    """(cell, variant) -> the growth of TFLOP/s since the smallest value of the scaled axis over the growth of that axis,
    per series of cells that agree in all other axes: (rate / first rate) / (N / first N), as the warp-specialisation
    analysis has it for 128 and 8192."""
    axis = group.workload.scaled
    series: dict[tuple[str, ...], list[tuple[float, float, tuple[str, str]]]] = {}
    for row in group.rows if axis in group.axes else ():
        size = number(row.cell.params.get(axis))
        rate = numbers.tflops(row.cell, numbers.time_ns(arm(row), row.metric))
        if size and rate:
            rest = (row.variant, *(str(row.cell.params.get(name)) for name in group.axes if name != axis))
            series.setdefault(rest, []).append((size, rate, (row.cell.id, row.variant)))
    found: dict[tuple[str, str], float] = {}
    for points in map(sorted, series.values()):
        first, slowest, _ = points[0]
        found |= {key: (rate / slowest) / (size / first) for size, rate, key in points}
    return found


# ---------------------------------------------------------------- columns of a profile CSV


def columns(group: Group, arm: ArmOf) -> dict[tuple[str, str], Line]:
    """(cell, variant) -> columns of one side: megabytes, speed-ups with interval and verdict, the cell's best step,
    scaling efficiency, and what the workload said of the arm. Which there are follows from what the workload declares and
    says, and from the peers, not from what came out."""
    arms = {(row.cell.id, row.variant): arm(row) for row in group.rows}
    scaled, beside = efficiency(group, arm), peers(group)
    ladder = group.workload.ladder
    made = {}
    for row in group.rows:
        seen, line = arm(row), {"memory_mb": _plain(row.cell.bytes and row.cell.bytes / 1e6)}
        if ladder:
            steps = {step: arms.get((row.cell.id, step)) for step in ladder}
            place = ladder.index(row.variant) if row.variant in ladder else 0
            line["baseline"], line["step_before"] = plain(ladder[0]), plain(ladder[place - 1]) if place else ""
            line |= _gain("baseline", gain(group, steps[ladder[0]], seen, row.metric))
            line |= _gain("step_before", gain(group, steps[ladder[place - 1]], seen, row.metric) if place else Gain())
            right = {step: one for step, one in steps.items() if one and one.status != "wrong"}
            timed = {step: ns for step, one in right.items() if (ns := numbers.time_ns(one, row.metric))}
            line["best_step"] = plain(min(timed, key=timed.__getitem__)) if timed else ""
        for name, by_cell in beside.items():
            line |= _gain(f"peer_{name}", gain(group, by_cell.get(row.cell.id), seen, row.metric))
        if group.workload.scaled:
            line["scaling_efficiency"] = _plain(scaled.get((row.cell.id, row.variant)))
        made[row.cell.id, row.variant] = line | dict(_facts(seen))
    return made


def _gain(over: str, of: Gain) -> Line:
    values = dict(zip(_NUMBERS, (of.ratio, of.low, of.high), strict=True))
    line = {f"speedup_over_{over}{end}": _plain(value) for end, value in values.items()}
    return line | {f"speedup_over_{over}_verdict": of.verdict}


def _facts(seen: Observation | None) -> Iterator[tuple[str, str]]:
    """A column a fact; a configuration's settings have one each: `autotuned_BLOCK_M`."""
    for name, value in (seen.facts if seen else {}).items():
        if name in _CONFIGURATIONS and "=" in str(value):
            parts = (part.partition("=") for part in str(value).split())
            yield from ((plain(f"{name}_{key}"), plain(text)) for key, _, text in parts)
        else:
            yield plain(f"fact_{name}"), plain(str(value))


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
