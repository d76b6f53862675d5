"""By how much rounds of one process, and fresh processes, differ in runs of the same code: what more of either could tell.

    python -m tests.benchmarks.processes RUN...

Each RUN is a run folder of unchanged code on a GPU, as `abprof main main --all` leaves it. Prints, of each cell whose calls
take 10 ms and more, at one clock, the standard deviation of a round's log ratio of target to base around its epoch's mean,
what such rounds alone would make medians of epochs scatter by, and what those do scatter by. Epochs of a single round tell
nothing of the first. Exit code 2 where a folder is of code that differs.
"""

from __future__ import annotations

import math
import statistics
import sys

from abprof.records import messages as wire
from abprof.verdict import CellData, aggregate
from tests.benchmarks.coverage import same_code

HEAD = "| workload | a call | epochs | rounds | of a round | epochs by rounds alone | epochs |"


def main() -> int:
    rows = [row(item) for kept in same_code(sys.argv[1:]) for item in aggregate(*kept).values()]
    print(HEAD, "|---|---:|---:|---:|---:|---:|---:|", *filter(None, rows), sep="\n")
    return 0


def row(item: CellData) -> str:
    """A cell's line; "" where its calls are shorter, or two epochs of several rounds are not there."""
    epochs = ratios(item)
    times = item.epoch_medians("base") or [0.0]
    several = [each for each in epochs if len(each) > 1]
    if statistics.median(times) < wire.MIDDLE_CALL or len(several) < 2:
        return ""
    inside = statistics.fmean(statistics.variance(each) for each in several)
    alone = statistics.fmean(inside * of_a_median(len(each)) for each in epochs)
    between = statistics.stdev(statistics.median(each) for each in epochs)
    shown = " | ".join(f"{100 * sd:.2f} %" for sd in (math.sqrt(inside), math.sqrt(alone), between))
    rounds = " to ".join(dict.fromkeys(str(each) for each in (min(map(len, epochs)), max(map(len, epochs)))))
    return f"| {item.cell.workload} | {statistics.median(times) / 1e6:.1f} ms | {len(epochs)} | {rounds} | {shown} |"


def ratios(item: CellData) -> list[list[float]]:
    """Of each epoch, its rounds' log ratios of target to base in cycles."""
    found = []
    for block in item.blocks:
        kept = [row for number, row in enumerate(block.rounds) if number not in block.rejected]
        cycles = [{block.arms[turn.arm]: turn.value * turn.mhz for turn in row} for row in kept]
        logs = [math.log(row["target"] / row["base"]) for row in cycles if row.get("target") and row.get("base")]
        found += [logs] if logs and block.judged else []
    return found


def of_a_median(count: int) -> float:
    """Its variance, of so many normal values of variance 1; up to two of them it is their mean."""
    return (math.pi / 2 if count > 2 else 1.0) / count


if __name__ == "__main__":
    raise SystemExit(main())
