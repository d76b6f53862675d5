"""Nights end to end: a real repository, the real command, simulated workers. Killed, doubled, late, with nothing new."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from abprof.extras.nightly import read_history
from abprof.store import runfolder
from tests.nights import Nights
from tests.simulated.lab import Lab, Result
from tests.simulated.processes import stopped, wait_for
from tests.simulated.scenario import Fault, Noise, Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a", "b"]}})
QUICK = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)], noise=[Noise(epoch=0.002)])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, QUICK)


def night(lab: Lab, *words: str) -> tuple[int, dict[str, Any], Result]:
    """The result of one `abprof nightly`: exit code, JSON line and files."""
    done = lab.abprof("nightly", "--quiet", *words)
    lines = done.out.splitlines()
    assert len(lines) == 1, (done.code, done.out, done.err)
    return done.code, json.loads(lines[0]), done


def push(lab: Lab, factor: float = 1.0) -> str:
    """Make a new commit on main that changes the head's time by this factor."""
    slower = Time(factor=factor, side="target")
    lab.set(Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6), slower], noise=QUICK.noise))
    count = int(lab.repo.git("rev-list", "--count", "HEAD"))
    return lab.repo.commit("More", {"kernels/k/__init__.py": f"WHO = {count}\n"})


def nights(lab: Lab) -> list[tuple[int, str, str, str]]:
    return [(row.number, row.kind, row.base, row.head) for row in read_history(lab.runs).nights("main")]


def test_nights_one_after_the_other(lab: Lab, tmp_path: Path) -> None:
    """The first, nothing new, a slower one."""
    first = lab.repo.git("rev-parse", "HEAD")
    summary = tmp_path / "summary.md"
    code, line, _ = night(lab, "--summary", str(summary))
    assert (code, line["did"], line["number"], line["head"]) == (0, "first", 1, first)
    assert summary.read_text().startswith("## abprof nightly, `main`: nothing to do\n")
    code, line, _ = night(lab)  # tests/benchmarks/quiet_night.py measures how long it takes
    assert (code, line["did"], line["runs"]) == (0, "nothing", [])
    second = push(lab, 1.2)
    code, line, done = night(lab)
    assert (code, line["did"], line["number"]) == (1, "step", 2)
    assert "2 slower" in line["runs"][0]["sentence"]
    assert nights(lab) == [(1, "first", "", first), (2, "step", first, second)]
    assert done.run.night.machine["device"] == "simulated"
    assert "2 nights" in (lab.runs / "history.html").read_text()


def test_what_a_night_refuses(lab: Lab, tmp_path: Path) -> None:
    for words in (["--resume", "runs/x"], ["main", "fast"], ["--nonsense"]):
        assert lab.abprof("nightly", *words).code == 2, words
    for words, what in (
        (["--branch", "nowhere"], "unknown ref 'nowhere'"),
        (["--summary", str(tmp_path)], "not a file that can be written"),
    ):
        code, line, done = night(lab, *words)
        assert (code, line["did"]) == (2, "refused"), words
        assert what in done.err
    assert not list(lab.runs.glob("*/run.json"))


