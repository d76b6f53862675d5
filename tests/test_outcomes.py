"""Arms that are not ok: their epochs merge into one status, which gives a verdict; calls that launch nothing are broken."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import torch

from abprof.measure.followup import NEVER_LAUNCHED
from abprof.records import Artefact, Build, CheckResult, Outcome, Proof, Run, Status
from abprof.verdict import judge, undecided
from tests import planted
from tests.blocks import block, epochs, head
from tests.gitrepo import make_repo
from tests.simulated.planted import NewLab
from tests.simulated.scenario import Fault, Scenario, Time, Workload
from tests.tinyrepo import abprof

FAILED: list[Status] = [status for status in get_args(Status) if status not in ("ok", "identical")]
RATIOS = {"base": 1.0, "target": 1.0}


def one(base: Status, target: Status) -> Run:
    """Four epochs of the same outcomes; arms that are ok take turns."""
    arms = {arm: 1.0 for arm, status in (("base", base), ("target", target)) if status == "ok"}
    return judge(head(), [block(i, arms, status={"base": base, "target": target}) for i in range(4)])


def statuses(judged: Run) -> dict[str, str]:
    return {observation.arm: observation.status for observation in judged.observations}


@pytest.mark.parametrize("status", FAILED)
def test_base_ok_and_target_not_is_broken(status: Status) -> None:
    judged = one("ok", status)
    row = judged.comparisons[0]
    assert (row.verdict, row.reasons, row.pct, row.p) == ("broken", (status,), None, None)
    assert statuses(judged) == {"base": "ok", "target": status}
    assert judged.header.exit_code == 1
    assert [w.kind for w in judged.warnings] == ["broken"]
    assert f"target {status}: target went {status}" in judged.warnings[0].text


@pytest.mark.parametrize("status", FAILED)
def test_base_not_ok_and_target_ok_is_unclear_or_fixed(status: Status) -> None:
    judged = one(status, "ok")
    row, fixed = judged.comparisons[0], status == "wrong"
    assert (row.verdict, row.reasons, row.pct) == ("unclear", (f"base_{status}",), None)
    assert (judged.header.counts.get("fixed", 0), judged.header.counts["base_not_ok"]) == (fixed, not fixed)
    assert judged.header.counts["undecided"] == 0  # more epochs would not help
    assert [w.kind for w in judged.warnings] == ([] if fixed else ["base_not_ok"])


@pytest.mark.parametrize(("base", "target"), list(itertools.product(FAILED, FAILED)))
def test_both_not_ok(base: Status, target: Status) -> None:
    judged = one(base, target)
    row = judged.comparisons[0]
    if {base, target} <= {"unsupported", "missing"}:
        apart = base if base == target else "unsupported"
        assert (row.verdict, row.reasons) == ("unclear", (apart,))
        assert (judged.header.counts[apart], judged.header.counts["unclear"]) == (1, 0)
        assert judged.header.counts["undecided"] == 0
        assert judged.warnings == ()
    else:
        assert (row.verdict, row.reasons) == ("broken", ("both",))
    assert statuses(judged) == {"base": base, "target": target}


@pytest.mark.parametrize(("base", "target"), [("ok", "crash"), ("oom", "ok"), ("missing", "missing"), ("ok", "wrong")])
def test_a_lasting_failure_gets_no_more_epochs(base: Status, target: Status) -> None:
    arms = {arm: 1.0 for arm, status in (("base", base), ("target", target)) if status == "ok"}
    blocks = [block(i, arms, status={"base": base, "target": target}) for i in range(2)]
    assert undecided(head(), blocks) == set()


@pytest.mark.parametrize("status", ["crash", "timeout", "oom"])
def test_one_failure_that_does_not_come_back_leaves_the_arm_ok(status: Status) -> None:
    blocks = [block(1, {"base": 1.0}, status={"target": status})]
    assert judge(head(), blocks).comparisons[0].reasons == (status,)
    assert undecided(head(), blocks) == {"dense/n=0"}
    blocks.append(block(2, RATIOS))
    assert judge(head(), blocks).comparisons[0].verdict == "broken"  # one attempt is not enough to say otherwise
    assert undecided(head(), blocks) == {"dense/n=0"}
    blocks.append(block(3, RATIOS))
    judged = judge(head(), blocks)
    assert statuses(judged) == {"base": "ok", "target": "ok"}
    assert [w.kind for w in judged.warnings] == ["undecided", "flaky"]
    judged = judge(head(), [*blocks, block(4, RATIOS), block(5, RATIOS)])
    assert (judged.comparisons[0].verdict, judged.comparisons[0].epochs) == ("same", 4)
    assert [(w.kind, w.cells) for w in judged.warnings] == [("flaky", ("dense/n=0",))]


def test_an_arm_whose_check_was_lost_is_not_vouched_for_by_running_on() -> None:
    """Outputs are checked once; an arm that died before its check has right to a time only when a later one passed."""
    passed = Outcome(status="ok", check=CheckResult(ok=True))
    blocks = [block(1, {"base": 1.0}, status={"base": passed, "target": "crash"}), *(block(i, RATIOS) for i in (2, 3))]
    assert judge(head(), blocks).comparisons[0].reasons == ("crash",)
    assert undecided(head(), blocks) == set()
    blocks[1] = block(2, RATIOS, status={"target": passed})
    judged = judge(head(), blocks)
    assert (judged.observations[1].status, [w.kind for w in judged.warnings]) == ("ok", ["undecided", "flaky"])


def test_the_worst_status_wins_whatever_the_order() -> None:
    order: list[Status] = ["wrong", "crash", "oom", "timeout", "build_failed", "missing", "unsupported"]
    for worse, better in itertools.combinations(order, 2):
        for first, second in ((worse, better), (better, worse)):
            blocks = [block(1, {"base": 1.0}, status={"target": first})]
            blocks.append(block(2, {"base": 1.0}, status={"target": second}))
            assert statuses(judge(head(), blocks))["target"] == worse


def proof(side: str, *, ok: bool, epoch: int = 3, kernel: str = "ffa") -> Proof:
    artefact = Artefact(kind="module", name="ffa", path="/elsewhere/ffa/__init__.py", sha256="0" * 64)
    return Proof(
        epoch=epoch, side=side, kernel=kernel, ok=ok, reason="" if ok else "ffa is not its own", artefacts=(artefact,)
    )


def test_wrong_code_is_broken_and_never_a_number() -> None:
    blocks = epochs([1.0] * 4)
    assert judge(head(), blocks, [proof("target", ok=True)]).comparisons[0].verdict == "same"
    judged = judge(
        head(settings={"allow_wrong": True}), blocks, [proof("target", ok=True, epoch=1), proof("target", ok=False)]
    )
    row, target = judged.comparisons[0], judged.observations[1]
    assert (row.verdict, row.reasons, row.pct) == ("broken", ("proof",), None)
    assert (target.status, target.reason, target.metrics) == ("crash", "ffa is not its own", {})
    assert judged.observations[0].status == "ok"
    assert (judged.header.exit_code, [w.kind for w in judged.warnings]) == (1, ["proof"])
    assert "ffa is not its own" in judged.warnings[0].text
    assert undecided(head(), blocks[:1], [proof("target", ok=False)]) == set()


def test_a_skipped_cell_is_unsupported_on_every_arm() -> None:
    run = head(peers=("sdpa",), control=True, cell={"skip": "block 128 needs compute capability 9.0"})
    judged = judge(run, [])
    assert statuses(judged) == {"base": "unsupported", "target": "unsupported", "peer:sdpa": "unsupported"}
    assert judged.observations[0].reason == "block 128 needs compute capability 9.0"
    assert judged.comparisons[0].reasons == ("unsupported",)


def test_what_is_known_without_measuring_gives_way_to_measuring() -> None:
    known = block(0, {}, status={"base": "identical", "target": "identical"}, metric="", timer="")
    assert judge(head(), [known]).comparisons[0].reasons == ("identical_code",)
    row = judge(head(), [known, *epochs([1.03] * 4)]).comparisons[0]
    assert (row.verdict, row.epochs, row.metric) == ("slower", 4, "wall")


def test_variants_come_from_the_builds_when_the_workload_names_none() -> None:
    named = head(variants=("triton",))
    built = tuple(Build(side=s, kernel="ffa", key="k", variants=("triton",)) for s in ("base", "target"))
    workload = dataclasses.replace(named.workloads[0], variants=())
    run = msgspec.structs.replace(named, workloads=(workload,), builds=built)
    assert [(row.from_, row.to) for row in judge(run, []).comparisons] == [("base:triton", "target:triton")]


def controlled(shift: float, number: int = 4, cell: str = "dense/n=0", target: float = 1.0) -> list:
    return [
        block(i, {"base": 1.0, "target": target * r, "control": shift * r}, cell=cell)
        for i, r in enumerate([1.0, 1.001, 0.999, 1.0, 1.0][:number])
    ]


def test_a_control_inside_the_margin_is_trusted() -> None:
    judged = judge(head(control=True), controlled(1.0))
    assert [(row.from_, row.to, row.verdict) for row in judged.controls] == [("base", "control", "same")]
    assert judged.header.trusted
    assert judged.header.false_alarm_bound == pytest.approx(0.95)
    assert len(judged.comparisons) == 1


def test_a_control_beyond_the_margin_makes_the_run_untrusted() -> None:
    judged = judge(head(control=True), controlled(1.01, target=1.05))
    assert judged.comparisons[0].verdict == "slower"
    assert (judged.header.trusted, judged.header.exit_code, judged.header.false_alarm_bound) == (False, 4, 1.0)
    assert judged.warnings[0].kind == "untrusted"
    assert judged.header.sentence.startswith("Do not act on this run")


def test_a_control_takes_its_cell_to_the_first_look_and_no_further() -> None:
    run = head(control=True)
    noisy = [block(i, {**RATIOS, "target": 1.05, "control": r}) for i, r in enumerate([1.0, 1.05, 0.95, 1.0])]
    assert undecided(run, noisy) == set()  # the control is undecided, the target is not
    same = {"base": "identical", "target": "identical"}
    idle = [block(i, {"base": 1.0, "control": 1.0}, status=same) for i in range(4)]
    assert undecided(run, idle[:3]) == {"dense/n=0"}
    assert undecided(run, idle) == set()
    assert judge(run, idle).comparisons[0].reasons == ("identical_code",)


NOTHING = Fault("never_launched", "phases", side="target", cell="w/case=idle")


def scenario(*faults: Fault) -> Scenario:
    load = Workload(kernel="k", presets={"default": {"case": ["idle", "lazy", "busy"]}})
    times = [Time(ns=1e6), Time(factor=0.1, side="target", cell="w/case=idle")]
    return Scenario(workloads={"w": load}, times=times, faults=list(faults))


def test_ten_times_faster_is_broken_when_nothing_was_launched(new_lab: NewLab) -> None:
    """On the target; a base that launches nothing is no breakage of the target."""
    idle_base = dataclasses.replace(NOTHING, side="base", cell="w/case=lazy")
    result = new_lab(scenario(NOTHING, idle_base)).abprof("main", "fast", "--epochs", "4")
    assert result.code == 1
    assert result.table() == {"w/case=idle": "broken", "w/case=lazy": "unclear", "w/case=busy": "same"}
    assert result.status("w/case=idle", "target") == ("wrong", NEVER_LAUNCHED)
    [seen] = [o for o in result.run.observations if (o.cell, o.arm) == ("w/case=idle", "target")]
    assert seen.metrics == {}, "a speed is never reported on it"


@pytest.mark.slow
def test_one_pass_that_saw_nothing_outweighs_the_epochs_that_did_not_look(new_lab: NewLab) -> None:
    """The pass follows the six epochs, as the seventh; no other says otherwise."""
    result = new_lab(scenario(dataclasses.replace(NOTHING, epoch=7))).abprof("main", "fast", "--epochs", "6")
    assert result.verdict("w/case=idle") == "broken"


@pytest.mark.gpu
@pytest.mark.alone
def test_a_kernel_that_remembers_its_answers_is_broken(tmp_path: Path) -> None:
    """On a GPU: the target returns its first result and launches nothing; its outputs stay right."""
    assert torch.cuda.is_available()
    repo = make_repo(tmp_path / "repo")
    files = planted.files() | {".gitignore": "runs/\n"}
    repo.commit("kernels", files)
    plain = files["kernels/planted/blocks.py"]
    launch = "    kernel[grid](*args, **options)\n"
    keeps = f"    if not hasattr(y, 'kept'):\n    {launch}    y.kept = True\n"
    assert launch in plain
    repo.branch("remembers")
    repo.commit("remembers", {"kernels/planted/blocks.py": plain.replace(launch, keeps)})
    done = abprof("main", "remembers", "--only", "part=blocks", "--no-peers", "--json", cwd=repo.path, home=tmp_path)
    rows = [row for row in done.run["comparisons"] if row["from"] == "base"]
    assert [row["verdict"] for row in rows] == ["broken"], json.dumps(rows)
    assert NEVER_LAUNCHED in [seen["reason"] for seen in done.run["observations"]]
