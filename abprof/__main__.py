"""The command `abprof`, and the one place that turns errors into exit codes."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from abprof.cli import run_command_line

    sys.exit(run_command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()
