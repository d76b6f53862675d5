"""The program `abprof`: its verbs, of which `run` need not be typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from abprof.records.options import CPU_MARGIN, CPU_THRESHOLD, DEFAULT_BUDGET, GPU_MARGIN, GPU_THRESHOLD


class _Verbs(TyperGroup):
    """Inserts `run` where the first word is no verb, when a command line is read and when it is completed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.rich_markup_mode = None  # rich's help takes longer to import than the list of verbs to read

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of this command line, with its verb."""
        return super().make_context(info_name, with_verb(args, self.commands), parent, **extra)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The first word: a verb, or what may follow `run`."""
        run = self.commands["run"].make_context("run", [], parent=ctx, resilient_parsing=True)
        first = run.command if incomplete.startswith("-") else next(p for p in run.command.params if p.name == "refs")
        items = (*super().shell_complete(ctx, incomplete), *first.shell_complete(run, incomplete))
        return list({item.value: item for item in items}.values())


def with_verb(argv: Sequence[str], verbs: Mapping[str, Any]) -> list[str]:
    """`abprof main feature` and `abprof --repo P main feature` mean `abprof run ...`. A verb's own name stays a verb."""
    options = [p for p in verbs["run"].params if p.param_type_name == "option" and not p.is_flag]
    takes_value = {name for option in options for name in (*option.opts, *option.secondary_opts)}
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


def _version(wanted: bool) -> None:
    if wanted:
        from abprof import __version__

        typer.echo(f"abprof {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="abprof",
    cls=_Verbs,
    help="Did this branch change the speed of these GPU kernels, by how much, and why?\n\n"
    "`abprof BASE TARGET` compares two refs of the git repository you stand in; either may be `.`, the working tree as "
    "it is, or a release, `dist:NAME==VERSION`. It is short for `abprof run BASE TARGET`.\n\n"
    f"A change counts beyond {GPU_THRESHOLD:g} % of time on a GPU, {CPU_THRESHOLD:g} % on a CPU (--threshold); `same` "
    f"means within {GPU_MARGIN:g} % on a GPU, {CPU_MARGIN:g} % on a CPU (--margin). Measuring takes {DEFAULT_BUDGET} at "
    "most (--budget). Exit codes: 0 nothing slower, 1 slower or broken, 2 could not run, 4 not to be trusted.",
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
