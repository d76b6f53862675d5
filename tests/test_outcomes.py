"""Arms that are not ok: how their epochs merge into one status, and what verdict that makes."""

from __future__ import annotations

import itertools
from typing import get_args

import msgspec
import pytest

from abprof.records import Artefact, Build, CheckResult, Failure, Outcome, Proof, Status
from abprof.report import facts
from abprof.verdict import Judgement, judge, undecided
from abprof.verdict.warnings import workloads_own
from tests.blocks import block, epochs, head, side

FAILED: list[Status] = [status for status in get_args(Status) if status not in ("ok", "identical")]
RATIOS = {"base": 1.0, "target": 1.0}


def one(base: Status, target: Status) -> Judgement:
    """Four epochs of the same outcomes; arms that are ok take turns."""
    arms = {arm: 1.0 for arm, status in (("base", base), ("target", target)) if status == "ok"}
    return judge(head(), [block(i, arms, status={"base": base, "target": target}) for i in range(4)])


def statuses(judged: Judgement) -> dict[str, str]:
    return {observation.arm: observation.status for observation in judged.observations}


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (
            "missing",
            "add it on that side, or compare refs that both have it; abprof.toml can set its path (docs/CONFIG.md)",
        ),
        ("wrong", "the workload's check() compares with its reference; the speed of a wrong answer means nothing"),
        ("unsupported", "the kernel rejects the case: leave it out in the workload's skip(), or support it"),
    ],
)
def test_advice_names_no_log_where_there_is_none(status: Status, advice: str) -> None:
    (warning,) = [each for each in one("ok", status).warnings if each.kind == "broken"]
    assert warning.advice == advice


def test_advice_names_the_log_of_the_side_that_failed() -> None:
    judged = judge(head(builds=(failed_build("target"),)), [])
    (warning,) = [each for each in judged.warnings if each.kind == "broken"]
    assert warning.advice == "read logs/build.log in the run folder"


INPUTS, REFERENCE, CHECK = "inputs() of w.py, line 3", "reference() of w.py, line 5", "check() of w.py, line 7"
PASSED = " did not fail for another arm: fix "
READ, MAYBE = " accepts the output of another arm: fix ", " may not expect what this arm returned: fix "


def own(place: str) -> str:
    return f"fix {place} in the workload"


def fell(at: str = "", status: Status = "crash") -> Outcome:
    return Outcome(status=status, reason="as planted", at=at, log="survey.log")


@pytest.mark.parametrize(
    ("base", "target", "says"),
    [
        (fell(CHECK), fell(CHECK), own(CHECK)),
        (fell("check() of w.py, line 8"), fell(CHECK), CHECK + MAYBE + "target, or that function"),
        (fell(status="oom"), fell(CHECK), CHECK + MAYBE + "target, or that function"),
        (fell(CHECK), Outcome(status="ok", check=CheckResult(ok=True)), CHECK + READ + "base, or that function"),
        (fell(status="build_failed"), fell(CHECK), CHECK + MAYBE + "target, or that function"),
        (fell(INPUTS), fell(INPUTS), own(INPUTS)),
        (fell(status="build_failed"), fell(INPUTS), own(INPUTS)),
        (fell(INPUTS), Outcome(status="ok", check=CheckResult(ok=True)), INPUTS + PASSED + "base, or that function"),
        (Outcome(status="ok"), fell(INPUTS), INPUTS + PASSED + "target, or that function"),
        (fell(CHECK), fell(INPUTS), INPUTS + PASSED + "target, or that function"),
        (fell(), fell(INPUTS), INPUTS + PASSED + "target, or that function"),
        (fell(INPUTS), fell(REFERENCE), own(REFERENCE)),
        (fell(status="build_failed"), fell(REFERENCE), own(REFERENCE)),
        (Outcome(status="ok"), fell(REFERENCE), REFERENCE + PASSED + "target, or that function"),
        (fell("w.py"), fell("w.py"), own("w.py")),
    ],
)
def test_a_crash_in_the_workload_is_its_own_where_no_side_can_have_had_a_part_in_it(
    base: Outcome, target: Outcome, says: str
) -> None:
    arms = {arm: 1.0 for arm, outcome in (("base", base), ("target", target)) if outcome.status == "ok"}
    blocks = [block(i, arms, status={"base": base, "target": target}) for i in range(4)]
    judged = judge(head(), blocks)
    (warning,) = [each for each in judged.warnings if each.kind in ("broken", "base_not_ok")]
    assert warning.advice == f"{says}; the traceback is in logs/survey.log in the run folder"


