"""The first job of the bot: may this command run, and what exactly is it to measure?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from abprof.extras.bot import command
from abprof.extras.bot.event import load, repository
from abprof.extras.bot.github import Api, Hub
from abprof.extras.bot.patience import Gone, patiently
from abprof.records.errors import AbprofError
from abprof.system import toml


def admitted(event: Path, allow: Path, say: Callable[[str], None]) -> dict[str, str]:
    """What the measuring job is given, each value of plain letters: base and target as commits, the pull request, options.

    Raises AbprofError where the comment is no command, whoever wrote it may not, or the pull request's head is no longer
    the commit that it names.
    """
    asking = command.asking(load(event), f"--event {event}")
    asked = command.parse(asking.comment.text)
    try:
        may = command.rights(toml.decoded(allow.read_bytes(), str(allow)), str(allow))
    except OSError as error:
        raise AbprofError(f"cannot be read: {error}", where=f"--allow {allow}") from None
    command.allowed(asked, asking.comment, may, ())  # before anything is asked on a stranger's behalf
    hub = Hub(Api.from_environment(), repository(asking.repo))
    since = asking.comment.at - timedelta(minutes=may.cooldown_minutes)
    recent = patiently(lambda: hub.comments_since(since), say) if may.cooldown_minutes else []
    earlier = [written for id, written in recent if id != asking.id]
    command.allowed(asked, asking.comment, may, earlier, functools.cache(lambda pr: _head(hub, pr, say)))
    base, head = patiently(lambda: hub.ends(asking.pr), say)
    if head != asked.commit:
        what = f"the head of pull request {asking.pr} is {head[:10]}, not {asked.commit[:10]}"
        raise AbprofError(what, where=command.WORD, advice="look at it again, and name its commit")
    return {"base": base, "target": asked.commit, "pr": str(asking.pr), **asked.options}


def _head(hub: Hub, pr: int, say: Callable[[str], None]) -> str:
    """The head of a pull request; "" for a number that is none's: a command on a plain issue is refused."""
    try:
        return patiently(lambda: hub.head(pr), say)
    except Gone:
        return ""
