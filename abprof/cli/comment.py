"""`abprof comment`: what a run has to say, where it is reviewed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.extras.bot.notice import Notice

_POLICIES = ("always", "on-change", "on-alert", "never")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("comment", help=comment.__doc__, short_help="Post a run's answer on a pull request.")(comment)


def comment(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="A run folder.")] = "",
    repo: Annotated[str, typer.Option(metavar="OWNER/NAME", help="The repository.")] = "",
    pr: Annotated[int | None, typer.Option(metavar="N", min=1, help="The pull request.")] = None,
    artifact: Annotated[
        str, typer.Option(metavar="FILE", help="In place of RUN: a file of `report --format artifact`.")
    ] = "",
    event: Annotated[
        str, typer.Option(metavar="FILE", help="GitHub's event: it names repository and pull request.")
    ] = "",
    policy: Annotated[str, typer.Option(metavar="|".join(_POLICIES), help="When a first comment is made.")] = "always",
    key: Annotated[str, typer.Option(metavar="TEXT", help="One comment for each key, e.g. of a device.")] = "",
    url: Annotated[str, typer.Option(metavar="URL", help="Where the full report is.")] = "",
    summary: Annotated[str, typer.Option(metavar="FILE", help="Add it to this file too [$GITHUB_STEP_SUMMARY].")] = "",
    check: Annotated[bool, typer.Option("--check", help="Make a check run too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print it; ask and write nothing.")] = False,
) -> int:
    """Post a run's answer on a pull request as one comment that is kept up to date, or print it (--dry-run).

    The token comes from GITHUB_TOKEN or GH_TOKEN, the server from GITHUB_API_URL. docs/BOT.md has the rules,
    and the two jobs of which only the second holds a token.
    """
    from abprof.extras.bot.comment import Around
    from abprof.extras.bot.comment import comment as rendered
    from abprof.extras.bot.event import repository

    if policy not in _POLICIES:
        raise AbprofError(f"{policy!r} is not one of {', '.join(_POLICIES)}", where="--policy")
    if bool(run) == bool(artifact):
        raise AbprofError("a run or an artifact: one of the two", where="abprof comment", advice="abprof comment RUN")
    if repo:
        repository(repo)
    around = Around(link=url)
    notice = _read(artifact) if artifact else _noticed(Path(run))
    if dry_run:
        sys.stdout.write(rendered(notice, around))
        return Exit.OK
    _summarise(summary or os.environ.get("GITHUB_STEP_SUMMARY", ""), rendered(notice, around))
    from abprof.extras.bot import post

    for line in post.everywhere(
        notice, post.Target(repo, pr or 0, event, bool(artifact)), policy, key, around, check=check, say=_note
    ):
        print(line)
    return Exit.OK


def _read(path: str) -> Notice:
    from abprof.extras.bot.notice import read

    return read(Path(path))


def _noticed(path: Path) -> Notice:
    from abprof import session
    from abprof.extras.bot.from_run import notice

    judged, _ = session.judged(path, _note)
    return notice(judged, path.parent if path.is_file() else path)


def _summarise(path: str, text: str) -> None:
    """Written before GitHub is asked: a comment that is refused is never the only record."""
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=f"--summary {path}") from None


def _note(text: str) -> None:
    print(f"abprof: {text}", file=sys.stderr)