def test_a_control_is_no_other_side_and_a_run_of_one_branch_has_none() -> None:
    seen = {"base": fell(CHECK), "control": fell(CHECK), "base:v": fell(CHECK)}
    assert workloads_own("base", seen)
    assert not workloads_own("base", {**seen, "target": fell(status="build_failed")})
    assert workloads_own("base", {**seen, "target": fell(CHECK)})
    assert workloads_own("base", {**seen, "peer:torch": fell(CHECK)})
    assert not workloads_own("base", {**seen, "base:v": Outcome(status="ok", check=CheckResult(ok=True))})
    assert not workloads_own("base", {"base": fell(), "target": fell(CHECK)})


# ---------------------------------------------------------------- the table


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
def test_base_not_ok_and_target_ok_is_unclear(status: Status) -> None:
    judged = one(status, "ok")
    row = judged.comparisons[0]
    assert (row.verdict, row.reasons, row.pct) == ("unclear", (f"base_{status}",), None)
    assert judged.header.counts["base_not_ok"] == 1
    assert judged.header.counts["undecided"] == 0  # more epochs would not help
    assert [w.kind for w in judged.warnings] == ["base_not_ok"]


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


# ---------------------------------------------------------------- epochs that disagree


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


@pytest.mark.parametrize("status", ["crash", "timeout", "oom"])
def test_twice_is_not_ok_however_often_it_worked(status: Status) -> None:
    blocks = [*epochs([1.0] * 6), *(block(i, {"base": 1.0}, status={"target": status}) for i in (7, 8))]
    judged = judge(head(), blocks)
    assert (judged.comparisons[0].verdict, judged.comparisons[0].reasons) == ("broken", (status,))
    assert judged.observations[1].metrics == {}  # no speed of an arm that fails
    assert undecided(head(), blocks) == set()


@pytest.mark.parametrize("status", ["wrong", "unsupported", "missing"])
def test_what_chance_does_not_do_counts_from_the_first_time(status: Status) -> None:
    blocks = [*epochs([1.0] * 6), block(7, {"base": 1.0}, status={"target": status})]
    judged = judge(head(), blocks)
    assert (judged.comparisons[0].verdict, judged.comparisons[0].reasons) == ("broken", (status,))


def test_a_failure_in_the_only_epoch_of_a_quick_run_is_broken() -> None:
    quick = head(settings={"quick": True})
    blocks = [block(1, {"base": 1.0}, status={"target": "crash"}, quick=True)]
    assert judge(quick, blocks).comparisons[0].verdict == "broken"
    assert undecided(quick, blocks) == set()


def test_the_worst_status_wins_whatever_the_order() -> None:
    order: list[Status] = ["wrong", "crash", "oom", "timeout", "build_failed", "missing", "unsupported"]
    for worse, better in itertools.combinations(order, 2):
        for first, second in ((worse, better), (better, worse)):
            blocks = [block(1, {"base": 1.0}, status={"target": first})]
            blocks.append(block(2, {"base": 1.0}, status={"target": second}))
            assert statuses(judge(head(), blocks))["target"] == worse


def test_an_epoch_in_which_an_arm_failed_gives_no_pair() -> None:
    """The worker died half way: the rounds it did finish are not an epoch."""
    blocks = [*epochs([1.0] * 4), block(5, {"base": 1.0, "target": 9.0}, status={"target": "crash"})]
    blocks += [block(i, RATIOS) for i in (6, 7)]
    row = judge(head(), blocks).comparisons[0]
    assert (row.verdict, row.epochs, row.pct) == ("same", 6, pytest.approx(0.0))


def test_a_second_try_in_the_same_epoch_is_no_epoch_of_its_own() -> None:
    blocks = [block(1, {"base": 1.0}, status={"target": "crash"}), block(1, RATIOS), block(2, RATIOS)]
    assert judge(head(), blocks).comparisons[0].verdict == "broken"
    assert judge(head(), [*blocks, block(3, RATIOS)]).observations[1].status == "ok"


# ---------------------------------------------------------------- wrong answers


def test_no_speed_on_a_wrong_answer() -> None:
    check = CheckResult(ok=False, reason="largest error 0.41", max_abs=0.41)
    wrong = Outcome(status="wrong", reason="largest error 0.41", check=check)
    blocks = [block(i, {"base": 1.0, "target": 0.5}, status={"target": wrong}) for i in range(4)]
    judged = judge(head(), blocks)
    assert (judged.comparisons[0].verdict, judged.comparisons[0].reasons) == ("broken", ("wrong",))
    assert (judged.comparisons[0].pct, judged.observations[1].metrics) == (None, {})
    assert judged.observations[1].check == check
    assert judged.header.geomean_pct is None


