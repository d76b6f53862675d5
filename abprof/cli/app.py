"""Define the program `abprof`, whose default subcommand is `run`; turn each error into one line and an exit code."""

from __future__ import annotations

import difflib
import errno
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from abprof.records.base import VERSION
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import CPU_MARGIN, CPU_THRESHOLD, DEFAULT_BUDGET, GPU_MARGIN, GPU_THRESHOLD
from abprof.records.visible import visible
from abprof.system.files import REMEDIES
from abprof.system.paths import state_dir

USAGE: Any = typer.BadParameter.__mro__[2]  # click's ClickException, from click itself or from Typer's copy
_PROGRAM = "abprof.program"  # key in click's context for the words after `--`
_TOP = {"--help", "-h", "--version", "--install-completion", "--show-completion"}
_FORMER = {"--sustained": "--regime sustained"}  # an option that is gone -> its successor
setattr(TyperOption, "display_type_rich", lambda option, ctx: option.metavar or "")  # noqa: ARG005, B010 - not `<bool>`
setattr(TyperArgument, "display_type_rich", lambda argument, ctx: "")  # noqa: ARG005, B010 - not `<list[str]>`


class _Verbs(TyperGroup):
    """The group of all subcommands. `abprof BASE TARGET` means `abprof run BASE TARGET`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.rich_markup_mode = None  # importing rich takes noticeable time, and the list of verbs needs no markup

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        options = self.commands["run"].params
        takes_value = {name for p in options if not getattr(p, "is_flag", True) for name in p.opts}
        words = iter(args)
        first = ""
        for first in words:
            if first in _TOP or first == "-" or not first.startswith("-"):
                break
            if first in takes_value:
                next(words, None)
        verb = [] if not args or first in _TOP or first in self.commands else ["run"]
        return super().make_context(info_name, [*verb, *args], parent, **extra)


class Verb(TyperCommand):
    """A subcommand whose command line may end in `-- PROGRAM ARGS`, and whose --json may have a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`, and keep the words after `--` for `program`."""
        own = before(args)
        ctx.meta[_PROGRAM] = args[len(own) + 1 :] if len(own) < len(args) else None
        if any("--json" in param.opts and not param.is_flag for param in self.params if isinstance(param, TyperOption)):
            own = ["--json=full" if word == "--json" else word for word in own]
        return super().parse_args(ctx, own)


def before(args: list[str]) -> list[str]:
    """Return the words of a command line before `--`."""
    return args[: args.index("--")] if "--" in args else args


def program(ctx: Any) -> list[str] | None:
    """Return the words after `--` on the command line; None if the command line has no `--`."""
    found: list[str] | None = ctx.meta[_PROGRAM]
    return found


def given(ctx: Any) -> dict[str, str]:
    """Return parameter -> option (`runs_dir` -> `--runs-dir`) for each option given on the command line."""
    sources = [(param, ctx.get_parameter_source(param.name)) for param in ctx.command.params]
    return {param.name: param.opts[0] for param, source in sources if source and source.name == "COMMANDLINE"}


def refuse(
    ctx: Any, what: str, *, but: Collection[str] | None = None, only: Collection[str] = (), advice: str = "leave it out"
) -> None:
    """Raise AbprofError if an option in `only` was given on the command line. With `but`, raise it if any option was
    given that is not in `but`. `what`, `advice`: text of the error."""
    for name, option in given(ctx).items():
        if name in only if but is None else name not in but:
            raise AbprofError(what, where=option, advice=advice)


def note(text: str) -> None:
    """Print `text` as a line on standard error."""
    print(f"abprof: {text}", file=sys.stderr)


def warn(text: str) -> None:
    """Print `text` as a warning on standard error."""
    print(f"warning: {text}", file=sys.stderr)


def guarded(command: Callable[[], Any], argv: Sequence[str]) -> int:
    """Run `command` and return its exit code; print an exception as one line. Never raises."""
    try:
        code = command()
        return int(code) if isinstance(code, int) else 0
    except AbprofError as error:
        return _refused(error, argv)
    except typer.Exit as done:
        return int(done.exit_code)
    except USAGE as error:
        former = _FORMER.get(getattr(error, "option_name", ""))
        if former:
            return _refused(AbprofError("no such option", where=error.option_name, advice=f"give {former}"), argv)
        param, context = getattr(error, "param", None), getattr(error, "ctx", None)
        advice = f"{context.command_path if context else 'abprof'} --help"
        if param and error.message:
            return _refused(AbprofError(error.message.rstrip("."), where=param.opts[0], advice=advice), argv)
        text = error.format_message()  # empty if no arguments were given and the help was shown
        return _refused(AbprofError(text, advice=advice), argv) if text else Exit.CANNOT_RUN
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence
        where = os.fsdecode(name) if isinstance(name := getattr(error, "filename", None), str | bytes) else ""
        if isinstance(error, OSError) and (where or error.errno in REMEDIES):
            advice = REMEDIES.get(error.errno or 0, "")
            return _refused(AbprofError(error.strerror or str(error), where=where, advice=advice), argv)
        if isinstance(error, MemoryError) or "can't start new thread" in str(error):
            return _refused(AbprofError(str(error) or "out of memory", advice=REMEDIES[errno.ENOMEM]), argv)
        return _bug(error, argv)


def _refused(error: AbprofError, argv: Sequence[str]) -> int:
    verbs = [command.name for command in app.registered_commands if command.name]
    if argv and error.what == f"unknown ref {argv[0]!r}" and (near := difflib.get_close_matches(argv[0], verbs, 1)):
        error = AbprofError(error.what, where=error.where, advice=f"did you mean abprof {near[0]}? {error.advice}")
    option, _, rest = error.where.partition(" ")
    variable = variable_of(option)
    if option.startswith("--") and variable in os.environ and not any(w.split("=")[0] == option for w in argv):
        error = AbprofError(error.what, where=f"{variable} {rest}".strip(), advice=error.advice)
    if {"--json", "--json=full", "--json=summary"} & {*before(list(argv))}:
        print(json.dumps(error.as_json()))
    note(error.line)
    return Exit.CANNOT_RUN


def variable_of(option: str) -> str:
    """Return the name of an option's environment variable, such as ABPROF_RUNS_DIR for --runs-dir."""
    return f"ABPROF_{option.removeprefix('--').replace('-', '_').upper()}"


def _bug(error: Exception, argv: Sequence[str]) -> int:
    text = "".join(traceback.format_exception(error))
    message = " ".join(visible(". ".join([str(error), *getattr(error, "__notes__", ())])).split())
    facts = f"abprof {VERSION}, Python {platform.python_version()}, {platform.platform()}\n"
    where = "not written"
    try:
        path = Path(state_dir()) / "bug.log"
        path.write_text(f"{facts}abprof {' '.join(argv)}\n\n{text}", encoding="utf-8", errors="backslashreplace")
        where = str(path)
    except (OSError, AbprofError):
        print(text, file=sys.stderr)
    note(f"a bug in abprof, please report it: {type(error).__name__}: {message} ({where})")
    return Exit.BUG


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"abprof {VERSION}")
        raise typer.Exit


app = typer.Typer(
    name="abprof",
    cls=_Verbs,
    help="Did this branch change the speed of these GPU kernels, by how much, and why?\n\n"
    "`abprof BASE TARGET` compares two refs of the git repository around the current folder; either may be `.` (the working "
    "tree) or a release, `dist:NAME==VERSION`. This is short for `abprof run BASE TARGET`.\n\n"
    f"A change counts beyond {GPU_THRESHOLD:g} % of time on a GPU, {CPU_THRESHOLD:g} % on a CPU (--threshold); `same` "
    f"means within {GPU_MARGIN:g} % on a GPU, {CPU_MARGIN:g} % on a CPU (--margin). Measuring takes {DEFAULT_BUDGET} at "
    "most (--budget). Exit codes: 0 nothing slower, 1 slower or broken, 2 could not run, 4 not trustworthy.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _top(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass
