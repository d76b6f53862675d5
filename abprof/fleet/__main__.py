"""`python -m abprof.fleet SHARD.json [--with PID] [--more]`: measure a shard here, and print its news (messages.py).

With `--more` the files of further shards of the run come on standard input, a line each, whenever the one before has ended. The
program ends with its input, or if no file comes for a long time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from abprof.fleet.messages import IDLE, REPEAT_AFTER, Ended, News, read_shard
from abprof.fleet.shard_worker import ShardWorker
from abprof.measure.resources import signals
from abprof.records.errors import AbprofError, Exit
from abprof.system import checksummed as sealed
from abprof.system.processes import dies_with


class _Writer:
    """Writes the news of one shard after the other, and counts each one's lines."""

    def __init__(self, descriptor: int) -> None:
        self._out = descriptor
        self.begin(0)

    def begin(self, shard: int) -> None:
        """Start counting; 0 for a shard whose number is not known yet."""
        self._shard, self._lines, self._last = shard, 0, b""

    def tell(self, news: News) -> None:
        """Write one line. Raises OSError if the reader is gone."""
        line = memoryview(sealed.line(news))
        while line:
            line = line[os.write(self._out, line) :]
        self._lines += 1

    def end(self, ended: Ended) -> None:
        """Write the last line."""
        self._last = sealed.line(msgspec.structs.replace(ended, lines=self._lines, shard=self._shard))
        self.repeat_end()

    def repeat_end(self) -> None:
        """Write the last line again: a reader that missed it would wait for ever."""
        with contextlib.suppress(OSError):
            os.write(self._out, self._last)


def _further(orders: int, remind: Callable[[], None]) -> Iterator[Path]:
    """Yield the files of further shards as they come, calling `remind` now and then."""
    rest, end = b"", time.monotonic() + IDLE
    while time.monotonic() < end:
        if not select.select([orders], [], [], REPEAT_AFTER)[0]:
            remind()
            continue
        if not (more := os.read(orders, 65536)):
            return
        *whole, rest = (rest + more).split(b"\n")
        yield from (Path(os.fsdecode(line)) for line in whole)
        end = time.monotonic() + IDLE


def main(argv: list[str] | None = None) -> int:
    """Return the exit code, which is for people: the coordinator reads the news."""
    parser = argparse.ArgumentParser(prog="python -m abprof.fleet")
    parser.add_argument("shard", type=Path)
    parser.add_argument("--with", dest="parent", type=int, help="end when this process, which started it, is gone")
    parser.add_argument("--more", action="store_true", help="further shards' files come on standard input")
    options = parser.parse_args(argv)
    if options.parent:
        dies_with(options.parent)
    # News and orders have descriptors of their own: what anything prints goes to standard error, and no child reads orders.
    out, orders = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    writer = _Writer(out)
    try:
        with signals(), ShardWorker() as worker:
            further = _further(orders, writer.repeat_end) if options.more else ()
            for file in itertools.chain([options.shard], further):
                writer.begin(0)
                shard = read_shard(file.read_bytes())
                writer.begin(shard.number)
                writer.end(worker.measure(shard, writer.tell))
    except (AbprofError, ValueError, OSError) as error:
        reason = error.line if isinstance(error, AbprofError) else str(error)
        print(reason, file=sys.stderr)
        writer.end(Ended(why="refused", reason=reason, lines=0))
        return Exit.CANNOT_RUN
    except KeyboardInterrupt:
        writer.end(Ended(why="interrupted", lines=0))
        return Exit.INTERRUPTED
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
