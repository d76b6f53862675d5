"""What every verb shares: the program behind `--`, refused options, and errors as one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

USAGE: Any = typer.BadParameter.__mro__[2]  # click's ClickException, whichever package holds it
_PROGRAM = "abprof.program"  # in the context

_ROOM = "make room there, or choose another folder: --runs-dir, ABPROF_CACHE_DIR, ABPROF_STATE_DIR"
_WRITABLE = "choose a folder that can be written: --runs-dir, ABPROF_CACHE_DIR, ABPROF_STATE_DIR"
_NO_ROOM = ("failed to map segment from shared object", "cannot allocate memory", "Cannot allocate memory")
_REFUSED = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: _WRITABLE,
    errno.EIO: "the disk, or its connection, fails",
    errno.ENOMEM: "end other programs, or raise the limit on memory",
    errno.EAGAIN: "end other programs, or raise the limit on processes",
    errno.EMFILE: "raise the limit on open files: ulimit -n",
    errno.ENFILE: "end other programs",
}


class Verb(TyperCommand):
    """A verb whose command line may end in `-- PROGRAM ARGS`, and whose errors name an option's variable if it was set."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what is before the `--`. Raises AbprofError for an option that swallowed the next one."""
        own = before(args)
        ctx.meta[_PROGRAM] = args[len(own) + 1 :] if len(own) < len(args) else None
        with _naming_variables(ctx):
            rest = super().parse_args(ctx, own)
        if not ctx.resilient_parsing:
            _refuse_options_as_values(ctx)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        with _naming_variables(ctx):
            return super().invoke(ctx)


@contextlib.contextmanager
def _naming_variables(ctx: Any) -> Iterator[None]:
    """Let an error about an option whose value comes from the environment name the variable."""
    try:
        yield
    except AbprofError as error:
        option, _, rest = error.where.partition(" ")
        param = next((param for param in ctx.command.params if option in param.opts), None)
        source = ctx.get_parameter_source(param.name) if param else None
        if param is None or not source or source.name != "ENVIRONMENT":
            raise
        raise AbprofError(error.what, where=f"{param.envvar} {rest}".strip(), advice=error.advice) from error


def _refuse_options_as_values(ctx: Any) -> None:
    options = [param for param in ctx.command.params if param.param_type_name == "option"]
    names = {name for param in options for name in (*param.opts, *param.secondary_opts)}
    for param in options:
        value = ctx.params.get(param.name)
        for word in value if isinstance(value, list | tuple) else [value]:
            if isinstance(word, str) and word in names:
                raise AbprofError(f"it has no value: the next word is {word}", where=param.opts[0])


def before(args: list[str]) -> list[str]:
    """The words of a command line before `--`."""
    return args[: args.index("--")] if "--" in args else args


def program(ctx: Any) -> list[str] | None:
    """The words behind `--`; None without one."""
    found: list[str] | None = ctx.meta[_PROGRAM]
    return found


def given(ctx: Any) -> dict[str, str]:
    """Parameter -> option (`set_` -> `--set`), for those that stand on the command line."""
    return {
        param.name: param.opts[0]
        for param in ctx.command.params
        if param.name and (source := ctx.get_parameter_source(param.name)) and source.name == "COMMANDLINE"
    }


def refuse(
    ctx: Any,
    what: str,
    *,
    but: Collection[str] | None = None,
    only: Collection[str] = (),
    advice: str = "leave it out",
) -> None:
    """Raise AbprofError for an option on the command line that would have no effect: all `but` these, or `only` these."""
    for name, option in given(ctx).items():
        if name in only if but is None else name not in but:
            raise AbprofError(what, where=option, advice=advice)


def one_of(value: str, name: str, known: Sequence[str]) -> str:
    """`value`, an option's. Raises AbprofError if it is not in `known`."""
    if value not in known:
        raise AbprofError(f"{value!r} is not one of {', '.join(known)}", where=name)
    return value


def note(text: str) -> None:
    """Print a line on standard error."""
    print(f"abprof: {text}", file=sys.stderr)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    print(f"warning: {text}", file=sys.stderr)


# ---------------------------------------------------------------- errors and exit codes


def guarded(command: Callable[[], Any], argv: Sequence[str]) -> int:
    """The exit code of `command`, whatever it raises."""
    try:
        code = command()
        return int(code) if isinstance(code, int) else 0
    except AbprofError as error:
        return _refused(error, argv)
    except typer.Exit as done:
        return int(done.exit_code)
    except USAGE as error:
        if not error.format_message():
            return Exit.CANNOT_RUN  # no arguments at all: the help has been shown
        return _refused(usage(error), argv)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return 0
    except Exception as error:  # noqa: BLE001 - the last line of defence
        refused = by_the_machine(error)
        return _refused(refused, argv) if refused else _bug(error, argv)


def usage(error: Any) -> AbprofError:
    """Typer's error about a value, by the name of the option or of its variable."""
    param, ctx = getattr(error, "param", None), getattr(error, "ctx", None)
    if param is None or ctx is None or not param.name or not error.message:
        return AbprofError(str(error.format_message()), advice="abprof --help")
    source = ctx.get_parameter_source(param.name)
    name = param.envvar if source and source.name == "ENVIRONMENT" else param.opts[0]
    return AbprofError(str(error.message).removeprefix("Value error, ").rstrip("."), where=name, advice="abprof --help")


def by_the_machine(error: BaseException) -> AbprofError | None:
    """The clear line for memory, disk, processes or files that the machine refuses. None for anything else."""
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and _without_memory(error)):
        return AbprofError("there is no memory left for abprof itself", advice="end other programs, or raise its limit")
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        return AbprofError(error.strerror or str(error), where=where, advice=_REFUSED[error.errno])
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return AbprofError("the system starts no further thread", advice=_REFUSED[errno.EAGAIN])
    return None


def _without_memory(error: BaseException) -> bool:
    """Whether a library could not be loaded for want of memory; its loader has its own words for that."""
    known: BaseException | None = error
    while known is not None:
        if isinstance(known, MemoryError) or any(word in str(known) for word in _NO_ROOM):
            return True
        known = known.__cause__ or known.__context__
    return False


@contextlib.contextmanager
def while_read() -> Iterator[None]:
    """Print a result: a reader that stops (`abprof ... | head`) is no error and does not change the exit code."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich answers a closed pipe with SystemExit
        _close_output()


def _close_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit


def _refused(error: AbprofError, argv: Sequence[str]) -> int:
    if "--json" in before(list(argv)):
        print(json.dumps(error.as_json()))
    note(error.line)
    return Exit.CANNOT_RUN


def _bug(error: Exception, argv: Sequence[str]) -> int:
    from abprof import __version__

    text = "".join(traceback.format_exception(error))
    message = " ".join(visible(". ".join([str(error), *getattr(error, "__notes__", ())])).split())
    facts = f"abprof {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
    where = "not written"
    try:
        from abprof.system.paths import state_dir

        path = Path(state_dir()) / "bug.log"
        path.write_text(f"{facts}abprof {' '.join(argv)}\n\n{text}", encoding="utf-8", errors="backslashreplace")
        where = str(path)
    except (OSError, AbprofError):
        print(text, file=sys.stderr)
    note(f"a bug in abprof, please report it: {type(error).__name__}: {message} ({where})")
    return Exit.BUG
