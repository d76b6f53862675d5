"""The same comparison on one device and on several: how much faster, and do the verdicts agree?

    python -m tests.benchmarks.many_devices 1 2 [--kind cuda] [--keep FOLDER] -- main main --workloads dense --all --epochs 4

Runs `abprof` with what stands after `--`, once for each count of devices, one after the other, with builds cached and cells'
costs and scatter taught by a first run, so that all are planned alike. A run that FOLDER has already is read and not made
again. Prints cells by epochs a second (judged turns alone, from the first block's begin to the last one's end, so that
programs' start-ups between them count and builds do not), what each is of the first, what was timed after all judged turns of
the devices (slices without a pause, of cells that are worth them by their verdicts), and the rows whose verdicts differ.
Exit code 0 when none contradicts: `slower` here and `faster` or `same` there; `unclear` contradicts nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from abprof.records import Comparison
from abprof.store import runfolder

DECIDED = ("slower", "faster", "same")


@dataclass(frozen=True)
class Measured:
    """One run: how many of its blocks were timed in how long, and its rows."""

    devices: int
    blocks: int
    seconds: float  # from the first block's begin to the last one's end
    after: float  # seconds from there to the end of what is timed after all epochs
    wall: float  # of the whole run, reports included
    rows: dict[tuple[str, str, str], Comparison]

    @property
    def rate(self) -> float:
        """Cells by epochs a second."""
        return self.blocks / self.seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", nargs="+", type=int, metavar="N")
    parser.add_argument("--kind", default="cuda", help="cuda, or simulated")
    parser.add_argument("--keep", type=Path, help="where the run folders stay")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    requested, theirs = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        runs = requested.keep or Path(folder)
        if not (runs / "first").exists():
            measured(theirs, requested.kind, max(requested.counts), runs / "first")
        return shown([measured(theirs, requested.kind, n, runs / str(n)) for n in requested.counts])


def measured(words: list[str], kind: str, devices: int, runs: Path) -> Measured:
    """Run it, unless it was, and read what it kept. Raises SystemExit where it kept nothing."""
    where = [word for number in range(devices) for word in ("--device", f"{kind}:{number}")]
    argv = [sys.executable, "-m", "abprof", *words, *where, "--runs-dir", str(runs)]
    if not runs.exists():
        subprocess.run(argv, check=False, stdout=subprocess.DEVNULL)
    folders = list(runs.glob("*/run.json"))
    if not folders:
        raise SystemExit(f"no run came of {' '.join(argv)}")
    head, blocks, _ = runfolder.read(folders[0].parent)
    if not head.ended:
        raise SystemExit(f"{folders[0].parent}: the run did not end")
    timed = [block for block in blocks if block.metric and not block.beside]
    turned = [block for block in timed if block.judged and block.rounds]  # a late profiled pass is a block too
    begin, end = min(block.began for block in turned), max(block.began + block.seconds for block in turned)
    after = max(block.began + block.seconds for block in timed) - end
    rows = {(row.cell, row.from_, row.to): row for row in head.comparisons}
    wall = datetime.fromisoformat(head.ended) - datetime.fromisoformat(head.began)
    return Measured(devices, len(turned), end - begin, after, wall.total_seconds(), rows)


def shown(runs: list[Measured]) -> int:
    """Print the table and what differs. 0 when no verdict contradicts another."""
    first = runs[0]
    print("| devices | blocks | measuring | after it | whole run | cells x epochs a second | of the first |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for run in runs:
        cells = (
            f"{run.blocks}",
            f"{run.seconds:.1f} s",
            f"{run.after:.1f} s",
            f"{run.wall:.1f} s",
            f"{run.rate:.3f}",
            f"{run.rate / first.rate:.2f}x",
        )
        print(f"| {run.devices} | {' | '.join(cells)} |")
    return int(sum([contradictions(first, run) for run in runs[1:]]) > 0)


def contradictions(one: Measured, many: Measured) -> int:
    """How many rows both decided, each otherwise. Every row that differs is printed."""
    count = 0
    differ = [
        (key, one.rows[key].verdict, row.verdict)
        for key, row in many.rows.items()
        if one.rows[key].verdict != row.verdict
    ]
    for key, here, there in differ:
        decided = here in DECIDED and there in DECIDED
        count += decided
        print(
            f"{' '.join(key)}: {here} on {one.devices}, {there} on {many.devices}{': a contradiction' if decided else ''}"
        )
    alike = f"{len(many.rows) - len(differ)} of {len(many.rows)} verdicts as on {one.devices}"
    print(f"{many.devices} devices: {alike}, {count} contradict")
    return count


if __name__ == "__main__":
    raise SystemExit(main())
