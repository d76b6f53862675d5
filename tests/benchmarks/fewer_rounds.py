"""What runs of the same code would have said of long calls with fewer rounds an epoch.

    python -m tests.benchmarks.fewer_rounds RUN...

Each RUN is a run folder of unchanged code on a GPU, as `abprof main main --all` leaves it. Its epochs are cut to their
first one or two rounds, and the first four of them make a plain 95 % interval (Student's t) of target and of the
control against base. Prints how many lie inside the margin of 0.5 %, how many hold zero, and how many are judged at one
clock. Exit code 2 where a folder is of code that differs.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from abprof.records import Block, Proof, Run
from abprof.verdict import aggregate, stats
from tests.benchmarks.coverage import same_code

CLASSES = {"50 to 130 ms": (5e7, 1.3e8), "130 ms and longer": (1.3e8, float("inf"))}  # ns of a call
CUTS = {"all": None, "2": 2, "1": 1}  # rounds
EPOCHS, MARGIN = 4, 0.005


def main() -> int:
    found: dict[tuple[str, str], Counter[str]] = {(of, cut): Counter() for of in CLASSES for cut in CUTS}
    for run, blocks, proofs in same_code(sys.argv[1:]):
        for cut, rounds in CUTS.items():
            for of, said in told(run, [shortened(block, rounds) for block in blocks], proofs):
                found[of, cut].update(said)
    print("| time of a call | rounds | intervals | inside 0.5 % | hold zero | at one clock |")
    print("|---|---|---:|---:|---:|---:|")
    for (of, cut), count in found.items():
        print(f"| {of} | {cut} | {count['all']} | {count['inside']} | {count['zero']} | {count['clock']} |")
    return 0


def shortened(block: Block, rounds: int | None) -> Block:
    """The block's first rounds, if it judges."""
    if rounds is None or not block.judged:
        return block
    rejected = tuple(number for number in block.rejected if number < rounds)
    return msgspec.structs.replace(block, rounds=tuple(block.rounds[:rounds]), rejected=rejected)


def told(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof]) -> Iterator[tuple[str, list[str]]]:
    """Of each comparison of a long call with base: its class, and what holds of its interval."""
    for item in aggregate(run, blocks, proofs).values():
        times = item.epoch_medians("base")[:EPOCHS]
        of = next(
            (name for name, (low, high) in CLASSES.items() if times and low <= statistics.median(times) < high), ""
        )
        for arm in ("target", "control") if of else ():
            values = item.epoch_values("base", arm)[:EPOCHS]
            if len(values) < EPOCHS:
                continue
            interval = stats.student_interval(values, 0.05)
            holds = {
                "inside": interval.low > -MARGIN and interval.high < MARGIN,
                "zero": interval.low <= 0 <= interval.high,
                "clock": item.at_one_clock,
            }
            yield of, ["all", *(name for name, true in holds.items() if true)]


if __name__ == "__main__":
    raise SystemExit(main())
