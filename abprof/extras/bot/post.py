"""A notice to everywhere it was asked to go: the comment, and the check run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from abprof.extras.bot import check as checks
from abprof.extras.bot.comment import Around, comment, title
from abprof.extras.bot.event import Origin, read_event
from abprof.extras.bot.notice import Notice
from abprof.extras.bot.patience import TooLong, patiently
from abprof.extras.bot.state import Policy
from abprof.extras.bot.upsert import Hub as Conversation
from abprof.extras.bot.upsert import upsert
from abprof.records.errors import AbprofError

if TYPE_CHECKING:
    from abprof.extras.bot.github import Hub

AHEAD = timedelta(hours=1)  # how far the clock of the machine that measured may be ahead of this one


@dataclass(frozen=True)
class Target:
    """Where it goes, as it was asked for."""

    repo: str = ""
    pr: int = 0
    event: str = ""  # file
    artifact: bool = False  # the notice is a file that anybody may have written


def everywhere(
    notice: Notice, target: Target, policy: str, key: str, around: Around, *, check: bool, say: Callable[[str], None]
) -> Iterator[str]:
    """A line for each thing that was done. Raises AbprofError."""
    _timely(notice, datetime.now(UTC))
    origin = read_event(Path(target.event)) if target.event else None
    if not origin and not target.pr:
        raise AbprofError("no pull request", where="abprof comment", advice="--pr N, or --event FILE")
    repo = _repo(target, origin)
    if origin and origin.head != notice.head:
        what = f"the artifact speaks of commit {notice.head[:10]}, the event of {origin.head[:10]}"
        raise AbprofError(what, where="--artifact", advice="only the answer for the event's own commit is posted")
    from abprof.extras.bot.github import Api, Hub

    hub = Hub(Api.from_environment(), repo)
    if target.artifact and not origin:
        _of_the_head(hub, target.pr, notice, say)
    if check:
        yield _checked(hub, notice, key, around, say)
    if policy == "never":
        yield "comment: nothing, the policy is never"
        return
    pr = target.pr or (origin.pr if origin else 0) or patiently(lambda: hub.pull_of(cast("Origin", origin)), say)

    yield _commented(hub, pr, notice, key, policy, around, say)


def _timely(notice: Notice, now: datetime) -> None:
    """Raises AbprofError for a run that began after now: what is newest stays, and it would stay for good."""
    try:
        late = datetime.fromisoformat(notice.began) > now + AHEAD
    except ValueError:
        raise AbprofError(f"{notice.began} is no time", where="began of the run") from None
    if late:
        what = f"{notice.began} is later than now, {now:%Y-%m-%dT%H:%M:%SZ}"
        raise AbprofError(what, where="began of the run", advice="set the clock of the machine that measured")


def _of_the_head(hub: Conversation, pr: int, notice: Notice, say: Callable[[str], None]) -> None:
    """Raises AbprofError for an artifact of another commit than the pull request's head: no event vouches for it."""
    head = patiently(lambda: hub.head(pr), say)
    if head != notice.head:
        what = f"the artifact speaks of commit {notice.head[:10]}, the head of {pr} is {head[:10]}"
        raise AbprofError(what, where="--artifact", advice="only the answer for the head is posted without an event")


def _checked(hub: Hub, notice: Notice, key: str, around: Around, say: Callable[[str], None]) -> str:
    for size in checks.SIZES:
        fields = checks.fields(notice, title(notice), comment(notice, around, size), around.link)
        try:
            made, url = patiently(partial(hub.check, notice.head, key, checks.mark(notice), fields), say)
        except TooLong:
            continue
        done = fields.get("conclusion", fields["status"]) if made else "nothing: a newer result stands there"
        return f"check {done} {url}"
    raise AbprofError("even the shortest check run is refused as too long", where="GitHub")


def _commented(
    hub: Conversation, pr: int, notice: Notice, key: str, policy: str, around: Around, say: Callable[[str], None]
) -> str:
    def render(head: str, replaces: str, most: int) -> str:
        return comment(notice, replace(around, head=head, replaces=replaces), most)

    done = upsert(hub, pr, notice, key, cast("Policy", policy), render, say)
    return f"comment: {done.what} {done.url}".rstrip()


def _repo(target: Target, origin: Origin | None) -> str:
    if origin and target.repo and origin.repo.lower() != target.repo.lower():
        raise AbprofError(f"{target.repo}, but the event is of {origin.repo}", where="--repo", advice="leave it out")
    repo = target.repo or (origin.repo if origin else "")
    if not repo:
        raise AbprofError("no repository", where="abprof comment", advice="--repo OWNER/NAME, or --event FILE")
    return repo
