"""The answer as a check run: green only where something was judged and nothing speaks against it. Pure."""

from __future__ import annotations

from typing import Any, Literal

from abprof.answer import certain, mostly_undecided
from abprof.publish.notice import Notice

NAME = "abprof"
MOST_BYTES = 60_000  # of a summary; GitHub takes 65,535
Conclusion = Literal["success", "failure", "neutral", "action_required"]


def conclusion(notice: Notice, *, outdated: bool = False) -> Conclusion:
    """`action_required`: broken. `failure`: certainly slower. `success`: judged, and nothing speaks against it.

    All else is `neutral`: nothing judged, untrusted, more than a tenth undecided, one epoch alone, interrupted, in doubt, the
    answer for another commit, or a finding that the run's --fail-on lets pass.
    """
    counts = notice.counts.named()
    if outdated or not notice.measured or counts["controls_outside"]:
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


def fields(notice: Notice, title: str, summary: str, link: str = "") -> dict[str, Any]:
    """What a check run is made or renewed with."""
    done: dict[str, Any] = {"status": "in_progress"}
    if notice.status != "running":
        done = {"status": "completed", "conclusion": conclusion(notice)}
    return done | {"output": {"title": title[:250], "summary": summary}} | ({"details_url": link} if link else {})
