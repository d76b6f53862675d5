"""Run the command line. In: argv. Out: an exit code, results on standard output, progress and errors on standard error.

Each file defines one verb or a few related verbs; `options` declares the options that verbs share, `app` defines the program and
prints errors. Verbs import heavy modules inside their functions, so that `abprof --help` answers at once.
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
    """Run the command line `argv` and return its exit code. An empty `argv` prints the help and returns 2. Never raises."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # invalid UTF-8 in a path or name is shown as "?"
    shown = guarded(lambda: app(args=list(argv) or ["--help"], prog_name="abprof", standalone_mode=False), argv)
    return shown if argv else Exit.CANNOT_RUN
