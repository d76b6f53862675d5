"""What a bisection takes from a run, and what it refuses there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from abprof.extras.bisect import start
from abprof.records.errors import AbprofError
from abprof.records.options import File, Options, Threshold

SIDES = {
    side: SimpleNamespace(id=side, kind="commit", spec=side, commit=digit * 40, label=f"branch-{side}")
    for side, digit in (("base", "a"), ("target", "b"), ("target2", "c"))
}


def run_of(*slower: str, **setup: Any) -> Any:
    """A run in which a cell of each of these targets got slower."""
    rows = [SimpleNamespace(verdict="slower", from_="base", to=to, cell=f"w/n={n}") for n, to in enumerate(slower)]
    return SimpleNamespace(
        comparisons=rows,
        side=SIDES.__getitem__,
        machine=SimpleNamespace(uuid="", kind="simulated"),
        command=None,
        options=Options(threshold=2.0, thresholds=(("*/n=1", 4.0),), margin=1.0, timer="events", seed=3, **setup),
    )


def taken(monkeypatch: pytest.MonkeyPatch, run: Any) -> Options:
    monkeypatch.setattr(start.session, "judged", lambda path, say: (run, ()))
    return start.of_run(Path("run"), Options(specs=()))


def test_ends_cells_and_settings_are_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = taken(monkeypatch, run_of("target2", "target2", contain="always"))
    assert config.specs == ("a" * 40, "c" * 40)
    assert config.cell == ("w/n=0", "w/n=1")
    assert (config.contain, config.threshold, config.timer, config.seed) == ("always", 2.0, "events", 3)


def test_a_cells_own_threshold_is_the_runs_whatever_the_file_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = File(threshold=(Threshold("*/n=0", 50.0), Threshold("*", 60.0)))
    settings = taken(monkeypatch, run_of("target", "target")).under(now).resolved("simulated", "wall")
    assert [settings.threshold_of(cell) for cell in ("w/n=0", "w/n=1")] == [2.0, 4.0]


@pytest.mark.parametrize("slower", [("target", "target2"), ("target2:v", "target:v", "target")])
def test_a_run_in_which_two_targets_got_slower_has_no_one_bad_end(
    monkeypatch: pytest.MonkeyPatch, slower: Sequence[str]
) -> None:
    with pytest.raises(AbprofError) as refused:
        taken(monkeypatch, run_of(*slower))
    for words in ("branch-target", "branch-target2", "--from-run run", "abprof bisect GOOD BAD"):
        assert words in refused.value.line


def test_a_release_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    release = SimpleNamespace(id="target", kind="dist", spec="k==1.0", commit="d" * 64, label="k==1.0")
    monkeypatch.setitem(SIDES, "target", release)
    with pytest.raises(AbprofError, match=r"no commit but k==1\.0"):
        taken(monkeypatch, run_of("target"))
