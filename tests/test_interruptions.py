"""Runs that are interrupted, killed or started twice: abprof writes the report and removes leftovers."""

import json
import signal
from pathlib import Path

import pytest

from tests.simulated.lab import TIMEOUT, Lab
from tests.simulated.processes import alive, noted, wait_for
from tests.simulated.scenario import Fault, Noise, Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a", "b", "c"]}})
# Each turn takes 20 ms of real time, and processes scatter by 5 %: this goes on for all of 32 epochs.
LONG = Scenario(
    workloads={"w": LOAD}, times=[Time(ns=20e6)], noise=[Noise(epoch=0.05)], faults=[Fault("slow:0.02", "turn")]
)


def blocks(lab: Lab) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in lab.runs.glob("*/rounds.jsonl"))


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGHUP))]
)
def test_interrupted_while_measuring(tmp_path: Path, number: signal.Signals) -> None:
    lab = Lab(tmp_path, LONG)
    before = lab.fingerprint()
    process = lab.start("main", "fast")
    wait_for(lambda: blocks(lab) >= 4, process)
    process.send_signal(number)
    result = lab.finish(process)
    assert result.code == 130, result.err
    assert result.run.status == "interrupted"
    assert (result.folder / "report.html").stat().st_size > 0
    assert (result.folder / "report.md").stat().st_size > 0
    assert {row.cell for row in result.run.comparisons} == {"w/case=a", "w/case=b", "w/case=c"}
    assert any(item.metrics for item in result.run.observations), "what was measured is there"
    assert lab.left_behind() == []
    assert lab.fingerprint() == before
    assert "Traceback" not in result.err


def test_killed_and_tidied_up_by_the_next_run(tmp_path: Path) -> None:
    lab = Lab(tmp_path, LONG)
    before = lab.fingerprint()
    process = lab.start("main", "fast")
    wait_for(lambda: blocks(lab) >= 3, process)
    process.kill()
    process.communicate()
    pids = noted(lab.scenario)
    assert pids
    assert not [pid for pid in pids if alive(pid, wait=60)], "the workers die with their parent"
    assert [line for line in lab.left_behind() if "worktrees" in line], "kill -9 leaves the worktrees"
    killed = lab.newest()
    assert json.loads((killed / "run.json").read_bytes())["status"] == "running"
    kept = (killed / "rounds.jsonl").read_bytes()
    lab.set(Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)]))
    result = lab.abprof("main", "fast", "--quick")
    assert result.code == 0, result.err
    assert lab.left_behind() == []
    assert lab.fingerprint() == before
    assert result.folder != killed
    assert (killed / "rounds.jsonl").read_bytes() == kept


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_resumed(tmp_path: Path, number: signal.Signals) -> None:
    """Earlier measurements stay, byte for byte; later epochs decide the rest."""
    lab = Lab(tmp_path, LONG)
    process = lab.start("main", "fast")
    wait_for(lambda: blocks(lab) >= 4, process)
    process.send_signal(number)
    process.communicate(timeout=TIMEOUT)
    folder = lab.newest()
    kept = (folder / "rounds.jsonl").read_bytes()
    lab.set(Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6), Time(factor=1.15, side="target", cell="*case=a")]))
    result = lab.command("run", "--resume", str(folder), "--repo", str(lab.repo.path))
    assert result.run.status == "complete"
    assert result.folder == folder
    whole = kept[: kept.rindex(b"\n") + 1]
    assert (folder / "rounds.jsonl").read_bytes().startswith(whole)
    assert len((folder / "rounds.jsonl").read_bytes()) > len(whole)
    assert all(row.epochs >= 4 for row in result.run.comparisons)
    assert lab.left_behind() == []
    again = lab.command("run", "--resume", str(folder), "--repo", str(lab.repo.path))
    assert again.code == result.code
    assert again.run == result.run, "a finished run is left as it is"


@pytest.mark.slow
def test_two_runs_at_once_take_turns(tmp_path: Path) -> None:
    """Started in the same second, on the same refs of the same repository: both end well, each in its own folder."""
    lab = Lab(tmp_path, Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)], faults=[Fault("slow:0.002", "turn")]))
    both = [lab.start("main", "fast") for _ in range(2)]
    results = [lab.finish(process) for process in both]
    assert [result.code for result in results] == [0, 0], [result.err for result in results]
    folders = [path for path in lab.runs.iterdir() if path.is_dir()]
    assert len(folders) == 2
    for folder in folders:
        assert json.loads((folder / "run.json").read_bytes())["status"] == "complete"
    assert lab.left_behind() == []
