"""The command `abprof`, and the one place that turns errors into exit codes."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from abprof.cli import run_command_line
    except MemoryError:  # without it nothing more can be imported, and Python's own code would read as `slower`
        os.write(2, b"abprof: there is no memory left to start in (end other programs, or raise its limit)\n")
        os._exit(2)
    code = run_command_line(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second ^C while Python ends would change the exit code
    sys.exit(code)


if __name__ == "__main__":
    main()
