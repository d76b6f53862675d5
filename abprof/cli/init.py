"""`abprof init`: what a repository needs so that machines run abprof there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from abprof.errors import AbprofError, Exit


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("init", help=init.__doc__, short_help="Write a bot's workflow into a repository.")(init)


_FILES = {"abprof.yml": ".github/workflows/abprof.yml", "abprof-bot.toml": ".github/abprof-bot.toml"}


def init(
    github: Annotated[bool, typer.Option("--github", help="The bot on GitHub's pull requests.")] = False,
    repo: Annotated[str, typer.Option(help="The git repository.")] = ".",
) -> int:
    """Write what a repository needs: with --github the bot's workflow and the list of who may ask it.

    A file that is there and differs is never replaced (exit code 2).
    """
    from abprof import runfolder
    from abprof.bundled import bundled

    if not github:
        raise AbprofError("nothing to write", where="abprof init", advice="--github")
    root = Path(repo).absolute()
    if not (root / ".git").exists():
        raise AbprofError("not the top of a git repository", where=f"--repo {repo}")
    made = {root / place: (bundled("templates") / "github" / name).read_bytes() for name, place in _FILES.items()}
    for path, content in made.items():
        if path.exists() and path.read_bytes() != content:
            raise AbprofError("is there and differs", where=str(path), advice="move it away first; nothing was written")
    for path, content in made.items():
        print(runfolder.put(path, content))
    print("Read both, fill in the lines marked FILL IN, and commit them to the default branch: docs/BOT.md")
    return Exit.OK
