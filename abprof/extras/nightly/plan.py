"""What is to be measured tonight: pure, from the nights there are. The nights are the only memory, so a night that was
killed at any point leaves nothing to mend: it has no finished run, and is done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from abprof.extras.history.index import Row

CHAIN = ("first", "step")
MOST_TRIES = 3  # nights on which nothing could run for the same commits on the same machine: then they are left alone


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
    because of the head, is no answer: it is done again, but on MOST_TRIES nights in all.
    """
    known = {_key(night) for night in nights if night.settled} | _hopeless(nights)

    def new(kind: str, base: str) -> bool:
        return (kind, base, tonight.head, tonight.asked, tonight.machine) not in known

    found = []
    chain = [night for night in nights if night.kind in CHAIN and _key(night) in known]
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


def given_up(nights: Sequence[Row], tonight: Tonight) -> str:
    """What became of tonight's head on the last of the nights that tried it in vain, where it is not tried again; else ""."""
    hopeless = _hopeless(nights)
    asked = (tonight.head, tonight.asked, tonight.machine)
    mine = [night for night in nights if (night.head, night.asked, night.machine) == asked]
    # Each question's newest night: that the head was compared with the release says nothing of its own step.
    chain = [night for night in mine if night.kind in CHAIN]
    against = [night for night in mine if night.kind not in CHAIN and night.base == tonight.release]
    newest = [asked_[-1] for asked_ in (chain, against) if asked_]
    tried = [night for night in newest if not night.settled and _key(night) in hopeless]
    return tried[0].sentence or "nothing ran" if tried else ""


def _key(night: Row) -> tuple[str, ...]:
    return night.kind, night.base, night.head, night.asked, night.machine


def _hopeless(nights: Sequence[Row]) -> set[tuple[str, ...]]:
    """What was tried in vain on as many nights as it is tried."""
    tries = Counter(_key(night) for night in nights if not night.settled)
    return {key for key, count in tries.items() if count >= MOST_TRIES}


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