@pytest.mark.slow
def test_a_head_that_does_not_build_is_never_a_base_and_a_clock_that_jumps_back_changes_no_order(lab: Lab) -> None:
    night(lab)
    good = lab.repo.git("rev-parse", "HEAD")
    (file,) = lab.runs.glob("*/run.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "began": "2099-01-01T00:00:00+00:00"}))
    push(lab)
    lab.set(Scenario(workloads={"w": LOAD}, faults=[Fault("exit:3", "build", side="target")]))
    code, line, _ = night(lab)
    assert (code, line["did"]) == (1, "step")
    assert night(lab)[1]["did"] == "nothing"
    mended = push(lab)
    assert night(lab)[1]["did"] == "step"
    assert nights(lab)[-1] == (3, "step", good, mended)


def test_a_weaker_guarantee_is_in_the_summary_of_every_night(lab: Lab, tmp_path: Path) -> None:
    """Of one branch alone, and of two."""
    lab.set(replace(QUICK, workloads=QUICK.workloads | {"v": replace(LOAD, checked="sides")}))
    lab.repo.commit("Another", {"workloads/v.py": "# simulated\n"})
    summary = tmp_path / "summary.md"

    def weaker() -> tuple[list[str], list[str]]:
        _, line, _ = night(lab, "--epochs", "4", "--summary", str(summary))
        shown = [text.strip() for text in summary.read_text().splitlines() if "Weaker guarantee" in text]
        return shown, line["weaker"]

    shown, alone = weaker()
    assert alone[0].startswith("Weaker guarantee: v has no reference")
    assert shown == [f"**`{alone[0]}`**"]
    lab.repo.commit("More", {"kernels/k/__init__.py": "WHO = 2\n"})
    shown, both = weaker()
    assert both[0].startswith("Weaker guarantee: v has no reference")
    assert shown == [f"**`{both[0]}`**"]


def _status(lab: Lab, status: str) -> bool:
    return any(json.loads(file.read_text())["status"] == status for file in lab.runs.glob("*/run.json"))


def _measures(lab: Lab) -> bool:
    return any(file.stat().st_size for file in lab.runs.glob("*/rounds.jsonl"))


STAGES: dict[str, Callable[[Lab], bool]] = {
    "planned": lambda lab: _status(lab, "running"),
    "measures": _measures,
    "finished": lambda lab: _status(lab, "complete"),
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_each_stage_the_next_night_makes_up_for_it(lab: Lab, stage: str) -> None:
    first = lab.repo.git("rev-parse", "HEAD")
    lab.set(replace(QUICK, faults=[Fault("slow:0.005", "turn")]))
    process = lab.start("nightly")
    wait_for(lambda: STAGES[stage](lab), process)
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    # It may continue between the check and the kill: the expectation depends on its files.
    expected = "nothing" if _status(lab, "complete") else "first"
    code, line, done = night(lab)
    assert (code, line["did"]) == (0, expected), done.err
    assert nights(lab) == [(1, "first", "", first)]
    assert night(lab)[1]["did"] == "nothing"


@pytest.mark.slow
def test_two_at_once_are_one(lab: Lab) -> None:
    """The first job stops in its second epoch until the second job is refused."""
    lab.set(replace(QUICK, faults=[Fault("sigstop:0", "turn", epoch=2, once=True)]))
    process = lab.start("nightly")
    wait_for(lambda: _measures(lab) and stopped(lab.scenario), process)
    code, line, done = night(lab)
    assert (code, line["did"]) == (2, "refused"), done.err
    assert "another nightly job is running" in done.err
    for pid in stopped(lab.scenario):
        os.kill(pid, signal.SIGCONT)
    result = lab.finish(process)
    assert (result.code, len(nights(lab))) == (0, 1), result.err


def test_on_a_full_disk_the_night_is_done_again(lab: Lab) -> None:
    """No file may grow beyond a few kB: run.json does not fit, so there is no run that a later night would believe."""
    words = [sys.executable, "-P", "-m", "abprof", *lab._placed(["nightly", "--quiet"])]
    full = subprocess.run(["sh", "-c", 'ulimit -f 3; exec "$@"', "sh", *words], cwd=lab.folder, capture_output=True,
                          env=lab.environment() | {"PYTHONDONTWRITEBYTECODE": "1"}, text=True, check=False)  # fmt: skip
    assert full.returncode == 2, full
    assert "File too large" in full.stderr
    (text,) = full.stdout.splitlines()
    assert json.loads(text)["did"] == "refused"
    code, line, _ = night(lab)
    assert (code, line["did"], line["number"]) == (0, "first", 1)


@pytest.mark.slow
def test_a_step_that_many_nights_confirm_fails_a_night_that_is_the_same_by_itself(lab: Lab) -> None:
    """After twenty nights on this machine, of which the last two take 8 % longer."""
    lab.set(replace(QUICK, noise=[]))
    night(lab)
    (first,) = read_history(lab.runs).nights("main")
    found = runfolder.read(next(lab.runs.glob("*/run.json")))[0].night
    head = push(lab, 1.0)
    wobble = [1 + 0.002 * (number % 3 - 1) for number in range(20)]
    levels = [20e6 * factor * (1.08 if number >= 18 else 1.0) for number, factor in enumerate(wobble)]
    written = Nights(lab.runs, machine=found.machine, metric="wall", number=1, commits={1: first.head, 21: head})
    for before, after in pairwise([20e6, *levels]):
        written.add({"w/case=a": (before, after), "w/case=b": (20e6, 20e6)}, asked=found.asked)
    push(lab, 1.0)
    lab.set(Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6), Time(factor=1.08, cell="*=a")]))
    code, line, done = night(lab)
    assert (done.table(), line["number"]) == ({"w/case=a": "same", "w/case=b": "same"}, 22)
    (change,) = line["changes"]
    assert (change["trend"], change["night"], change["found"], change["because"]) == ("w/case=a", 20, 22, "code")
    assert code == 1
    assert "22 nights, 2 cells" in (lab.runs / "history.html").read_text()
