"""The command line. In: argv. Out: an exit code, results on standard output, progress and errors on standard error.

One file holds a verb or a few related ones; `options` declares every option that several verbs take, `app` holds what all
verbs share. A verb imports heavy modules itself, so that `abprof --help` answers at once.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from abprof.cli import bisect, bot, init, machine, nightly, profile, report, run
from abprof.cli.app import app, guarded
from abprof.records.errors import Exit

__all__ = ["app", "run_command_line"]

VERBS = (run, report, profile, machine, init, bisect, bot, nightly)  # importing them adds their verbs


def run_command_line(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; an empty one shows the help and returns 2. Never raises."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a path or a name that is no text is shown with "?"
    shown = guarded(lambda: app(args=list(argv) or ["--help"], prog_name="abprof", standalone_mode=False), argv)
    return shown if argv else Exit.CANNOT_RUN
