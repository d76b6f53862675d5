"""The campaign of random faults on simulated workers: `python -m tests.benchmarks.fault_campaign FIRST LAST [PROCESSES]`.

Prints a line for each round as it ends, with each promise that it broke, and at the end the table of docs/RELIABILITY.md:
what happened how often, and how many rounds of it broke a promise. A campaign that is cut short still counts:
`python -m tests.benchmarks.fault_campaign --table LOG...` makes the table from what it printed, and from the numbers alone.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.simulated.campaign import drawn, play
from tests.simulated.trouble import CannotPlay

KEPT, BROKE, NOT_PLAYED = "kept", "broke", "not played"
_LINE = re.compile(rf"^round (\d+) ({KEPT}|{BROKE}|{NOT_PLAYED})")


def one(number: int) -> tuple[int, str, list[str]]:
    """The number, how it ended, and the lines to print."""
    began = time.monotonic()
    round_ = drawn(number)
    try:
        with tempfile.TemporaryDirectory() as folder:
            broken = play(round_, Path(folder))
    except CannotPlay as why:
        return number, NOT_PLAYED, [f"round {number} {NOT_PLAYED}: {why}"]
    end = BROKE if broken else KEPT
    what = round_.told.removeprefix(f"round {number}: ")
    return number, end, [f"round {number} {end}, {time.monotonic() - began:.0f} s: {what}", *broken]


def main(first: int, last: int, processes: int) -> int:
    """Play rounds FIRST to LAST - 1. 1 when a promise was broken."""
    began = time.monotonic()
    ended = []
    with ProcessPoolExecutor(processes) as pool:
        for number, end, lines in pool.map(one, range(first, last)):
            ended.append((number, end))
            print(*lines, sep="\n", flush=True)
    _table(ended)
    print(f"{time.monotonic() - began:.0f} s, {processes} at a time")
    return 1 if any(end == BROKE for _, end in ended) else 0


def _table(ended: Iterable[tuple[int, str]]) -> None:
    played: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for number, end in ended:
        count[end] += 1
        if end == NOT_PLAYED:
            continue
        round_ = drawn(number)
        words = {f"worker: {fault.word}" for fault in round_.faults} | {f"abprof: {round_.end}"}
        played.update(words)
        failed.update(words if end == BROKE else ())
        played["with faults of workers"] += bool(round_.faults)
    for word, many in sorted(played.items()):
        print(f"| {word} | {many} | {failed[word]} |")
    print(f"{count[KEPT] + count[BROKE]} rounds, {count[BROKE]} broke a promise, {count[NOT_PLAYED]} not played")


def _told(logs: Iterable[str]) -> Iterator[tuple[int, str]]:
    """What campaigns printed of their rounds; of one that was played twice, the last."""
    lines = (line for log in logs for line in Path(log).read_text().splitlines())
    found = (match for line in lines if (match := _LINE.match(line)))
    yield from sorted({int(match[1]): match[2] for match in found}.items())


if __name__ == "__main__":
    if sys.argv[1] == "--table":
        _table(_told(sys.argv[2:]))
    else:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), int((sys.argv[3:] or ["1"])[0])))
