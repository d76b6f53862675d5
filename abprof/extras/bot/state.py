"""Which comment on a pull request is ours, what it says, and what is to be done with it. Pure.

A comment's last line is hidden and says of which run it is:
`<!-- abprof:v1 key=... answer=act head=... began=... run=... text=... -->`. Whoever writes it elsewhere in a comment writes
text; whoever writes it as a last line is not its author, which the posting stage asks GitHub (abprof/extras/bot/github.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from abprof.extras.bot.notice import Notice

Policy = Literal["always", "on-change", "on-alert", "never"]
POLICIES: tuple[Policy, ...] = ("always", "on-change", "on-alert", "never")
_LINE = re.compile(
    r"<!-- abprof:v1 key=(?P<key>[0-9a-f]{12}) answer=(?P<answer>act|confirm|unjudged|fine|running) "
    r"head=(?P<head>[0-9a-f]{40}) began=(?P<began>[0-9TZ:+-]{20,25}) run=(?P<run>[0-9a-f]{12}) text=(?P<text>[0-9a-f]{12}) -->"
)


@dataclass(frozen=True)
class State:
    """What the hidden line says."""

    key: str  # which of several comments on one pull request
    answer: str
    head: str
    began: str  # of the run, UTC: later is newer
    run: str
    text: str  # hash of what is shown

    @property
    def line(self) -> str:
        """The hidden line."""
        return (
            f"<!-- abprof:v1 key={self.key} answer={self.answer} head={self.head} began={self.began} "
            f"run={self.run} text={self.text} -->"
        )

    def rank(self, head: str) -> tuple[bool, str, bool, str]:
        """What is newer is greater: first what speaks of the pull request's head, then the later run, then its result."""
        return self.head == head, self.began.replace("+00:00", "Z"), self.answer != "running", self.run


@dataclass(frozen=True)
class Found:
    """A comment of our own that is not minimised."""

    id: int
    node: str
    state: State
    url: str = ""


@dataclass(frozen=True)
class Step:
    """What to do next: at most one comment written, and some minimised."""

    do: Literal["post", "edit", "nothing"]
    edit: Found | None = None
    minimise: tuple[Found, ...] = field(default=())
    replaces: str = ""  # the commit that stood there before
    why: str = ""


def short(text: str) -> str:
    """A hash that stands for foreign text in the hidden line."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


def state_of(notice: Notice, key: str, text: str) -> State:
    """The state that a comment with this text has."""
    return State(short(key), notice.answer, notice.head, notice.began, short(notice.run), short(text))


def parse(body: str, key: str) -> State | None:
    """The state in the last line of a comment, if it is one of this key."""
    last = body.rstrip().rsplit("\n", 1)[-1].strip()
    found = _LINE.fullmatch(last)
    return State(**found.groupdict()) if found and found["key"] == short(key) else None


def step(ours: State, live: Sequence[Found], head: str, *, post: bool) -> Step:
    """The next step towards one comment with the newest answer: edited in place where the answer is the same, posted anew and
    the older minimised where it flipped, never an older one over a newer one.

    `head`: the pull request's head commit now. `post`: whether the policy wants a comment where none is.
    """
    ordered = sorted(live, key=lambda one: (one.state.rank(head), one.id), reverse=True)
    if not ordered:
        return Step("post") if post else Step("nothing", why="the policy asks for no comment on this")
    best, older = ordered[0], tuple(ordered[1:])
    if best.state == ours:
        return Step("nothing", minimise=older, why="it stands there")
    if best.state.rank(head) > ours.rank(head):
        return Step("nothing", minimise=older, why="a newer result stands there")
    replaces = best.state.head if best.state.head != ours.head else ""
    if best.state.answer == ours.answer:
        return Step("edit", edit=best, minimise=older, replaces=replaces)
    return Step("post", replaces=replaces)


def wanted(policy: Policy, notice: Notice) -> bool:
    """Whether a pull request without a comment gets one. One that has one keeps it up to date, but for `never`."""
    if policy == "always":
        return True
    if policy == "on-change":
        return notice.answer != "running" and not notice.unchanged
    return policy == "on-alert" and notice.answer in ("act", "confirm")
