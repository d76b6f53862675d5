"""The answer as a check run: green only where something was judged and nothing speaks against it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from abprof.extras.bot.notice import Notice
from abprof.extras.bot.state import short
from abprof.records.visible import printable
from abprof.verdict.headline import certain, mostly_undecided

NAME = "abprof"
SIZES = (
    60_000,
    30_000,
    8_000,
)  # bytes of a summary; GitHub takes 65,535, and the next is for where it finds one too long
Conclusion = Literal["success", "failure", "neutral", "action_required"]


def conclusion(notice: Notice, *, outdated: bool = False) -> Conclusion:
    """`action_required`: broken. `failure`: certainly slower. `success`: judged, and nothing speaks against it.

    All else is `neutral`: nothing judged, untrusted, more than a tenth undecided, one epoch alone, interrupted, in doubt, the
    answer for another commit, or a finding that the run's --fail-on lets pass.
    """
    counts = notice.counts.named()
    if outdated or not notice.measured or counts["controls_outside"] or counts["tampered"]:
        return "neutral"
    if counts["broken"]:
        return "action_required" if "broken" in notice.fail_on else "neutral"
    if certain(counts, "slower"):
        return "failure" if "slower" in notice.fail_on else "neutral"
    judged = counts["comparisons"] - counts["unsupported"] - counts["missing"] - counts["base_not_ok"]
    doubtful = mostly_undecided(counts) or counts["quick"] or counts["undecided"] > 0.1 * max(judged, 0)
    if notice.status != "complete" or judged <= 0 or doubtful or notice.answer != "fine":
        return "neutral"
    return "neutral" if "unclear" in notice.fail_on and counts["unclear"] else "success"


@dataclass(frozen=True, order=True)
class Mark:
    """Of which run a check run is, as its external id says it: what began later is greater, and a result than its waiting."""

    began: str  # UTC
    done: bool
    run: str

    def text(self, key: str) -> str:
        """The external id."""
        return f"abprof:v1 key={short(key)} began={self.began} done={int(self.done)} run={self.run}"


_MARK = re.compile(r"abprof:v1 key=([0-9a-f]{12}) began=([0-9TZ:-]{20}) done=([01]) run=([0-9a-f]{12})")


def mark(notice: Notice) -> Mark:
    """The mark of a notice."""
    return Mark(notice.began.replace("+00:00", "Z"), notice.status != "running", short(notice.run))


def marked(external_id: str | None, key: str) -> Mark | None:
    """The mark in an external id, if it is one of this key; what other apps write there is none."""
    found = _MARK.fullmatch(external_id or "")
    return Mark(found[2], found[3] == "1", found[4]) if found and found[1] == short(key) else None


def named(key: str) -> str:
    """The check run's name: one for each key, as of the comments."""
    return f"{NAME} ({printable(key, 80)})" if key else NAME


def fields(notice: Notice, title: str, summary: str, link: str = "") -> dict[str, Any]:
    """What a check run is made or renewed with."""
    done: dict[str, Any] = {"status": "in_progress"}
    if notice.status != "running":
        done = {"status": "completed", "conclusion": conclusion(notice)}
    return done | {"output": {"title": title[:250], "summary": summary}} | ({"details_url": link} if link else {})
