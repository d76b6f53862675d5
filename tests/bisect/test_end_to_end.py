"""`abprof bisect` on real repositories with simulated workers: the commit that was planted, each time."""

from __future__ import annotations

from pathlib import Path

from tests.bisect.histories import Story
from tests.simulated.lab import loose


def test_one_slip_of_eight(tmp_path: Path) -> None:
    story = Story(tmp_path)
    commits = story.line([1.0] * 5 + [1.03] * 4)
    story.told()
    result = story.bisect(commits[0], commits[-1], "--json")
    assert result.code == 0, result.err
    assert story.culprits(result) == [commits[5]]
    steps = loose(result)["steps"]
    assert [step["question"] for step in steps] == ["ends", "step", "step", "step", "parent", "ends"]
    assert story.lab.left_behind() == []
