"""Nights end to end: a real repository, the real command, simulated workers. Killed, doubled, late, with nothing new."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abprof.extras.history.index import Question, opened
from abprof.extras.nightly import heartbeat
from tests.simulated.lab import Lab, Result
from tests.simulated.processes import stopped
from tests.simulated.processes import told as waits_in
from tests.simulated.scenario import Fault, Noise, Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a", "b"]}})
QUICK = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)], noise=[Noise(epoch=0.002)])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path, QUICK)


def night(lab: Lab, *words: str) -> tuple[int, dict[str, Any], Result]:
    """One `abprof nightly`: exit code, its JSON line, and what else it left."""
    done = lab.abprof("nightly", "--quiet", *words)
    lines = done.out.splitlines()
    assert len(lines) == 1, (done.code, done.out, done.err)
    return done.code, json.loads(lines[0]), done


def push(lab: Lab, factor: float = 1.0) -> str:
    """A new commit on main, of which the head is so many times slower than the base."""
    lab.set(
        Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6), Time(factor=factor, side="target")], noise=QUICK.noise)
    )
    count = int(lab.repo.git("rev-list", "--count", "HEAD"))
    return lab.repo.commit("More", {"kernels/k/__init__.py": f"WHO = {count}\n"})


def nights(lab: Lab) -> list[tuple[int, str, str, str]]:
    with opened(lab.runs) as index:
        return [(row.number, row.kind, row.base, row.head) for row in index.nights("main")]


def test_nights_one_after_the_other(lab: Lab) -> None:
    first = lab.repo.git("rev-parse", "HEAD")
    code, said, _ = night(lab)
    assert (code, said["did"], said["number"], said["head"]) == (0, "first", 1, first)
    code, said, _ = night(lab)  # how long it takes: tests/benchmarks/quiet_night.py
    assert (code, said["did"], said["runs"]) == (0, "nothing", [])
    second = push(lab, 1.2)
    code, said, done = night(lab)
    assert (code, said["did"], said["number"]) == (1, "step", 2)
    assert said["runs"][0]["counts"]["slower"] == 2
    assert nights(lab) == [(1, "first", "", first), (2, "step", first, second)]
    assert done.run.night
    assert done.run.night.machine["device"] == "simulated"
    assert "2 nights" in (lab.runs / "history.html").read_text()
    assert night(lab)[1]["did"] == "nothing"


@pytest.mark.slow
def test_another_matrix_begins_anew_and_a_release_is_compared_with(lab: Lab) -> None:
    night(lab)
    code, said, _ = night(lab, "--only", "case=a")
    assert (code, said["did"], said["number"]) == (0, "first", 2)
    lab.repo.git("tag", "v1")
    push(lab)
    code, said, _ = night(lab, "--against", "v1", "--only", "case=a")
    assert (code, said["did"]) == (0, "step+against")
    assert night(lab, "--against", "v1", "--only", "case=a")[1]["did"] == "nothing"
    with opened(lab.runs) as index:
        against = list(index.values(Question(kinds=("against",))))
    assert [(row.number, value.cell) for row, value in against] == [(3, "w/case=a")]


@pytest.mark.slow
def test_a_summary_a_heartbeat_and_what_doctor_says_of_it(lab: Lab, tmp_path: Path) -> None:
    night(lab, "--summary", str(tmp_path / "summary.md"))
    assert (tmp_path / "summary.md").read_text().startswith("## abprof nightly, `main`: nothing to do\n")
    (file,) = (lab.state / "nightly").glob("*.json")
    beat = json.loads(file.read_text())
    assert (beat["did"], beat["exit_code"], beat["series"]) == ("first", 0, "main")
    said = lab.command("doctor").out
    assert "ok       nightly: main of" in said
    file.write_text(json.dumps({**beat, "ended": time.time() - 50 * 3600}))
    late = lab.command("doctor")
    assert "problem  nightly: main of" in late.out
    assert "50 h ago" in late.out
    assert late.code == 2


def test_what_a_night_does_not_take(lab: Lab) -> None:
    for words, what in (
        (["--resume", "runs/x"], "not at night"),
        (["main", "fast"], "--branch names the branch"),
        (["--nonsense"], "nonsense"),
        (["--issue", "team/kernels"], "no token"),
        (["--branch", "nowhere"], "--branch: unknown ref 'nowhere'"),
        (["--against", "v9"], "--against: unknown ref 'v9'"),
    ):
        code, said, done = night(lab, *words)
        assert (code, said["did"]) == (2, "refused"), words
        assert what in done.err
    assert not list(lab.runs.glob("*/run.json"))
    ((fine, seen, _),) = heartbeat.examine(lab.state)  # of the last, which was begun
    assert not fine
    assert re.search("exit code 2: could not: .*v9", seen)


@pytest.mark.slow
def test_a_head_that_does_not_build_is_not_what_the_next_night_compares_with(lab: Lab) -> None:
    night(lab)
    good = lab.repo.git("rev-parse", "HEAD")
    push(lab)
    lab.set(Scenario(workloads={"w": LOAD}, faults=[Fault("exit:3", "build", side="target")]))
    code, said, _ = night(lab)
    assert (code, said["did"]) == (1, "step")
    assert night(lab)[1]["did"] == "nothing"
    mended = push(lab)
    assert night(lab)[:2][1]["did"] == "step"
    assert nights(lab)[-1] == (3, "step", good, mended)


@pytest.mark.slow
def test_a_clock_that_jumps_back_changes_no_order(lab: Lab) -> None:
    night(lab)
    (folder,) = (path for path in lab.runs.iterdir() if path.is_dir())
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "began": "2099-01-01T00:00:00+00:00"}))
    head = push(lab)
    assert night(lab)[1]["number"] == 2
    assert nights(lab)[-1][3] == head
    assert night(lab)[1]["did"] == "nothing"


def _wait(what: Any, process: subprocess.Popen[str], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not what():
        if process.poll() is not None:  # it may have come there and ended between two looks
            assert what(), process.communicate()
            return
        assert time.monotonic() < end, f"never\n{waits_in(process.pid)}"
        time.sleep(0.02)


def _head_is_there(lab: Lab) -> bool:
    return any(json.loads(file.read_text())["status"] == "running" for file in lab.runs.glob("*/run.json"))


def _started(lab: Lab) -> bool:
    return any((lab.state / "nightly").glob("*.json"))


def _measures(lab: Lab) -> bool:
    return any(file.stat().st_size for file in lab.runs.glob("*/rounds.jsonl"))


def _finished(lab: Lab) -> bool:
    return any(json.loads(file.read_text())["status"] == "complete" for file in lab.runs.glob("*/run.json"))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [_started, _head_is_there, _measures, _finished])
def test_killed_at_each_stage_the_next_night_goes_on(lab: Lab, stage: Any) -> None:
    first = lab.repo.git("rev-parse", "HEAD")
    lab.set(
        Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)], noise=QUICK.noise, faults=[Fault("slow:0.005", "turn")])
    )
    process = lab.start("nightly")
    _wait(lambda: stage(lab), process)
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    rounds = {file.parent: file.read_bytes() for file in lab.runs.glob("*/rounds.jsonl")}
    # It may have gone further between the look and the blow: what is expected is read from what it left.
    told = any(json.loads(file.read_text())["ended"] for file in (lab.state / "nightly").glob("*.json"))
    expected = "nothing" if told else "told" if _finished(lab) else "first"
    code, said, done = night(lab)
    assert code == 0, done.err
    for folder, before in rounds.items():
        whole = before[: before.rfind(b"\n") + 1]
        assert (folder / "rounds.jsonl").read_bytes().startswith(whole), "what was measured is not measured again"
    assert len(list(lab.runs.glob("*/run.json"))) == 1
    assert said["did"] == expected, done.err
    assert nights(lab) == [(1, "first", "", first)]
    assert night(lab)[1]["did"] == "nothing"


def test_a_night_that_could_not_be_told_is_told_with_the_next_commit(lab: Lab, tmp_path: Path) -> None:
    """The summary's path is seen to be a folder before anything is measured; a heartbeat that stands at an older night is
    what a kill leaves."""
    code, said, done = night(lab, "--summary", str(tmp_path))
    assert (code, said["did"]) == (2, "refused")
    assert "no file can be written there" in done.err
    assert not list(lab.runs.glob("*/run.json"))
    night(lab)
    push(lab, 1.2)
    assert night(lab)[0] == 1
    (file,) = (lab.state / "nightly").glob("*.json")
    beat = json.loads(file.read_text())
    assert beat["told"] == 2
    file.write_text(json.dumps({**beat, "ended": None, "told": 1}))
    push(lab)  # in between somebody pushed: what is new alone would exit 0
    code, said, _ = night(lab)
    assert (code, said["did"], said["number"]) == (1, "told+step", 3)
    assert [run["exit_code"] for run in said["runs"]] == [1, 0]
    assert json.loads(file.read_text())["told"] == 3


def test_a_night_whose_guarantee_is_weaker_says_so_in_its_summary(lab: Lab, tmp_path: Path) -> None:
    """On the first night, of one branch alone, on every other, and where a night is told by the next."""
    own = QUICK.workloads | {"v": replace(LOAD, checked="sides")}
    lab.set(replace(QUICK, workloads=own))
    lab.repo.commit("Another", {"workloads/v.py": "# simulated\n"})
    summary = tmp_path / "summary.md"

    def lines() -> list[str]:
        return [line.strip() for line in summary.read_text().splitlines() if "Weaker guarantee" in line]

    _, said, _ = night(lab, "--summary", str(summary))
    alone = "v has no reference, and one branch alone has no other side whose outputs could agree: "
    alone += "what a call returns was not checked."
    assert lines() == [f"**`Weaker guarantee: {alone}`**"]
    assert said["runs"][0]["weaker"] == [f"Weaker guarantee: {alone}"]
    lab.repo.commit("More", {"kernels/k/__init__.py": "WHO = 2\n"})
    night(lab, "--summary", str(summary))
    both = "v has no reference. Only the agreement of the sides' outputs was checked: a common error is not seen."
    assert lines() == [f"**`Weaker guarantee: {both}`**"]
    ((file, beat),) = [(file, json.loads(file.read_text())) for file in (lab.state / "nightly").glob("*.json")]
    file.write_text(json.dumps({**beat, "ended": None, "told": 1}))
    _, said, _ = night(lab, "--summary", str(summary))
    assert (said["did"], lines()) == ("told", [f"**`Weaker guarantee: {both}`**"])


@pytest.mark.slow
def test_a_slower_night_that_was_killed_before_it_could_tell_is_told(lab: Lab) -> None:
    night(lab)
    push(lab, 1.2)
    assert night(lab)[0] == 1
    (file,) = (lab.state / "nightly").glob("*.json")
    beat = json.loads(file.read_text())
    file.write_text(json.dumps({**beat, "ended": None, "told": 1}))  # as it stands while the job is at work
    code, said, _ = night(lab)
    assert (code, said["did"], said["number"]) == (1, "told", 2)
    assert said["runs"][0]["exit_code"] == 1
    assert night(lab)[:2][1]["did"] == "nothing"


@pytest.mark.slow
def test_two_at_once_are_one(lab: Lab) -> None:
    """The first is held in its second epoch: its worker stands still until the other has been refused."""
    lab.set(replace(QUICK, faults=[Fault("sigstop:0", "turn", epoch=2, once=True)]))
    process = lab.start("nightly")
    _wait(lambda: _measures(lab) and stopped(lab.scenario), process)
    code, said, done = night(lab)
    assert (code, said["did"]) == (2, "refused"), done.err
    assert "another nightly job is at work" in done.err
    for pid in stopped(lab.scenario):
        os.kill(pid, signal.SIGCONT)
    result = lab.finish(process)
    assert result.code == 0, result.err
    assert len(nights(lab)) == 1


SEQUENCE = Workload(kernel="k", presets={"default": {"case": ["steady", "step", "drift"]}})
NIGHTS, STEP_NIGHT, DRIFT_NIGHT = 18, 11, 5


def _level(case: str, number: int) -> float:
    """How slow the head of that night is."""
    if case == "step":
        return 1.08 if number >= STEP_NIGHT else 1.0
    return 1.006 ** max(0, number - DRIFT_NIGHT + 1) if case == "drift" else 1.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_nights_with_a_planted_step_and_drift(tmp_path: Path) -> None:
    """The drift is far below what any night's threshold could see, and is confirmed before it sums to 7 %."""
    lab = Lab(tmp_path, Scenario(workloads={"w": SEQUENCE}))
    heads, found = [], list[dict[str, Any]]()
    for number in range(1, NIGHTS + 1):
        alone = number == 1  # the head is the only side, and called base
        times = [Time(ns=20e6)]
        for case in ("steady", "step", "drift"):
            before, now = _level(case, number if alone else number - 1), _level(case, number)
            times += [
                Time(factor=before, side="base", cell=f"*={case}"),
                Time(factor=now, side="target", cell=f"*={case}"),
            ]
        noise = [Noise(epoch=0.003, common=0.001)]
        lab.set(Scenario(workloads={"w": SEQUENCE}, times=times, noise=noise, seed=number))
        heads.append(lab.repo.commit(f"Night {number}", {"kernels/k/__init__.py": f"WHO = {number}\n"}))
        _, said, _ = night(lab, "--epochs", "2")
        assert said["number"] == number
        found += said["changes"]
    confirmed = [change for change in found if change["state"] == "confirmed"]
    assert {change["trend"] for change in confirmed} == {"w/case=step", "w/case=drift"}
    step = next(change for change in confirmed if change["trend"] == "w/case=step")
    assert (step["night"], step["found"], step["kind"]) == (STEP_NIGHT, STEP_NIGHT + 2, "step")
    assert step["because"] == "code"
    suspected = {(it["night"], it["found"]) for it in found if it["state"] == "suspected" and "step" in it["trend"]}
    assert suspected == {(STEP_NIGHT, STEP_NIGHT), (STEP_NIGHT, STEP_NIGHT + 1)}
    drift = next(change for change in confirmed if change["trend"] == "w/case=drift")
    assert drift["found"] <= DRIFT_NIGHT + 11
    page = (lab.runs / "history.html").read_text()
    assert heads[STEP_NIGHT - 1][:10] in page
    assert f"{NIGHTS} nights, 3 cells" in page


def test_a_full_disk_is_said_and_the_night_is_done_again(lab: Lab) -> None:
    """No file may grow beyond a few kB: run.json does not fit, so there is no run that a later night would believe."""
    command = 'ulimit -f 3; exec "$@"'
    words = [sys.executable, "-P", "-m", "abprof", *lab._placed(["nightly", "--quiet"])]
    full = subprocess.run(["sh", "-c", command, "sh", *words], env=lab.environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
                          cwd=lab.folder, capture_output=True, text=True, check=False)  # fmt: skip
    assert full.returncode == 2, full
    assert "File too large" in full.stderr
    (line,) = full.stdout.splitlines()
    assert json.loads(line)["did"] == "refused"
    code, said, _ = night(lab)
    assert (code, said["did"], said["number"]) == (0, "first", 1)
