"""`/abprof COMMIT key=value ...`, written as a comment on a pull request: a strict reader, and who may ask how often. Pure.

The commit is required, so that what is measured is what whoever asks has seen; values are words that no shell and no
option could take for anything else. Only a comment that was just made counts, never one that was edited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from abprof.records import Record
from abprof.records.errors import AbprofError
from abprof.system import config_errors as complaints
from abprof.system import toml

WORD = "/abprof"
_HELP = f"{WORD} COMMIT [preset=... only=AXIS=VALUE kernels=... workloads=... budget=10m]"
_LONGEST = 500
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}"
_VALUES = {
    "preset": _NAME,
    "kernels": rf"{_NAME}(,{_NAME}){{0,9}}",
    "workloads": rf"{_NAME}(,{_NAME}){{0,9}}",
    "only": r"[A-Za-z0-9_*][A-Za-z0-9_.*/=,-]{0,120}",
    "budget": r"[1-9][0-9]{0,3}(s|m|h)?",
}


@dataclass(frozen=True)
class Asked:
    """What was asked for: a commit, and values of `abprof run`'s options."""

    commit: str
    options: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> Asked:
    """The command of a comment that is one. Raises AbprofError for anything that is not exactly one."""

    def wrong(what: str) -> AbprofError:
        return AbprofError(what, where=WORD, advice=f"it is {_HELP}")

    if len(text) > _LONGEST:
        raise wrong(f"longer than {_LONGEST} characters")
    words = text.strip(" \r\n").split(" ")
    if words[0] != WORD or any(not re.fullmatch(r"[!-~]+", word) for word in words):
        raise wrong("not one line of plain words, one blank between two")
    if len(words) < 2 or not re.fullmatch("[0-9a-f]{40}", words[1]):
        raise wrong("the first word is not a whole commit of 40 hex digits")
    options: dict[str, str] = {}
    for word in words[2:]:
        name, equals, value = word.partition("=")
        if name not in _VALUES:
            raise wrong(f"no key {name[:40]!r}")
        if name in options:
            raise wrong(f"{name} twice")
        if not equals or not re.fullmatch(_VALUES[name], value):
            raise wrong(f"{name}= does not take {value[:40]!r}")
        options[name] = value
    return Asked(words[1], options)


# ---------------------------------------------------------------- who may, and how often


class Rights(Record, frozen=True):
    """.github/abprof-bot.toml of the default branch."""

    schema: int = 1
    users: tuple[str, ...] = ()
    cooldown_minutes: int = 10
    longest_budget: str = "30m"


def rights(text: str, where: str) -> Rights:
    """The file's content. Raises AbprofError."""
    loose = toml.loads(text, where)
    try:
        found = msgspec.convert(loose, Rights)
    except msgspec.ValidationError as error:
        known = Rights.__struct_fields__
        raise complaints.refused(
            error, loose, where, toml.lines(text), known, f"there are {', '.join(known)}"
        ) from None
    if found.schema != 1 or found.cooldown_minutes < 0:
        raise AbprofError("schema is 1, cooldown_minutes is not negative", where=where)
    return found


@dataclass(frozen=True)
class Written:
    """A comment: by whom, when, and what."""

    author: str
    at: datetime
    text: str
    pr: int = 0


def allowed(
    asked: Asked,
    comment: Written,
    may: Rights,
    earlier: Sequence[Written],
    head_of: Callable[[int], str] = lambda _: "",
) -> None:
    """Raises AbprofError where this person may not ask this, or asked a moment ago. `earlier`: the repository's comments
    since the cooldown began, without this one. `head_of`: another pull request's head now, "" for what is none. Of earlier
    commands count those that were not refused, as far as can be seen: only a head is measured, so who named another commit
    was refused, or the answer is outdated by now."""
    if comment.author.lower() not in {user.lower() for user in may.users}:
        raise AbprofError("this user is not on the list", where=WORD, advice="users of .github/abprof-bot.toml")
    if _too_long(asked, may):
        raise AbprofError(f"a budget longer than {may.longest_budget}", where=WORD)
    since = comment.at - timedelta(minutes=may.cooldown_minutes)
    for one in earlier:
        if one.author.lower() != comment.author.lower() or not since < one.at <= comment.at:
            continue
        before = _command(one.text)
        if before is None or _too_long(before, may):
            continue
        if before.commit == (asked.commit if one.pr == comment.pr else head_of(one.pr)):
            wait = (one.at - since).total_seconds() / 60
            raise AbprofError("asked a moment ago", where=WORD, advice=f"again in {wait:.0f} minutes")


def _too_long(asked: Asked, may: Rights) -> bool:
    from abprof.records.quantities import seconds

    longest = seconds(may.longest_budget, "longest_budget")
    return "budget" in asked.options and seconds(asked.options["budget"], "budget") > longest


def _command(text: str) -> Asked | None:
    try:
        return parse(text)
    except AbprofError:
        return None


# ---------------------------------------------------------------- the event


@dataclass(frozen=True)
class Asking:
    """An `issue_comment` event."""

    repo: str
    pr: int
    id: int
    comment: Written


def asking(event: Any, where: str) -> Asking:
    """The comment that was just made on a pull request. Raises AbprofError for any other event."""
    try:
        found = msgspec.convert(event, _Event)
        at = datetime.fromisoformat(found.comment.created_at)
    except (msgspec.ValidationError, ValueError):
        raise AbprofError("not an event of a comment", where=where) from None
    if found.action != "created" or found.issue.pull_request is None:
        raise AbprofError("only a comment that was just made on a pull request counts", where=where)
    if found.comment.user.type != "User":
        raise AbprofError("a bot does not ask", where=where)
    written = Written(
        found.comment.user.login, at if at.tzinfo else at.replace(tzinfo=UTC), found.comment.body, found.issue.number
    )
    return Asking(found.repository.full_name, found.issue.number, found.comment.id, written)


class _User(msgspec.Struct):
    login: str
    type: str


class _Comment(msgspec.Struct):
    id: int
    body: str
    created_at: str
    user: _User


class _Issue(msgspec.Struct):
    number: int
    pull_request: dict[str, Any] | None = None


class _Repository(msgspec.Struct):
    full_name: str


class _Event(msgspec.Struct):
    action: str
    comment: _Comment
    issue: _Issue
    repository: _Repository
