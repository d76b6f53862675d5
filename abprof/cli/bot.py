"""`abprof comment` and `abprof admit`: the bot on pull requests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import one_of, warn
from abprof.cli.options import takes
from abprof.records.errors import AbprofError, Exit

_POLICIES = ("always", "on-change", "on-alert", "never")


@app.command("comment", short_help="Post a run's answer on a pull request.")
@takes("dry_run")
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
    policy: Annotated[
        str,
        typer.Option(metavar="|".join(_POLICIES), help="When to create the first comment."),
    ] = "always",
    key: Annotated[str, typer.Option(metavar="TEXT", help="One comment for each key, e.g. of a device.")] = "",
    url: Annotated[str, typer.Option(metavar="URL", help="Where the full report is.")] = "",
    summary: Annotated[str, typer.Option(metavar="FILE", help="Add it to this file too [$GITHUB_STEP_SUMMARY].")] = "",
    check: Annotated[bool, typer.Option("--check", help="Make a check run too.")] = False,
    **values: Any,
) -> int:
    """Post a run's answer on a pull request as one comment that is kept up to date, or print it (--dry-run).

    The token comes from GITHUB_TOKEN or GH_TOKEN, the server from GITHUB_API_URL. docs/BOT.md has the rules,
    and the two jobs of which only the second holds a token.
    """
    from abprof.extras.bot import Context, render

    one_of(policy, "--policy", _POLICIES)
    if bool(run) == bool(artifact):
        raise AbprofError("give either a run or an artifact", where="abprof comment", advice="abprof comment RUN")
    if artifact:
        from abprof.extras.bot import read_notice

        notice = read_notice(Path(artifact))
    else:
        from abprof import session
        from abprof.extras.bot import make_notice

        path = Path(run)
        judged, _ = session.judged(path, warn)
        notice = make_notice(judged, path.parent if path.is_file() else path)
    text = render(notice, Context(link=url))
    if values["dry_run"]:
        sys.stdout.write(text)
        return Exit.OK
    if path_of_summary := summary or os.environ.get("GITHUB_STEP_SUMMARY", ""):
        _append(path_of_summary, text + "\n", "--summary")  # first, so that a refused comment is not the only record
    from abprof.extras.bot import post_notice

    done = post_notice(
        notice,
        repo=repo,
        pr=pr or 0,
        event=Path(event) if event else None,
        untrusted=bool(artifact),
        policy=policy,
        key=key,
        link=url,
        check=check,
    )
    for line in done:
        print(line)
    return Exit.OK


def _append(path: str, text: str, option: str) -> None:
    """Add text to a file. Raises AbprofError naming the option."""
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=f"{option} {path}") from None


@app.command("admit", short_help="Whether a /abprof comment may run, and on what.")
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
        _append(path, lines, "--output")
    sys.stdout.write(lines)
    return Exit.OK
