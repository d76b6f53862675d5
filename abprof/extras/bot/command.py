"""GitHub's events, and the command `/abprof COMMIT key=value ...` in a comment on a pull request.

The commit is required, so that what is measured is what its author has read. Values are plain words that no shell and no
option could misread. Only a new comment counts, never an edited one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError

WORD = "/abprof"
_COMMAND = re.compile(rf"{WORD} (?P<commit>[0-9a-f]{{40}})(?P<options>( [a-z]+=[!-~]+)*)")
_MOST_BYTES = 25 << 20  # GitHub cuts its events there
_NAMES = r"[A-Za-z0-9][A-Za-z0-9_.,-]{0,200}"
_VALUES = {
    "preset": _NAMES,
    "kernels": _NAMES,
    "workloads": _NAMES,
    "only": r"[A-Za-z0-9_*][A-Za-z0-9_.*/=,-]{0,120}",
    "budget": r"[1-9][0-9]{0,3}(s|m|h)?",
}


@dataclass(frozen=True)
class Command:
    """A commit to measure, values of `abprof run`'s options, and who wrote it."""

    commit: str
    options: dict[str, str]
    author: str = ""


def parse(text: str, author: str = "") -> Command:
    """The command in a comment. Raises AbprofError for anything that is not exactly one command."""
    found = _COMMAND.fullmatch(text.strip(" \r\n"))
    pairs = [word.split("=", 1) for word in found["options"].split()] if found else []
    options = {name: value for name, value in pairs if re.fullmatch(_VALUES.get(name, "(?!)"), value)}
    if not found or len(options) != len(pairs):
        advice = (
            f"write {WORD} COMMIT with all 40 hex digits, then any of {', '.join(_VALUES)} as name=value, once each"
        )
        raise AbprofError("not a command", where=WORD, advice=advice)
    return Command(found["commit"], options, author)


# ---------------------------------------------------------------- GitHub's events


@dataclass(frozen=True)
class Event:
    """An event of `workflow_run`, `pull_request` or a new comment on a pull request. GitHub writes it, not the run."""

    repo: str  # OWNER/NAME
    head: str  # the commit that it is about
    number: int = 0  # of the pull request; 0 if the event names none
    branch: str = ""  # the head's branch, and the repository that it lies in
    home: str = ""
    command: Command | None = None


def read_event(path: Path) -> Event:
    """The event in a file (`$GITHUB_EVENT_PATH`). Raises AbprofError for one of another kind, and for a comment that is not a
    command by a person."""
    where = f"--event {path}"
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        event = msgspec.json.decode(data if len(data) <= _MOST_BYTES else b"")
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=where) from None
    except UNREADABLE as error:
        raise AbprofError(f"not an event: {error}", where=where) from None

    def at(*names: str) -> Any:
        found = event
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def text(*names: str) -> str:
        found = at(*names)
        return found if isinstance(found, str) else ""

    number = next((it for kind in ("pull_request", "issue") if type(it := at(kind, "number")) is int), 0)
    repo, run = text("repository", "full_name"), "workflow_run"
    if at("comment"):
        if at("action") != "created" or not at("issue", "pull_request"):
            raise AbprofError("only a new comment on a pull request counts", where=where)
        if text("comment", "user", "type") != "User":
            raise AbprofError("a bot may not run commands", where=where)
        command = parse(text("comment", "body"), text("comment", "user", "login"))
        return Event(repo, command.commit, number, command=command)
    head = text(run, "head_sha") or text("pull_request", "head", "sha")
    if not re.fullmatch("[0-9a-f]{40}", head):
        advice = "docs/BOT.md has the jobs"
        raise AbprofError("neither a workflow_run nor a pull_request event", where=where, advice=advice)
    return Event(repo, head, number, text(run, "head_branch"), text(run, "head_repository", "full_name").lower())
