"""`python -m abprof.fleet SHARD.json [--with PID] [--more]`: measure a shard here, and print its news
(abprof/fleet/messages.py). With `--more` the files of further shards of the run come on standard input, a line each, whenever
the one before has ended; the program ends with its input, or when nothing has come for long."""

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

from abprof.fleet.messages import IDLE, SAID_AGAIN, Ended, News, read_shard
from abprof.fleet.serve import Post
from abprof.measure.resources import signals
from abprof.records.errors import AbprofError, Exit
from abprof.system import checksummed as sealed
from abprof.system.processes import dies_with


class Teller:
    """Writes the news of shard after shard, and counts each one's."""

    def __init__(self, descriptor: int) -> None:
        self._out = descriptor
        self.begin(0)

    def begin(self, shard: int) -> None:
        """What is told now is of this shard; 0: of one whose number is not known yet."""
        self._shard, self._lines, self._last = shard, 0, b""

    def tell(self, news: News) -> None:
        """One line, whole. Raises OSError when nobody listens any more."""
        line = memoryview(sealed.line(news))
        while line:
            line = line[os.write(self._out, line) :]
        self._lines += 1

    def end(self, ended: Ended) -> None:
        """The last one."""
        self._last = sealed.line(msgspec.structs.replace(ended, lines=self._lines, shard=self._shard))
        self.end_again()

    def end_again(self) -> None:
        """The last one once more: whoever had it cut would wait for it for ever."""
        with contextlib.suppress(OSError):
            os.write(self._out, self._last)


def _further(orders: int, remind: Callable[[], None]) -> Iterator[Path]:
    """Files of shards, as they come. `remind` is called now and then while none does."""
    rest, end = b"", time.monotonic() + IDLE
    while time.monotonic() < end:
        if not select.select([orders], [], [], SAID_AGAIN)[0]:
            remind()
            continue
        if not (more := os.read(orders, 65536)):
            return
        *whole, rest = (rest + more).split(b"\n")
        yield from (Path(os.fsdecode(line)) for line in whole)
        end = time.monotonic() + IDLE


def main(argv: list[str] | None = None) -> int:
    """The exit code is for people; who submitted the shard goes by its news."""
    parser = argparse.ArgumentParser(prog="python -m abprof.fleet")
    parser.add_argument("shard", type=Path)
    parser.add_argument("--with", dest="parent", type=int, help="end when this process, which started it, is gone")
    parser.add_argument("--more", action="store_true", help="further shards' files come on standard input")
    options = parser.parse_args(argv)
    if options.parent:
        dies_with(options.parent)
    # What anything prints goes to standard error, and nothing else reads: news and orders are alone on their descriptors.
    out, orders = os.dup(1), os.dup(0)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    teller = Teller(out)
    try:
        with signals(), Post() as post:
            further = _further(orders, teller.end_again) if options.more else ()
            for file in itertools.chain([options.shard], further):
                teller.begin(0)
                shard = read_shard(file.read_bytes())
                teller.begin(shard.number)
                teller.end(post.serve(shard, teller.tell))
    except (AbprofError, ValueError, OSError) as error:
        said = error.line if isinstance(error, AbprofError) else str(error)
        print(said, file=sys.stderr)
        teller.end(Ended(why="refused", reason=said, lines=0))
        return Exit.CANNOT_RUN
    except KeyboardInterrupt:
        teller.end(Ended(why="interrupted", lines=0))
        return Exit.INTERRUPTED
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
