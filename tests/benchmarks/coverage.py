"""How many 95 % intervals of runs of the same code on every side hold zero, by the length of a call.

    python -m tests.benchmarks.coverage RUN...

Each RUN is a run folder of unchanged code: `abprof main main --all`, or one that `abprof selfcheck` kept (of which the cells with
injected work count between base and base again alone). Of every pair of sides and of the control four epochs make a plain
interval (Student's t), the next four another. Pairs of a cell share their processes, so they are fewer independent ones.
Exit code 2 where a folder is of code that differs.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from abprof.extras.selfcheck import CLASSES, GROUP
from abprof.records import Block, Proof, Run
from abprof.store import runfolder
from abprof.verdict import CellData, aggregate, stats


def main() -> int:
    counted, held = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for run, blocks, proofs in same_code(sys.argv[1:]):
        for item in aggregate(run, blocks, proofs).values():
            for name, timer, holds in intervals(item):
                counted[name, timer] += 1
                held[name, timer] += holds
    print("| time of a call | read by | intervals | hold zero | |")
    print("|---|---|---:|---:|---:|")
    order = [name for name, _ in CLASSES]
    for key in sorted(counted, key=lambda key: (order.index(key[0]), key[1])):
        print(f"| {key[0]} | {key[1]} | {counted[key]} | {held[key]} | {100 * held[key] / counted[key]:.1f} % |")
    return 0


def same_code(folders: Sequence[str]) -> Iterator[tuple[Run, list[Block], list[Proof]]]:
    """The runs in these folders. Ends the program with exit code 2 at one whose code differs."""
    for folder in map(Path, folders):
        run, blocks, proofs = runfolder.read(folder)
        if not unchanged(run):
            print(f"{folder}: its sides are of different code", file=sys.stderr)
            raise SystemExit(2)
        yield run, blocks, proofs


def unchanged(run: Run) -> bool:
    """Whether all sides are one tree, or the sides of a selfcheck (its cells name the injected change)."""
    meters = all("inject" in cell.params for cell in run.cells)
    return meters or len({side.tree for side in run.sides}) == 1


def intervals(item: CellData) -> Iterator[tuple[str, str, bool]]:
    """Return a cell's duration class, its timer, and whether the interval contains zero."""
    arms = [arm for arm in item.states if not arm.startswith("peer:")]
    changed = {"target"} if item.cell.params.get("inject") else set()
    for before, after in combinations([arm for arm in arms if arm not in changed], 2):
        if variant(before) != variant(after):
            continue
        values, times = item.epoch_values(before, after), item.epoch_medians(before)
        for begin in range(0, len(values) - GROUP + 1, GROUP):
            interval = stats.student_interval(values[begin : begin + GROUP], 0.05)
            name = next(name for name, below in CLASSES if statistics.median(times) < below)
            yield name, next(block.timer for block in item.blocks if block.rounds), interval.low <= 0 <= interval.high


def variant(arm: str) -> str:
    """`control:fused` -> `fused`."""
    return arm.partition(":")[2]


if __name__ == "__main__":
    raise SystemExit(main())
