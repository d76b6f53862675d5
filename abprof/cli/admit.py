"""`abprof admit`: the gate of the bot on pull requests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from abprof.cli.comment import append
from abprof.records.errors import Exit


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("admit", help=admit.__doc__, short_help="Whether a /abprof comment may run, and on what.")(admit)


def admit(
    event: Annotated[str, typer.Option(metavar="FILE", help="GitHub's event of the comment.")],
    allow: Annotated[str, typer.Option(metavar="FILE", help="The list of users.")] = ".github/abprof-bot.toml",
    output: Annotated[str, typer.Option(metavar="FILE", help="Add name=value lines to it [$GITHUB_OUTPUT].")] = "",
) -> int:
    """Check a comment `/abprof COMMIT key=value ...`: may its author run it, and is COMMIT still the pull request's head?

    Prints name=value lines for the measuring job: base, target, pr and the options. Exit code 2 and one line if not.
    """
    from abprof.extras.bot import admit as checked

    lines = "".join(f"{name}={value}\n" for name, value in checked(Path(event), Path(allow)).items())
    if path := output or os.environ.get("GITHUB_OUTPUT", ""):
        append(path, lines, "--output")
    sys.stdout.write(lines)
    return Exit.OK
