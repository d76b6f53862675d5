"""`--check outside`: a package that deceives its own process does not deceive a second process."""

import os
import re
from pathlib import Path

import pytest

from abprof.measure.out_of_process import KEPT
from tests.gitrepo import GitRepo
from tests.simulated.planted import NewLab, broken, load
from tests.simulated.scenario import Scenario, Time
from tests.test_sandbox import LETS, fake
from tests.tinyrepo import PACKAGE, Done, abprof_afresh, source, tiny_repo

WRONG = source(100).replace("2.0f", "3.0f")
# From now on every check in this process succeeds.
PATCHED_CHECK = """
import gc as _gc, types as _types
import abprof.kit as _kit
for _found in _gc.get_objects():
    if isinstance(_found, _types.ModuleType) and getattr(_found, "KERNEL", "") == "tiny":
        _found.check = lambda *args: _kit.Check(True)
"""
# Remembers by where the inputs lie: their values are never looked at again.
KEPT_BY_ADDRESS = (
    PACKAGE.replace("def double(x):", "_kept = {}\n\ndef _double(x):")
    + """
def double(x):
    if x.data_ptr() not in _kept:
        _kept[x.data_ptr()] = _double(x), x  # held, so that no other inputs ever lie there
    return _kept[x.data_ptr()][0]
"""
)
# Remembers by the seed that it was built to expect, from the same generator as the workload.
KEPT_BY_SEED = """
_answer = None
_honest = double
def double(x):
    global _answer
    if _answer is None:
        _answer = torch.randn(x.numel(), generator=torch.Generator().manual_seed(0)) * 2
    return _answer
"""


def test_each_side_is_judged_and_the_base_first(new_lab: NewLab) -> None:
    """Memory that base keeps too belongs to the workload's preparation; no side fails for it."""
    cells = ["honest", "wrong", "kept", "packed", "both", "base", "dead"]
    faults = [
        broken("wrong", "wrong", "target", verb="hand"),
        broken("kept", "kept", "target", verb="hand"),
        broken("packed", "packed", "target", verb="hand"),
        broken("kept", "both", verb="hand"),
        broken("wrong", "base", "base", verb="hand"),
        broken("kill", "dead", "judge", verb="examine"),
    ]
    asked = Scenario(workloads={"w": load(cells)}, times=[Time(ns=1e6)], faults=faults)
    result = new_lab(asked).abprof("main", "fast", "--check", "outside", "--epochs", "4")
    status = {cell: [result.status(f"w/case={cell}", arm) for arm in ("base", "target")] for cell in cells}
    status = {
        cell: [(word, re.sub(r"seeds? [\d, ]+", "seed N", why)) for word, why in two] for cell, two in status.items()
    }
    assert status["honest"] == status["packed"] == status["both"] == [("ok", ""), ("ok", "")]
    outside = ("wrong", "checked outside its process (seed N): output 0: largest error 1, allowed 1e-6")
    assert status["wrong"] == [("ok", ""), outside]
    assert status["kept"] == [("ok", ""), ("wrong", f"{KEPT} (seed N)")]
    assert status["base"] == [outside, ("ok", "")]
    for arm_status, why in status["dead"]:
        assert arm_status == "crash"
        assert why.startswith("its outputs could not be checked outside its process: ")
    assert result.verdict("w/case=kept") == result.verdict("w/case=wrong") == "broken"
    assert result.verdict("w/case=honest") == "same"
    assert result.run.status == "complete"


def test_the_inside_check_starts_no_other_process(new_lab: NewLab) -> None:
    asked = Scenario(workloads={"w": load(["kept"])}, faults=[broken("wrong", "kept", verb="hand")])
    result = new_lab(asked).abprof("main", "fast", "--epochs", "4")
    assert result.status("w/case=kept", "target") == ("ok", "")
    assert result.run.options.check == "inside"


def test_timed_calls_are_checked_on_inputs_that_changed(
    new_lab: NewLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated worker writes beside its scenario, so its wall lets everything through."""
    monkeypatch.setenv("PATH", fake(tmp_path / "wall", LETS), prepend=os.pathsep)
    faults = [broken("wrong", "skips", "target", verb="turn"), broken("wrong", "both", verb="turn")]
    asked = Scenario(workloads={"w": load(["skips", "honest", "both"])}, times=[Time(ns=1e6)], faults=faults)
    lab = new_lab(asked)
    result = lab.abprof("main", "fast", "--untrusted", "--epochs", "4")
    assert (result.status("w/case=honest", "target"), result.verdict("w/case=skips")) == (("ok", ""), "broken")
    assert "a timed call's outputs, on inputs drawn for it: " in result.status("w/case=skips", "target")[1]
    assert result.status("w/case=both", "base")[0] == "wrong", "the target is not blamed alone"
    assert result.run.options.untrusted
    assert "Code under test was not trusted: run in bubblewrap 9" in (result.folder / "report.md").read_text()
    keys = {build.side: build.key for build in result.run.builds}
    assert keys["target"].endswith("-target"), "base's build is never shared with hostile code"
    by_hand = lab.abprof("main", "fast", "--check", "outside", "--epochs", "4")
    assert by_hand.status("w/case=skips", "target") == ("ok", ""), "inputs of timed calls do not change"


def target_outcome(done: Done, arm: str = "target") -> tuple[str, str]:
    """Status of the target and its reason."""
    (row,) = (row for row in done.run["observations"] if row["arm"] == arm)
    return row["status"], row["reason"]


PATCHED = {"kernels/tiny/__init__.py": PATCHED_CHECK + PACKAGE, "kernels/tiny/tiny.c": WRONG}
BRANCHES = {  # -> files, and words of the reason
    "patched": (PATCHED, "largest error"),
    "by_seed": ({"kernels/tiny/__init__.py": PACKAGE + KEPT_BY_SEED}, "largest error"),
    "by_address": ({"kernels/tiny/__init__.py": KEPT_BY_ADDRESS}, "what an earlier call made"),
    "honest": ({"kernels/tiny/tiny.c": source(250)}, ""),
}


@pytest.mark.slow
def test_what_deceives_its_own_process_does_not_deceive_another(tmp_path: Path) -> None:
    """Each is a target of one run, and honest code passes. In its own process the patched check does, too."""
    repo: GitRepo = tiny_repo(tmp_path / "repo", 100)
    for name, (files, _) in BRANCHES.items():
        repo.checkout("main")
        repo.branch(name)
        repo.commit("much faster", files)
    asked, places = (
        ("--device", "cpu", "--no-peers", "--quick", "--json"),
        {"cwd": repo.path, "home": tmp_path / "home"},
    )
    done = abprof_afresh("main", *BRANCHES, *asked, "--check", "outside", **places)
    for arm, (name, (_, reason)) in zip(("target", "target2", "target3", "target4"), BRANCHES.items(), strict=True):
        status, said = target_outcome(done, arm)
        assert (status, reason in said) == ("ok" if name == "honest" else "wrong", True), (name, said)
    assert done.run["options"]["check"] == "outside"
    assert not list(Path(done.run["run_dir"]).rglob("*.outputs"))
    assert target_outcome(abprof_afresh("main", "patched", *asked, **places)) == ("ok", "")
