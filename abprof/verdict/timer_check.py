"""What speaks against a timer: the parent's clock, for which the time must have passed too, and what the device can do.

A worker runs the code under test in its own process, which can patch the timer that times it (`Event.elapsed_time`,
`time.perf_counter_ns`: seen in competitions of kernels). The parent waits for every turn, and by its own clock, which no
such code can reach, time that was saved is not waited for. It sees the whole turn, with flush, resets and the message's
way: good enough to contradict a claim, too coarse to judge by.
"""

from __future__ import annotations

from abprof.records import Comparison, Run, Verdict
from abprof.verdict import stats
from abprof.verdict.cell_data import Evidence

_ABOVE = 1.1  # of the device's best matrix products: what that reading may be too low by
_SEEN = 0.5  # of what the timer says was saved: the parent must have seen as much


def contradicted(item: Evidence, before: str, after: str, verdict: Verdict, threshold: float) -> bool:
    """Whether the parent's clock certainly (95 %, over epochs) contradicts `verdict`; False where it was not told.

    A `faster` of which the parent saw less than half. And where the host's clock judges, so that both time the same thing,
    whatever is not `slower` though the parent waited longer by more than `threshold` (per cent) than the timer says.
    """
    savings = item.epoch_savings(before, after)
    if verdict == "faster":
        seen = stats.repeated_interval([parent - _SEEN * timer for timer, parent in savings])
        if seen is not None and seen.high < 0:
            return True
    if item.metric != "wall" or verdict not in {"faster", "same", "slight"}:
        return False
    hidden = stats.repeated_interval([timer - parent for timer, parent in savings])
    return hidden is not None and hidden.low > threshold / 100


def beyond_the_device(run: Run, item: Evidence, row: Comparison) -> float | None:
    """The rate, TFLOP/s, at which a target that is `faster` does its work, where that is above what the device did at its
    best in this run (matrix products of plain torch) and the base's was not; else None."""
    known, flops = run.ceilings_of(item.device), item.cell.flops
    best = known.tflops if known else None
    if not best or not flops or row.verdict != "faster":
        return None
    before, after = (item.epoch_medians(arm) for arm in (row.from_, row.to))
    if not before or not after:
        return None
    first, second = (flops / stats.own_time(medians).value / 1e3 for medians in (before, after))
    return second if second > _ABOVE * best >= first else None
