"""What is to be measured tonight: pure, from the nights there are. The nights are the only memory, so a night that was
killed at any point leaves nothing to mend: it has no finished run, and is done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from abprof.history.index import Row

CHAIN = ("first", "step")


@dataclass(frozen=True)
class Tonight:
    """What identifies a night's work."""

    head: str  # commit of the branch
    release: str  # commit of the fixed release, or ""
    asked: str  # hash of the matrix as it was asked for
    machine: str  # as the index has it


@dataclass(frozen=True)
class Job:
    """One run of the night: its commits, base first."""

    kind: Literal["first", "step", "against"]
    commits: tuple[str, ...]


def jobs(nights: Sequence[Row], tonight: Tonight) -> list[Job]:
    """What to measure, nothing twice. `nights` are those of one series, in their order.

    The head is compared with the head of the newest night that measured any; alone it is profiled on the first night, and
    when the same commit is asked for with another matrix or on another machine. A night on which nothing could run, and not
    because of the head, is no answer: it is done again.
    """
    known = {(night.kind, night.base, night.head, night.asked, night.machine) for night in nights if night.settled}

    def new(kind: str, base: str) -> bool:
        return (kind, base, tonight.head, tonight.asked, tonight.machine) not in known

    found = []
    chain = [night for night in nights if night.kind in CHAIN and night.settled]
    last_ = last(nights)
    settled = any(
        night.head == tonight.head and (night.asked, night.machine) == (tonight.asked, tonight.machine)
        for night in chain
    )
    if not last_ or last_ == tonight.head:
        if not settled:
            found.append(Job("first", (tonight.head,)))
    elif new("step", last_):
        found.append(Job("step", (last_, tonight.head)))
    if tonight.release and tonight.release != tonight.head and new("against", tonight.release):
        found.append(Job("against", (tonight.release, tonight.head)))
    return found


def last(nights: Sequence[Row]) -> str:
    """The commit that was judged last: the head of the newest night that measured any; "" where there is none."""
    return next((night.head for night in reversed(nights) if night.kind in CHAIN and night.heads), "")


def after(nights: Sequence[Row], commit: str) -> list[Row]:
    """The nights of a stretch that begins after the last with this head: what was judged before is forgotten."""
    at = max((place for place, night in enumerate(nights) if night.kind in CHAIN and night.head == commit), default=-1)
    return [night for place, night in enumerate(nights) if place > at or night.kind not in CHAIN]


def number_of(nights: Sequence[Row]) -> int:
    """Tonight's number."""
    return 1 + max((night.number for night in nights), default=0)
