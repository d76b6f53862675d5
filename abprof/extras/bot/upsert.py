"""One comment with the newest answer, whatever happens on the way: look, take one step, look again, until nothing is left.

Because every step starts from what GitHub has, a connection that was cut, a second poster and a killed job all end in
the same place: nothing is written twice, and nothing older over something newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from abprof.extras.bot.notice import Notice
from abprof.extras.bot.patience import Gone, TooLong, patiently
from abprof.extras.bot.state import Found, Policy, State, Step, state_of, step, wanted
from abprof.records.errors import AbprofError

STEPS = 8  # after as many somebody else writes as fast as we do
SIZES = (59_500, 30_000, 8_000)  # bytes, the hidden line apart; the next where the server finds a comment too long
Render = Callable[[str, str, int], str]  # (the head now, the commit replaced, most bytes) -> Markdown
Say = Callable[[str], None]


class Hub(Protocol):
    """The conversation of pull (merge) requests on some server. Each method raises AbprofError, or `Passing`."""

    def head(self, pr: int) -> str:
        """The head commit now."""

    def own(self, pr: int, key: str, written: Iterable[int] = ()) -> list[Found]:
        """Our own comments of this key that are not folded away; `written` are ids that a list may not hold yet."""

    def post(self, pr: int, body: str) -> tuple[int, str]:
        """Make a comment: its id and address. Raises TooLong."""

    def state(self, pr: int, id: int, key: str) -> Found | None:
        """A comment as it is now; None where it is gone."""

    def edit(self, pr: int, id: int, body: str) -> tuple[int, str]:
        """Replace a comment's text. Raises TooLong, and Gone for one that was deleted."""

    def minimise(self, node: str) -> None:
        """Fold a comment away as outdated."""


@dataclass(frozen=True)
class Posted:
    """How it ended."""

    what: str  # posted, edited, or why nothing was
    url: str = ""


def upsert(hub: Hub, pr: int, notice: Notice, key: str, policy: Policy, render: Render, say: Say = print) -> Posted:
    """Bring the pull request's comment to this notice. Raises AbprofError when GitHub refuses, or passes no more in time."""
    if policy == "never":
        return Posted("nothing: the policy is never")
    post = _Post(hub, pr, notice, key, policy, cache(render))
    return patiently(post.run, say)


class _Post:
    """One bringing up to date; what it wrote it remembers, for a list may not hold it at once."""

    def __init__(self, hub: Hub, pr: int, notice: Notice, key: str, policy: Policy, render: Render) -> None:
        self.hub, self.pr, self.notice, self.key, self.policy, self.render = hub, pr, notice, key, policy, render
        self.written: dict[int, str] = {}
        self.gone: dict[int, Gone] = {}  # comments that could not be edited for it
        self.done = ""
        self.size = 0

    def run(self) -> Posted:
        for _ in range(STEPS):
            head = self.hub.head(self.pr)
            live = self.hub.own(self.pr, self.key, self.written)
            ours = self._state(head)
            now = step(ours, live, head, post=wanted(self.policy, self.notice))
            for old in now.minimise:
                self.hub.minimise(old.node)
            if now.edit is not None and now.edit.id in self.gone:  # it is there, and this token may not write to it
                raise self.gone[now.edit.id]
            if now.do == "nothing":
                return self._ended(now, live, ours)
            self._write(now, head, ours)
        raise AbprofError(
            "somebody else keeps changing the comment", where=f"pull request {self.pr}", advice="one poster at a time"
        )

    def _state(self, head: str) -> State:
        return state_of(self.notice, self.key, self.render(head, "", SIZES[self.size]))

    def _ended(self, now: Step, live: list[Found], ours: State) -> Posted:
        url = next((one.url for one in live if one.state == ours), "")
        return Posted(self.done if url and self.done else f"nothing: {now.why}", url)

    def _write(self, now: Step, head: str, ours: State) -> None:
        body = f"{self.render(head, now.replaces, SIZES[self.size])}\n{ours.line}\n"
        try:
            if now.edit is None:
                id, url = self.hub.post(self.pr, body)
                self.done = "posted"
            elif self.hub.state(self.pr, now.edit.id, self.key) == now.edit:  # nobody wrote to it in the meantime
                id, url = self.hub.edit(self.pr, now.edit.id, body)
                self.done = "edited"
            else:
                return
        except Gone as error:
            if now.edit is None:
                raise
            self.gone[now.edit.id] = error  # deleted between the look and the edit: look again
            return
        except TooLong as error:
            if self.size == len(SIZES) - 1:
                raise AbprofError(f"even the shortest comment is refused: {error}", where="GitHub") from None
            self.size += 1
            return
        self.written[id] = url
