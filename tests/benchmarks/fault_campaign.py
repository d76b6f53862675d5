"""The campaign of random faults: `python -m tests.benchmarks.fault_campaign FIRST LAST [--processes N] [--real]`.

On simulated workers, of which rounds from 1000 on spread their run over two devices; `--real`: with torch's, on a CPU.
Prints a line for each round as it ends, with each promise that it broke, and at the end the table of docs/RELIABILITY.md:
what happened how often, and how many rounds of it broke a promise. A campaign that is cut short still counts:
`python -m tests.benchmarks.fault_campaign --table LOG...` makes the table from what it printed, and from the numbers alone.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests import real_faults
from tests.simulated import campaign
from tests.simulated.trouble import CannotPlay

KEPT, BROKE, NOT_PLAYED = "kept", "broke", "not played"
_LINE = re.compile(rf"^(real )?round (\d+) ({KEPT}|{BROKE}|{NOT_PLAYED})")


def one(number: int, *, real: bool) -> tuple[int, str, list[str]]:
    """The number, how it ended, and the lines to print."""
    began = time.monotonic()
    name = f"real round {number}" if real else f"round {number}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            broken = (
                real_faults.play(real_faults.drawn(number), place)
                if real
                else campaign.play(campaign.drawn(number), place)
            )
    except CannotPlay as why:
        return number, NOT_PLAYED, [f"{name} {NOT_PLAYED}: {why}"]
    end = BROKE if broken else KEPT
    reported = (real_faults if real else campaign).drawn(number).told
    return number, end, [f"{name} {end}, {time.monotonic() - began:.0f} s: {reported}", *broken]


def main(numbers: range, processes: int, *, real: bool) -> int:
    """Play these rounds. 1 when a promise was broken."""
    began = time.monotonic()
    ended = []
    with ProcessPoolExecutor(processes) as pool:
        for number, end, lines in pool.map(partial(one, real=real), numbers):
            ended.append((number, end))
            print(*lines, sep="\n", flush=True)
    _table(ended, real=real)
    print(f"{time.monotonic() - began:.0f} s, {processes} at a time")
    return 1 if any(end == BROKE for _, end in ended) else 0


def _table(ended: Iterable[tuple[int, str]], *, real: bool) -> None:
    played: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for number, end in ended:
        count[end] += 1
        if end == NOT_PLAYED:
            continue
        words = _words(number, real=real)
        played.update(words)
        failed.update(words if end == BROKE else ())
    for word, many in sorted(played.items()):
        print(f"| {word} | {many} | {failed[word]} |")
    print(f"{count[KEPT] + count[BROKE]} rounds, {count[BROKE]} broke a promise, {count[NOT_PLAYED]} not played")


def _words(number: int, *, real: bool) -> set[str]:
    """What happens in the round."""
    if real:
        planted = real_faults.drawn(number).planted
        faults, end = {planted.deed} if planted else set(), real_faults.drawn(number).end
    else:
        faults, end = {fault.word for fault in campaign.drawn(number).faults}, campaign.drawn(number).end
    return {f"worker: {word}" for word in faults} | {f"abprof: {end}"} | ({"any fault of workers"} if faults else set())


def _told(logs: Iterable[Path], *, real: bool) -> Iterator[tuple[int, str]]:
    """What campaigns printed of their rounds; of one that was played twice, the last."""
    lines = (line for log in logs for line in log.read_text().splitlines())
    found = (match for line in lines if (match := _LINE.match(line)) and bool(match[1]) == real)
    yield from sorted({int(match[2]): match[3] for match in found}.items())


def table(logs: Iterable[Path], *, real: bool = False) -> None:
    """Print the table of the rounds that these logs tell of."""
    _table(_told(logs, real=real), real=real)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("last", type=int, nargs="?", default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--table", nargs="+", type=Path, default=[], metavar="LOG")
    return parser.parse_args()


if __name__ == "__main__":
    requested = _asked()
    if requested.table:
        table(requested.table, real=requested.real)
    else:
        sys.exit(main(range(requested.first, requested.last), requested.processes, real=requested.real))
