"""Define `abprof comment` and `abprof admit`, the commands of the bot on pull requests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from abprof.cli.app import app, warn
from abprof.cli.options import number, takes, text
from abprof.records.errors import AbprofError, Exit


@app.command("comment", short_help="Post a run's result on a pull request.")
@takes(
    text("--repo", "OWNER/NAME", "Repository on GitHub; default: from the event file.", default=""),
    number("--pr", "N", "Number of the pull request; default: from the event file.", 1, default=0),
    text("--artifact", "FILE", "Post this output of `report --format artifact` instead of RUN."),
    text("--event", "FILE", "GitHub's event file, which names the repository and the pull request."),
    text("--key", "TEXT", "Keep a separate comment for each key, e.g. a device; default: no key.", default=""),
    text("--url", "URL", "Link to the full report.", default=""),
    "dry_run",
)
def comment(run: Annotated[str, typer.Argument(metavar="[RUN]", help="A run folder.")] = "", **values: Any) -> int:
    """Post a run's result on a pull request as one comment that later runs update, or print it (--dry-run).

    The token comes from GITHUB_TOKEN or GH_TOKEN, the server from GITHUB_API_URL. docs/BOT.md describes the bot.
    """
    from abprof.extras.bot import make_notice, post_notice, read_notice, render

    artifact, event, link = values["artifact"], values["event"], values["url"]
    if bool(run) == bool(artifact):
        raise AbprofError("needs either a run or --artifact", where="abprof comment", advice="abprof comment RUN")
    if artifact:
        notice = read_notice(Path(artifact))
    else:
        from abprof import session

        notice = make_notice(session.judged(Path(run), warn)[0])
    text = render(notice, link=link)
    if values["dry_run"]:
        sys.stdout.write(text)
        return Exit.OK
    where = values["repo"], values["pr"], Path(event) if event else None
    done = post_notice(notice, *where, untrusted=bool(artifact), key=values["key"], link=link)
    print(f"comment: {done}")
    return Exit.OK


@app.command("admit", short_help="Check whether a /abprof comment may start a run.")
@takes(
    text("--event", "FILE", "GitHub's event file of the comment.", default=...),
    text("--allow", "FILE", "Users who may start runs [.github/abprof-bot.toml].", default=".github/abprof-bot.toml"),
    text("--output", "FILE", "Append name=value lines to this file [$GITHUB_OUTPUT]."),
)
def admit(**values: Any) -> int:
    """Check a comment `/abprof COMMIT key=value ...`: may its author start runs, and is COMMIT the newest commit?

    Print name=value lines for the measuring job: base, target, pr and the options. A refusal has exit code 2.
    """
    from abprof.extras.bot import admit as checked

    found = checked(Path(values["event"]), Path(values["allow"]))
    lines = "".join(f"{name}={value}\n" for name, value in found.items())
    if output := values["output"] or os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(lines)
    sys.stdout.write(lines)
    return Exit.OK
