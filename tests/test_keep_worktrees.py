"""`--keep-worktrees`: they are where the run says, and go when it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulated.lab import Lab
from tests.simulated.planted import SPEEDS


def test_kept_worktrees_are_said_and_removed_as_said(tmp_path: Path) -> None:
    lab = Lab(tmp_path, SPEEDS)
    result = lab.abprof("main", "fast", "--quick", "--keep-worktrees")
    assert result.folder
    said = r"(base|target)'s worktree is kept: (.+)"
    kept = {side: Path(path) for side, path in re.findall(said, result.err)}
    assert list(kept) == ["base", "target"]
    assert "WHO = 'fast'" in next((kept["target"] / "kernels").rglob("__init__.py")).read_text()
    assert re.findall(said, (result.folder / "output.txt").read_text()) == re.findall(said, result.err)
    assert "abprof clean --all removes kept worktrees" in result.err
    assert lab.command("clean", "--all").code == 0
    assert not any(path.exists() for path in kept.values())


def test_without_the_option_nothing_is_said(tmp_path: Path) -> None:
    assert "worktree" not in Lab(tmp_path, SPEEDS).abprof("main", "fast", "--quick").err
