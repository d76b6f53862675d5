"""The history that tests.benchmarks.planted_bisect searches: which commits touch the kernel, and what one of them does to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.slipping import COMMITS, repository


@pytest.mark.slow  # 65 commits
@pytest.mark.parametrize(
    ("device", "before", "after"), [("cuda", "STEPS = 64", "STEPS = 66"), ("cpu", "STEPS 64", "STEPS 192")]
)
def test_one_commit_adds_work_and_the_others_only_notes(tmp_path: Path, device: str, before: str, after: str) -> None:
    made = repository(tmp_path / "repo", device, slip=40, every=13)
    assert len(made.commits) == 1 + COMMITS
    assert made.repo.git("rev-list", "--reverse", "HEAD").split() == list(made.commits)
    touching = made.repo.git("rev-list", "--reverse", f"{made.commits[0]}..HEAD", "--", "kernels").split()
    assert [made.commits.index(commit) for commit in touching] == [13, 26, 39, 40, 52]
    for commit in touching:
        lines = made.repo.git("show", "--format=", "--unified=0", commit, "--", "kernels").splitlines()
        changed = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))]
        slip = commit == made.commits[40]
        assert [after in line or before in line for line in changed] == ([True, True] if slip else [False])
