"""What every error becomes: one line, an exit code, and for a bug a file to attach to a report."""

from __future__ import annotations

import contextlib
import errno
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
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

_ROOM = "make room there, or choose another folder: --runs-dir, ABPROF_CACHE_DIR, ABPROF_STATE_DIR"
_WRITABLE = "choose a folder that can be written: --runs-dir, ABPROF_CACHE_DIR, ABPROF_STATE_DIR"
_NO_ROOM = ("failed to map segment from shared object", "cannot allocate memory", "Cannot allocate memory")
_REFUSED = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: _WRITABLE,
    errno.EIO: "the disk, or what it hangs on, fails",
    errno.ENOMEM: "end other programs, or raise the limit on memory",
    errno.EAGAIN: "end other programs, or raise the limit on processes",
    errno.EMFILE: "raise the limit on open files: ulimit -n",
    errno.ENFILE: "end other programs",
}


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
        refused = by_the_machine(error)
        return _refuse(refused, argv) if refused else _bug(error, argv)


def by_the_machine(error: BaseException) -> AbprofError | None:
    """The clear line for what the machine refuses wherever it is asked: memory, room on a disk, one more process or file. None
    for anything else."""
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and _without_memory(error)):
        return AbprofError("there is no memory left for abprof itself", advice="end other programs, or raise its limit")
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        return AbprofError(error.strerror or str(error), where=where, advice=_REFUSED[error.errno])
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return AbprofError("the system starts no further thread", advice=_REFUSED[errno.EAGAIN])
    return None


def _without_memory(error: BaseException) -> bool:
    """Whether a library could not be loaded because there was no room for it: its loader has words of its own for that."""
    known: BaseException | None = error
    while known is not None:
        if isinstance(known, MemoryError) or any(word in str(known) for word in _NO_ROOM):
            return True
        known = known.__cause__ or known.__context__
    return False


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

    text = "".join(traceback.format_exception(error))
    said = " ".join(visible(". ".join([str(error), *getattr(error, "__notes__", ())])).split())
    facts = (
        f"abprof {__version__}, Python {platform.python_version()}, {platform.platform()}\nabprof {' '.join(argv)}\n\n"
    )
    where = "not written"
    try:
        from abprof.system.paths import state_dir

        path = Path(state_dir()) / "bug.log"
        path.write_text(facts + text, encoding="utf-8", errors="backslashreplace")
        where = str(path)
    except (OSError, AbprofError):
        print(text, file=sys.stderr)
    print(f"abprof: a bug in abprof, please report it: {type(error).__name__}: {said} ({where})", file=sys.stderr)
    return Exit.BUG
