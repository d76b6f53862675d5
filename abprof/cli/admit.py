"""`abprof admit`: the gate of the bot on pull requests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from abprof.records.errors import AbprofError, Exit


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("admit", help=admit.__doc__, short_help="Whether a /abprof comment may run, and on what.")(admit)


def admit(
    event: Annotated[str, typer.Option(metavar="FILE", help="GitHub's event of the comment.")],
    allow: Annotated[str, typer.Option(metavar="FILE", help="Who may ask.")] = ".github/abprof-bot.toml",
    output: Annotated[str, typer.Option(metavar="FILE", help="Add name=value lines to it [$GITHUB_OUTPUT].")] = "",
) -> int:
    """Read a comment `/abprof COMMIT key=value ...` strictly: may its author ask, and is COMMIT still the pull request's head?

    Prints name=value lines for the measuring job: base, target, pr and the options. Exit code 2 says why not.
    """
    from abprof.extras.bot.gate import admitted

    found = admitted(Path(event), Path(allow), lambda text: print(f"abprof: {text}", file=sys.stderr))
    lines = "".join(f"{name}={value}\n" for name, value in found.items())
    path = output or os.environ.get("GITHUB_OUTPUT", "")
    if path:
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(lines)
        except OSError as error:
            raise AbprofError(error.strerror or str(error), where=f"--output {path}") from None
    sys.stdout.write(lines)
    return Exit.OK
