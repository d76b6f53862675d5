"""Start the command `abprof`."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Any, TextIO


class _Output(io.FileIO):
    """Standard output or error that ignores a closed pipe, so that `abprof ... | head -1` completes its work."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def _output(stream: TextIO) -> TextIO:
    raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=bool(stream.line_buffering))


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from abprof.cli import run_command_line
    except MemoryError:  # without it nothing more can be imported, and Python's own code would read as `slower`
        os.write(2, b"abprof: there is no memory left to start in (end other programs, or raise its limit)\n")
        os._exit(2)
    sys.stdout, sys.stderr = (stream and _output(stream) for stream in (sys.stdout, sys.stderr))  # None: closed
    code = run_command_line(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second ^C while Python ends would change the exit code
    sys.exit(code)


if __name__ == "__main__":
    main()
