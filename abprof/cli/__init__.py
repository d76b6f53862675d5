"""Run the command line and return its exit code. Results go to standard output, progress and errors to standard error.

Each file defines one subcommand or a few; `options` declares the options that subcommands share, `app` defines the
program and prints errors. Subcommands import heavy modules in their functions, so that `abprof --help` answers at once.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from abprof.cli import bisect, bot, init, machine, nightly, profile, report, run
from abprof.cli.app import app, guarded
from abprof.records.errors import Exit

__all__ = ["app", "run_command_line"]

VERBS = (run, report, profile, machine, init, bisect, bot, nightly)  # importing a module adds its verbs to `app`


def run_command_line(argv: Sequence[str]) -> int:
    """Run the command line `argv` and return its exit code. An empty `argv` prints the help, code 2. Never raises."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # invalid UTF-8 in a path or name is shown as "?"
    shown = guarded(lambda: app(args=list(argv) or ["--help"], prog_name="abprof", standalone_mode=False), argv)
    return shown if argv else Exit.CANNOT_RUN
