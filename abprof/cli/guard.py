"""What every error becomes: one line, an exit code, and for a bug a file to attach to a report."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from abprof.cli.program import before
from abprof.cli.variables import USAGE, usage
from abprof.errors import AbprofError, Exit


def guarded(command: Callable[[], Any], argv: Sequence[str]) -> int:
    """The exit code of `command`, whatever it raises."""
    try:
        code = command()
        return int(code) if isinstance(code, int) else 0
    except AbprofError as error:
        return _refuse(error, argv)
    except typer.Exit as done:
        return int(done.exit_code)
    except USAGE as error:
        if not error.format_message():
            return Exit.CANNOT_RUN  # no arguments at all: the help has been shown
        return _refuse(AbprofError(usage(error), advice="abprof --help"), argv)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _read_no_more()
        return 0
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug is told, with where to read on
        return _bug(error, argv)


@contextlib.contextmanager
def while_read() -> Iterator[None]:
    """For printing a result: that nobody reads on (`abprof ... | head`) is no error, and does not change the exit code."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich answers a closed pipe with SystemExit
        _read_no_more()


def _read_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no second complaint at exit


def _refuse(error: AbprofError, argv: Sequence[str]) -> int:
    if "--json" in before(list(argv)):
        print(json.dumps(error.as_json()))
    print(f"abprof: {error.line}", file=sys.stderr)
    return Exit.CANNOT_RUN


def _bug(error: Exception, argv: Sequence[str]) -> int:
    from abprof import __version__

    text, said = "".join(traceback.format_exception(error)), " ".join(str(error).split())
    facts = (
        f"abprof {__version__}, Python {platform.python_version()}, {platform.platform()}\nabprof {' '.join(argv)}\n\n"
    )
    where = "not written"
    try:
        from abprof.paths import state_dir

        path = Path(state_dir()) / "bug.log"
        path.write_text(facts + text)
        where = str(path)
    except (OSError, AbprofError):
        print(text, file=sys.stderr)
    print(f"abprof: a bug in abprof, please report it: {type(error).__name__}: {said} ({where})", file=sys.stderr)
    return Exit.BUG
