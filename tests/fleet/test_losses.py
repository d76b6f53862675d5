"""Shards that are lost in the middle: nothing is lost or there twice, and every cell that stands is whole and of one device."""

import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from abprof.records import Run
from abprof.store import runfolder
from abprof.store.runfolder import RunFolder
from tests.fleet.test_pool import SPREAD, VERDICTS, blocks, homes, once_each, scenario
from tests.simulated.lab import Lab
from tests.simulated.processes import alive, noted
from tests.simulated.scenario import Fault
from tests.test_interruptions import LONG, wait_for
from tests.test_interruptions import blocks as lines


def test_what_a_killed_shard_has_not_finished_runs_again_elsewhere(tmp_path: Path) -> None:
    lab = Lab(tmp_path, scenario())
    lab.set(replace(lab.now, faults=[Fault("kill_parent", "turn", cell="w/n=2", epoch=2, once=True)]))
    result = lab.abprof("main", "fast", *SPREAD)
    run, found = result.run, blocks(result)
    assert (result.table(), result.code) == (VERDICTS, 1)
    once_each(run, found)
    (loss,) = run.losses
    assert "w/n=2" in loss.cells
    assert loss.reason == "killed by SIGKILL"
    assert {device for cell in loss.cells for device in homes(found)[cell]} == {"simulated:0", "simulated:1"} - {
        loss.device
    }
    assert result.folder
    every = list(runfolder.blocks(result.folder, []))
    assert [block for block in every if block.shard == loss.shard and block.cell in loss.cells], (
        "it was lost in the middle"
    )
    assert "was lost (killed by SIGKILL)" in result.err
    assert lab.left_behind() == []


def test_a_stopped_shard_is_lost_after_a_time_without_news(tmp_path: Path) -> None:
    """The time is that of a build and ten answers."""
    lab = Lab(tmp_path, replace(scenario(), faults=[Fault("stop_parent", "turn", cell="w/n=2", epoch=2, once=True)]))
    result = lab.abprof("main", "fast", *SPREAD, "--build-timeout", "1s", "--timeout", "0.5s")
    (loss,) = result.run.losses
    assert loss.reason.startswith("no news for ")
    once_each(result.run, blocks(result))
    assert lab.left_behind() == []


def test_a_cell_that_kills_its_shard_each_time_is_an_outcome(tmp_path: Path) -> None:
    """It takes no other cell with it."""
    lab = Lab(tmp_path, scenario())
    lab.set(replace(lab.now, faults=[Fault("kill_parent", "turn", cell="w/n=2")]))
    result = lab.abprof("main", "fast", *SPREAD)
    status, reason = result.status("w/n=2", "target")
    assert status == "crash"
    assert reason == "2 shards with this cell were lost; the last: killed by SIGKILL"
    assert result.folder
    assert len(list(result.folder.glob("logs/*/program.log"))) >= 2
    assert result.table() == VERDICTS | {"w/n=2": "broken"}
    once_each(result.run, blocks(result))
    assert lab.left_behind() == []


def test_a_device_that_disappears_takes_no_cell_with_it(tmp_path: Path) -> None:
    """Where every call fails at once a device would take all cells from the others, and fail them."""
    lab = Lab(tmp_path, scenario())
    lab.set(replace(lab.now, faults=[Fault("gone", "turn", device="simulated:1", after=5, epoch=2)]))
    result = lab.abprof("main", "fast", *SPREAD)
    assert result.table() == VERDICTS
    assert result.run.losses
    assert {(loss.device, loss.reason) for loss in result.run.losses} == {
        ("simulated:1", "simulated:1: the simulated device has disappeared")
    }
    once_each(result.run, blocks(result))
    assert lab.left_behind() == []


def programs(pid: int) -> list[int]:
    """The shards' programs of this run."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):  # another child that has ended since
            found += [child.pid] if "abprof.fleet" in child.cmdline() else []
    return found


def test_interrupted(tmp_path: Path) -> None:
    """tests/test_interruptions.py has other signals."""
    lab = Lab(tmp_path, LONG)
    before = lab.fingerprint()
    process = lab.start("main", "fast", *SPREAD)
    wait_for(lambda: lines(lab) >= 4 and len(programs(process.pid)) == 2, process)
    mine = programs(process.pid)
    process.send_signal(signal.SIGINT)
    result = lab.finish(process)
    assert result.code == 130, result.err
    assert result.run.status == "interrupted"
    assert "Traceback" not in result.err
    assert not [pid for pid in mine if alive(pid)]
    assert lab.left_behind() == []
    assert lab.fingerprint() == before


def test_a_killed_parent_takes_its_shards_with_it(tmp_path: Path) -> None:
    """And the run is gone on with from what stands, each cell on its device, although run.json was written before any
    device was known. tests/fleet/test_after_epochs.py has one that knew them."""
    lab = Lab(tmp_path, LONG)
    process = lab.start("main", "fast", "--epochs", "5", *SPREAD)
    wait_for(lambda: lines(lab) >= 6 and len(programs(process.pid)) == 2, process)
    mine = programs(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not [pid for pid in (*mine, *noted(lab.scenario)) if alive(pid, wait=120)]

    folder = lab.newest()
    assert folder
    head = msgspec.json.decode((folder / "run.json").read_bytes(), type=Run)
    RunFolder(folder).write_run(msgspec.structs.replace(head, machines={}, status="running"))
    stood = (folder / "rounds.jsonl").read_bytes()
    before = homes(runfolder.read(folder)[1])
    result = lab.abprof("run", "--resume", str(folder))
    run, found = result.run, blocks(result)
    assert run.status == "complete"
    assert (folder / "rounds.jsonl").read_bytes().startswith(stood)
    once_each(run, found)
    assert {cell: homes(found)[cell] for cell in before} == before
    assert {
        cell: len({block.epoch for block in found if block.cell == cell and block.rounds}) for cell in homes(found)
    } == dict.fromkeys(homes(found), 5)
    assert lab.left_behind() == []