def test_allow_wrong_shows_the_number_and_stays_broken() -> None:
    blocks = [block(i, {"base": 1.0, "target": 0.5}, status={"target": "wrong"}) for i in range(4)]
    judged = judge(head(settings={"allow_wrong": True}), blocks)
    row = judged.comparisons[0]
    assert (row.verdict, row.reasons, row.p) == ("broken", ("wrong",), None)
    assert (row.pct, row.low_pct) == (pytest.approx(-50.0), pytest.approx(-50.0))
    assert judged.observations[1].metrics["wall"].value == pytest.approx(500_000.0)
    assert judged.header.exit_code == 1
    assert judged.header.geomean_pct is None
    assert [w.kind for w in judged.warnings] == ["broken", "wrong_shown"]


def test_the_largest_error_of_the_epochs_is_kept() -> None:
    blocks = [
        block(i, RATIOS, status={"target": Outcome(status="ok", check=CheckResult(ok=True, max_abs=error))})
        for i, error in enumerate([0.1, 0.3, 0.2])
    ]
    check = judge(head(), blocks).observations[1].check
    assert check is not None
    assert check.max_abs == 0.3


# ---------------------------------------------------------------- proofs, builds, skipped cells


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


def test_wrong_code_on_the_base_breaks_the_comparison_too() -> None:
    judged = judge(head(), epochs([1.0] * 4), [proof("base", ok=False)])
    assert (judged.comparisons[0].verdict, judged.comparisons[0].reasons) == ("broken", ("base_proof",))


def test_a_proof_is_of_one_kernel_package() -> None:
    assert (
        judge(head(), epochs([1.0] * 4), [proof("target", ok=False, kernel="other")]).comparisons[0].verdict == "same"
    )


def failed_build(side: str) -> Build:
    failure = Failure(status="build_failed", reason="error: no member named 'tile'", log="logs/build.log")
    return Build(side=side, kernel="ffa", key="k" * 8, failure=failure)


def test_a_failed_build_is_its_arms_outcome_without_any_block() -> None:
    run = head(control=True, builds=(failed_build("target"),))
    assert undecided(run, []) == {"dense/n=0"}  # the base can run, and its time is wanted
    judged = judge(run, [block(1, {"base": 1.0})])
    assert statuses(judged) == {"base": "ok", "target": "build_failed"}
    target = judged.observations[1]
    assert (target.reason, target.log) == ("error: no member named 'tile'", "logs/build.log")
    assert (judged.comparisons[0].verdict, judged.comparisons[0].reasons) == ("broken", ("build_failed",))
    assert undecided(run, [block(1, {"base": 1.0})]) == set()


def test_builds_that_failed_on_both_sides_leave_nothing_to_run() -> None:
    run = head(builds=(failed_build("base"), failed_build("target")))
    assert undecided(run, []) == set()
    judged = judge(run, [])
    assert (judged.comparisons[0].verdict, judged.comparisons[0].reasons) == ("broken", ("both",))
    assert judged.header.exit_code == 1


def test_a_build_that_failed_on_the_base_only() -> None:
    judged = judge(head(builds=(failed_build("base"),)), [block(1, {"target": 1.0})])
    assert judged.comparisons[0].reasons == ("base_build_failed",)


def test_a_peer_that_ran_is_not_its_neighbours_failed_build() -> None:
    run = head(peers=("sdpa",), builds=(failed_build("base"),))
    assert statuses(judge(run, []))["peer:sdpa"] == "build_failed"
    judged = judge(run, [block(i, {"target": 1.0, "peer:sdpa": 2.0}) for i in range(4)])
    assert statuses(judged) == {"base": "build_failed", "target": "ok", "peer:sdpa": "ok"}
    assert [(row.to, row.verdict) for row in judged.comparisons[1:]] == [("base", "broken"), ("target", "faster")]


def test_a_skipped_cell_is_unsupported_on_every_arm() -> None:
    run = head(peers=("sdpa",), control=True, cell={"skip": "block 128 needs compute capability 9.0"})
    judged = judge(run, [])
    assert statuses(judged) == {"base": "unsupported", "target": "unsupported", "peer:sdpa": "unsupported"}
    assert judged.observations[0].reason == "block 128 needs compute capability 9.0"
    assert judged.comparisons[0].reasons == ("unsupported",)


def test_an_arm_nobody_has_tried_is_not_called_ok() -> None:
    judged = judge(head(), [])
    assert judged.observations == ()
    assert (judged.comparisons[0].verdict, judged.comparisons[0].reasons) == ("unclear", ("not_measured",))


@pytest.mark.parametrize("status", FAILED)
def test_what_is_known_without_measuring_needs_no_second_attempt(status: Status) -> None:
    known = block(0, {}, status={"base": status, "target": status}, metric="", timer="")
    assert undecided(head(), [known]) == set()
    assert statuses(judge(head(), [known])) == {"base": status, "target": status}


