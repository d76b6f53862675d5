"""Where an answer belongs, from the event that GitHub itself wrote for the posting job. Nothing of it comes from a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from abprof.extras.bot import command
from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError

MOST_BYTES = 25 << 20  # GitHub cuts its payloads there
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Origin:
    """What an event says: the repository, and the commit whose run has ended."""

    repo: str
    head: str
    branch: str = ""  # the head's, and the repository it lies in: a pull request whose head moved is known by them
    head_repo: str = ""
    pr: int = 0  # where the event itself is of one pull request


def repository(text: str) -> str:
    """OWNER/NAME. Raises AbprofError for anything else."""
    if not _REPO.fullmatch(text):
        raise AbprofError(f"{text!r} is not OWNER/NAME", where="--repo")
    return text


def load(path: Path) -> Any:
    """An event file (`$GITHUB_EVENT_PATH`) as it is. Raises AbprofError."""
    where = f"--event {path}"
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        return msgspec.json.decode(data) if len(data) <= MOST_BYTES else None
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=where) from None
    except UNREADABLE as error:
        raise AbprofError(f"not an event: {error}", where=where) from None


def read_event(path: Path) -> Origin:
    """The origin in an event file: of `workflow_run`, `pull_request`, or a comment that is a command. Raises AbprofError."""
    where, event = f"--event {path}", load(path)
    repo = _text(event, "repository", "full_name")
    if "workflow_run" in _mapping(event):
        head = _text(event, "workflow_run", "head_sha")
        branch, home = (
            _text(event, "workflow_run", "head_branch"),
            _text(event, "workflow_run", "head_repository", "full_name"),
        )
        found = Origin(repo, head, branch, home)
    elif "comment" in _mapping(event):
        asked = command.asking(event, where)
        found = Origin(asked.repo, command.parse(asked.comment.text).commit, pr=asked.pr)
    else:
        number = _at(event, "pull_request", "number")
        found = Origin(repo, _text(event, "pull_request", "head", "sha"), pr=number if type(number) is int else 0)
    if not _COMMIT.fullmatch(found.head) or not _REPO.fullmatch(found.repo):
        raise AbprofError(
            "neither a workflow_run nor a pull_request event", where=where, advice="docs/BOT.md has the jobs"
        )
    return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _at(event: Any, *path: str) -> Any:
    for name in path:
        event = _mapping(event).get(name)
    return event


def _text(event: Any, *path: str) -> str:
    found = _at(event, *path)
    return found if isinstance(found, str) else ""
