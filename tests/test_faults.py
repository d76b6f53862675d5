"""Whole runs on workers that fail: each failure is its arm's typed outcome, the run goes on, nothing is left over."""

from pathlib import Path

import pytest

from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import Fault, Scenario, Time, Workload

CASES = ["a", "bad", "c"]
FAST = [Time(ns=20e6)]
BAD = "w/case=bad"
LIMIT = ("--timeout", "3s")  # a hanging worker costs this time, often
FEW = (*LIMIT, "--epochs", "4")
PHASES = [("run", "k.run", "the kernel itself", 0.5)]
# In threads msgspec takes 3 s to analyse the class of a check, and meanwhile another thread reads a reply with a check.
SLOW_THREADS = """
import threading, time
import msgspec._utils as utils
evaluate, slept = utils._eval_type, []
def slow(value, within, *rest):
    in_thread = threading.current_thread() is not threading.main_thread()
    if in_thread and "max_abs" in within.get("__annotations__", ()) and not slept:
        slept.append(value)
        time.sleep(3)
    return evaluate(value, within, *rest)
utils._eval_type = slow
from abprof.__main__ import main
main()
"""


def scenario(*faults: Fault, cases: list[str] = CASES, **load: object) -> Scenario:
    fields = {"kernel": "k", "presets": {"default": {"case": cases}}, "phases": PHASES, **load}
    return Scenario(workloads={"w": Workload(**fields)}, times=FAST, faults=list(faults))  # type: ignore[arg-type]


def fault(do: str, verb: str, case: str = "bad", side: str = "target", **more: object) -> Fault:
    fields = {"do": do, "verb": verb, "side": side, "cell": f"*case={case}", **more}
    return Fault(**fields)  # type: ignore[arg-type]


def run(folder: Path, planted: Scenario, *arguments: str) -> Result:
    """Run `abprof main fast` in a new lab; no leftovers and no changes of the user's files are allowed."""
    lab = Lab(folder, planted)
    before = lab.fingerprint()
    result = lab.abprof("main", "fast", *(arguments or LIMIT))
    assert lab.left_behind() == []
    assert lab.fingerprint() == before
    assert "Traceback" not in result.err
    assert result.code != 3
    return result


# what the target's worker does, when -> the status of the arm, and words of its reason
ENDINGS: dict[tuple[str, str], tuple[str, str]] = {
    ("exit:3", "open"): ("crash", "exit code 3"),
    ("crash", "open"): ("crash", "SIGSEGV"),
    ("kill", "check"): ("crash", "SIGKILL"),
    ("crash", "turn"): ("crash", "SIGSEGV"),
    ("crash", "phases"): ("ok", "SIGSEGV"),  # once: phases have a pass of their own, which decides nothing
    ("exit:0", "turn"): ("crash", "exit code 0"),
    ("partial", "turn"): ("crash", "exit code 0"),
    ("garbage", "turn"): ("crash", "unreadable answer"),
    ("nan", "turn"): ("crash", "unreadable answer"),
    ("nan", "open"): ("crash", "unreadable answer"),
    ("nan", "check"): ("crash", "unreadable answer"),
    ("null", "turn"): ("crash", "unreadable answer"),
    ("wrong_id", "turn"): ("crash", "answer to request"),
    ("close", "turn"): ("crash", "closed its channel"),
    ("hang", "open"): ("timeout", "no answer for 3 s"),
    ("hang", "check"): ("timeout", "no answer for 3 s"),
    ("stubborn", "turn"): ("timeout", "no answer for 3 s"),
    ("sigstop", "turn"): ("timeout", "no answer for 3 s"),
    ("crash", "close"): ("ok", ""),
    ("hang", "close"): ("ok", ""),
    ("slow:0.3", "turn"): ("ok", ""),
    ("bigreply:5000000", "open"): ("ok", ""),
    ("print:3000000", "turn"): ("ok", ""),
}


def named(planted: tuple[str, str]) -> str:
    return "-".join(planted).replace(":", "")


@pytest.mark.slow
def test_every_ending_is_its_own_cells_outcome(tmp_path: Path) -> None:
    """A cell for every way to fail, between cells that are fine, in one run: none spoils another."""
    cases = [case for planted in ENDINGS for case in (named(planted), f"fine-{named(planted)}")]
    once = ("slow:0.3", "turn"), ("print:3000000", "turn"), ("hang", "close")
    faults = [fault(do, verb, named((do, verb)), times=int((do, verb) in once)) for do, verb in ENDINGS]
    result = run(tmp_path, scenario(*faults, cases=cases), *FEW)
    table = result.table()
    for planted, (status, reason) in ENDINGS.items():
        cell = f"w/case={named(planted)}"
        found, why = result.status(cell, "target")
        assert (found, reason in why) == (status, True), (planted, found, why)
        assert result.status(cell, "base") == ("ok", ""), planted
        assert table[cell] == ("same" if status == "ok" else "broken"), planted
        assert table[f"w/case=fine-{named(planted)}"] == "same", planted
    assert result.code == 1


