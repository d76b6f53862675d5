"""The command line: `abprof BASE TARGET...` and its verbs. Heavy modules are imported by the verb that needs them."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from abprof.cli import (
    admit,
    bisect,
    comment,
    history,
    init,
    inspect,
    memory,
    nightly,
    profile,
    reports,
    run,
    run_cell,
    scripts,
    waive,
)
from abprof.cli.guard import guarded
from abprof.records.errors import Exit


class Verbs(TyperGroup):
    """The verbs, of which `run` need not be said: neither when a command line is read nor when it is completed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.rich_markup_mode = None  # the list of verbs is plain: rich's help takes longer to import than to read

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of this command line, with its verb."""
        return super().make_context(info_name, with_verb(args, self.commands), parent, **extra)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The first word: a verb, or what may follow `run`."""
        run = self.commands["run"].make_context("run", [], parent=ctx, resilient_parsing=True)
        first = run.command if incomplete.startswith("-") else next(p for p in run.command.params if p.name == "refs")
        items = (*super().shell_complete(ctx, incomplete), *first.shell_complete(run, incomplete))
        return list({item.value: item for item in items}.values())


app = typer.Typer(
    name="abprof",
    cls=Verbs,
    help="Did this branch change the speed of these GPU kernels, by how much, and why?\n\n"
    "`abprof BASE TARGET` compares two refs of the git repository you stand in; either may be `.`, the working tree as "
    "it is, or a release, `dist:NAME==VERSION`. It is short for `abprof run BASE TARGET`.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    run,
    run_cell,
    reports,
    comment,
    history,
    nightly,
    memory,
    profile,
    scripts,
    inspect,
    waive,
    admit,
    init,
    bisect,
):
    module.register(app)


def _version(asked: bool) -> None:
    if asked:
        from abprof import __version__

        typer.echo(f"abprof {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def run_command_line(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code: an empty one shows the help, and could not run. Never raises."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a path or a name that is no text is shown with "?"
    shown = guarded(lambda: app(args=list(argv) or ["--help"], prog_name="abprof", standalone_mode=False), argv)
    return shown if argv else Exit.CANNOT_RUN


def with_verb(argv: Sequence[str], verbs: Mapping[str, Any]) -> list[str]:
    """`abprof main feature` and `abprof --repo P main feature` mean `abprof run ...`. A verb's own name stays a verb."""
    takes_value = run.options_with_values(verbs["run"])
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word in {"--help", "-h", "--version", "--install-completion", "--show-completion"}:
            return list(argv)
        elif word.startswith("-") and word != "-":
            skip = word in takes_value
        else:
            return list(argv) if word in verbs else ["run", *argv]
    return ["run", *argv] if argv else []


if __name__ == "__main__":
    sys.exit(run_command_line(sys.argv[1:]))