def test_what_is_known_without_measuring_gives_way_to_measuring() -> None:
    known = block(0, {}, status={"base": "identical", "target": "identical"}, metric="", timer="")
    assert judge(head(), [known]).comparisons[0].reasons == ("identical_code",)
    row = judge(head(), [known, *epochs([1.03] * 4)]).comparisons[0]
    assert (row.verdict, row.epochs, row.metric) == ("slower", 4, "wall")


def test_variants_come_from_the_builds_when_the_workload_names_none() -> None:
    named = head(variants=("triton",))
    built = tuple(Build(side=s, kernel="ffa", key="k", variants=("triton",)) for s in ("base", "target"))
    workload = msgspec.structs.replace(named.workloads[0], variants=())
    run = msgspec.structs.replace(named, workloads=(workload,), builds=built)
    assert [(row.from_, row.to) for row in judge(run, []).comparisons] == [("base:triton", "target:triton")]


# ---------------------------------------------------------------- controls


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


def test_a_control_that_straddles_the_margin_does_not() -> None:
    judged = judge(head(control=True), controlled(1.006))
    assert judged.controls[0].verdict == "slight"
    assert judged.header.trusted
    counts = judged.header.counts
    assert (counts["controls"], counts["controls_inside"], counts["controls_outside"]) == (1, 0, 0)
    assert judged.header.false_alarm_bound is None, "a control that shows nothing bounds nothing"
    shown = msgspec.structs.replace(head(control=True), header=judged.header, controls=judged.controls)
    assert dict(facts.trust(shown, ()))["trusted"] == "nothing speaks against it, but no control decided"


def test_a_control_too_wide_to_show_anything_is_not_counted_as_passed() -> None:
    run = head(2, control=True)
    wide = [block(i, {"base": 1.0, "target": 1.0, "control": r}, cell=run.cells[1].id)
            for i, r in enumerate([1.0, 1.05, 0.95, 1.0])]  # fmt: skip
    judged = judge(run, [*controlled(1.0), *wide])
    counts = judged.header.counts
    assert (counts["controls"], counts["controls_inside"], counts["controls_outside"]) == (2, 1, 0)
    assert judged.header.trusted
    assert judged.header.false_alarm_bound == pytest.approx(0.95), "of the one that could show something"
    shown = msgspec.structs.replace(run, header=judged.header, controls=judged.controls)
    said = dict(facts.controls(shown))
    assert said["controls"].startswith("1 of 2 inside the margin of 0.5 %, 0 beyond it, 1 undecided")
    assert "from 1 control that decided" in said["false alarms"]


def test_a_broken_control_is_no_verdict_on_the_target() -> None:
    blocks = [block(i, RATIOS, status={"control": "crash"}) for i in range(4)]
    judged = judge(head(control=True), blocks)
    assert (judged.controls[0].verdict, judged.controls[0].reasons) == ("unclear", ("control_crash",))
    assert (judged.header.trusted, judged.header.false_alarm_bound, judged.header.exit_code) == (True, None, 0)


def test_a_control_takes_its_cell_to_the_first_look_and_no_further() -> None:
    run = head(control=True)
    noisy = [block(i, {**RATIOS, "control": r}) for i, r in enumerate([1.0, 1.05, 0.95, 1.0])]
    assert undecided(run, noisy) == set()  # the control is undecided, the target is not
    same = {"base": "identical", "target": "identical"}
    idle = [block(i, {"base": 1.0, "control": 1.0}, status=same) for i in range(4)]
    assert undecided(run, idle[:3]) == {"dense/n=0"}
    assert undecided(run, idle) == set()
    assert judge(run, idle).comparisons[0].reasons == ("identical_code",)


def test_the_bound_counts_every_control() -> None:
    run = head(6, control=True)
    blocks = [b for cell in run.cells for b in controlled(1.0, cell=cell.id)]
    assert judge(run, blocks).header.false_alarm_bound == pytest.approx(1 - 0.05 ** (1 / 6))
    assert judge(run, blocks).header.counts["controls"] == 6


def test_one_branch_alone_has_its_failures_as_rows() -> None:
    run = head(2, sides=[side("base")])
    blocks = [block(1, {"base": 1.0}), block(1, {}, cell="dense/n=1", status={"base": "oom"})]
    judged = judge(run, blocks)
    assert [o.status for o in judged.observations] == ["ok", "oom"]
    assert (judged.header.exit_code, judged.comparisons) == (0, ())
    assert judge(run, blocks[1:]).header.exit_code == 2
