"""`python -m abprof.shards SHARD.json [--with PID]`: measure a shard here, and print its news (abprof/shards/messages.py)."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

import msgspec

from abprof import sealed
from abprof.errors import AbprofError, Exit
from abprof.holding import signals
from abprof.proc import dies_with
from abprof.shards.messages import Ended, News, read_shard
from abprof.shards.serve import serve


class Teller:
    """Writes news, and counts them."""

    def __init__(self, descriptor: int) -> None:
        self._out = descriptor
        self._lines = 0

    def tell(self, news: News) -> None:
        """One line, whole. Raises OSError when nobody listens any more."""
        line = memoryview(sealed.line(news))
        while line:
            line = line[os.write(self._out, line) :]
        self._lines += 1

    def end(self, ended: Ended) -> None:
        """The last one."""
        with contextlib.suppress(OSError):
            os.write(self._out, sealed.line(msgspec.structs.replace(ended, lines=self._lines)))


def main(argv: list[str] | None = None) -> int:
    """The exit code is for people; who submitted the shard goes by its news."""
    parser = argparse.ArgumentParser(prog="python -m abprof.shards")
    parser.add_argument("shard", type=Path)
    parser.add_argument("--with", dest="parent", type=int, help="end when this process, which started it, is gone")
    options = parser.parse_args(argv)
    if options.parent:
        dies_with(options.parent)
    # What anything prints goes to standard error: news are alone on their descriptor.
    teller = Teller(os.dup(1))
    os.dup2(2, 1)
    try:
        with signals():
            teller.end(serve(read_shard(options.shard.read_bytes()), teller.tell))
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