@pytest.mark.slow
def test_a_crash_that_never_comes_again_is_forgiven_with_a_warning(tmp_path: Path) -> None:
    """Where it took the check with it, the next epoch checks again."""
    result = run(tmp_path, scenario(fault("crash", "turn", epoch=2), fault("crash", "check", "c", epoch=1)))
    assert result.table() == dict.fromkeys(("w/case=a", BAD, "w/case=c"), "same")
    (flaky,) = (warning for warning in result.run.warnings if warning.kind == "flaky")
    assert set(flaky.cells) == {BAD, "w/case=c"}
    assert result.code == 0


@pytest.mark.slow
@pytest.mark.parametrize("do", ["exit:2", "hang"])
def test_a_worker_that_cannot_start(tmp_path: Path, do: str) -> None:
    """On one side, in every epoch: all of its cells are broken, and it is not waited for once a cell: that would be
    an hour, which no laboratory waits."""
    cases = [f"c{i}" for i in range(100 if do == "hang" else 20)]
    faults = [Fault(do, "start", side="target", epoch=epoch) for epoch in range(1, 40)]
    result = run(tmp_path, scenario(*faults, cases=cases), *LIMIT, "--epochs", "1")
    assert set(result.table().values()) == {"broken"}
    assert result.status("w/case=c0", "base")[0] == "ok"
    assert result.status("w/case=c0", "target")[0] == ("timeout" if do == "hang" else "crash")


@pytest.mark.slow
def test_a_failed_build_is_that_packages_outcome(tmp_path: Path) -> None:
    """Each way a build can fail; the other package goes on, and the first error line is the reason."""
    ways = {"raises": ("crash_status", "as planted"), "exits": ("exit:1", "exit code 1"), "dies": ("crash", "SIGSEGV")}
    loads = {name: Workload(kernel=name, presets={"default": {"case": ["a"]}}) for name in (*ways, "fine")}
    faults = [Fault(do, "build", side="target", cell=name, text="as planted") for name, (do, _) in ways.items()]
    result = run(tmp_path, Scenario(workloads=loads, times=FAST, faults=faults))
    assert result.table() == {f"{name}/case=a": "broken" for name in ways} | {"fine/case=a": "same"}
    for name, (_, words) in ways.items():
        status, reason = result.status(f"{name}/case=a", "target")
        assert (status, words in reason) == ("build_failed", True), reason
    assert result.code == 1


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["describe", "screen"])
def test_workloads_that_fail_to_load_are_broken_and_the_others_go_on(tmp_path: Path, verb: str) -> None:
    """A workload for each way to fail, in one run, among two that are fine."""
    ways = {"raises": "crash_status", "exits": "exit:1", "crashes": "crash", "hangs": "hang", "babbles": "garbage"}
    loads = {name: Workload(kernel="k", presets={"default": {"case": ["a"]}}) for name in ("fine", *ways, "well")}
    faults = [Fault(do, verb, cell=name, text="as planted") for name, do in ways.items()]
    result = run(tmp_path, Scenario(workloads=loads, times=FAST, faults=faults), *FEW)
    table = result.table()
    assert (table.pop("fine/case=a"), table.pop("well/case=a")) == ("same", "same")
    assert sorted(cell.partition("/")[0] for cell in table) == sorted(ways)
    assert set(table.values()) == {"broken"}
    assert result.status("hangs/", "target")[0] == "timeout"
    assert result.status("raises/", "base")[0] == "crash"
    assert result.code == 1


@pytest.mark.slow
def test_a_compile_during_timing_voids_the_block(tmp_path: Path) -> None:
    """Every proof counts one more compile, so every round of the target is void: nothing is decided on it, and after
    so many epochs as a verdict may take at most, and as many again, the cell is given up."""
    result = run(tmp_path, scenario(Fault("compile", "prove", side="target"), cases=["a"]))
    assert set(result.table().values()) == {"unclear"}
    assert "rejected" in {warning.kind for warning in result.run.warnings}
    assert result.code in (2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("do", ["negative", "zero"])
def test_impossible_times_never_reach_the_arithmetic(tmp_path: Path, do: str) -> None:
    """A few of them cost their rounds; a timer that says nothing else decides nothing."""
    planted = scenario(fault(do, "turn", "a", after=3, times=2), fault(do, "turn"))
    result = run(tmp_path, planted, "--epochs", "6")
    assert result.row("w/case=a").pct == pytest.approx(0.0, abs=1e-9)
    assert result.verdict("w/case=a") == "same"
    assert result.verdict(BAD) in ("unclear", "broken")
    assert result.row(BAD).pct is None


def test_builds_that_read_replies_at_the_same_time_do_not_crash(tmp_path: Path) -> None:
    lab = Lab(tmp_path, scenario(cases=["a"]))
    result = lab.finish(lab.start("run", "main", "fast", "--quick", program=("-P", "-c", SLOW_THREADS)))
    assert result.code >= 0, result.err
    assert result.status("w/case=a", "target") == ("ok", "")
