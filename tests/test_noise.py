"""What earlier runs learnt of a cell's noise plans the rounds of the next, and changes no verdict."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from abprof.measure import allocation
from abprof.measure.allocation import Scatter
from abprof.measure.noise import Kept, earlier, remembered
from abprof.measure.turns import FEWEST
from abprof.store.runfolder import read
from tests.simulated.lab import Lab
from tests.simulated.planted import NewLab, load, new_lab, times
from tests.simulated.scenario import Noise, Scenario

__all__ = ["new_lab"]

ONE = Scatter(within=1e-4, between=1e-6, round_seconds=0.002, epoch_seconds=0.5, epochs=4)
UNSETTLED = Scenario(workloads={"w": load(["a"])}, times=times(), noise=[Noise(turn=0.02, epoch=0.02)])


def rounds(lab: Lab) -> list[int]:
    """Rounds of the newest run's epochs."""
    folder = max(path for path in lab.runs.iterdir() if path.is_dir())
    return [len(block.rounds) for block in read(folder)[1]]


def kept(lab: Lab) -> Path:
    (file,) = (lab.state / "noise").glob("*.json")
    return file


@pytest.mark.slow
def test_what_is_learnt_is_kept_and_plans_the_next_runs_first_epochs(new_lab: NewLab) -> None:
    lab = new_lab(UNSETTLED)
    lab.abprof()
    first = rounds(lab)
    stored = msgspec.json.decode(kept(lab).read_bytes(), type=Kept)
    known = stored.cells["w/case=a"]
    assert known.epochs == len(first)
    # What an epoch and a round cost here is this machine's: with these costs the formula asks for what no rule would.
    wanted = 2 * max(first[:4])
    ratio = (wanted - 0.5) ** 2 * known.between / known.within
    costs = msgspec.structs.replace(known, epoch_seconds=known.round_seconds * ratio)
    assert allocation.best(costs) == wanted
    kept(lab).write_bytes(msgspec.json.encode(Kept(cells={"w/case=a": costs})))
    lab.abprof()
    assert set(rounds(lab)[:4]) == {wanted}


@pytest.mark.slow
@pytest.mark.parametrize("within", [0.0, 1.0])
def test_no_verdict_rests_on_it(new_lab: NewLab, within: float) -> None:
    """Whether the file asks for the fewest rounds or for very many, a change is found and no change is not."""
    slow = new_lab(Scenario(workloads={"w": load(["a", "b"])}, times=times(), noise=[Noise(turn=0.002, epoch=0.0005)]))
    cells = dict.fromkeys(("w/case=a", "w/case=b"), msgspec.structs.replace(ONE, within=within))
    (slow.state / "noise").mkdir(parents=True)
    (slow.state / "noise" / "simulated.json").write_bytes(msgspec.json.encode(Kept(cells=cells)))
    result = slow.abprof()
    assert [path.name for path in (slow.state / "noise").iterdir()] == ["simulated.json"], "the name this test wrote to"
    assert result.table() == {"w/case=a": "same", "w/case=b": "same"}


def test_a_file_that_cannot_be_read_is_begun_anew_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "noise").mkdir()
    file = tmp_path / "noise" / "GPU-1.json"
    file.write_text('{"cells": {"w/a": {"within": "no')
    with remembered(tmp_path, "GPU-1", said.append) as known:
        assert known.rounds("w/a") is None
    assert len(said) == 1
    assert str(file) in said[0]
    assert file.read_text().startswith('{"cells"'), "nothing was learnt, so nothing is written"


def test_a_newer_file_is_left_alone_and_not_used(tmp_path: Path) -> None:
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "cpu.json").write_bytes(msgspec.json.encode(Kept(schema=2, cells={"w/a": ONE})))
    with remembered(tmp_path, "cpu", pytest.fail) as known:
        assert known.rounds("w/a") is None
    assert json.loads((tmp_path / "noise" / "cpu.json").read_text())["schema"] == 2


@pytest.mark.slow
def test_rounds_that_are_cheap_for_a_cell_end_when_they_settle_its_epoch(new_lab: NewLab) -> None:
    """A median that is known eight times better than the margin gains nothing by more."""
    quiet = Scenario(workloads={"w": load(["a"])}, times=times(), noise=[Noise(turn=0.0005, epoch=0.004)])
    lab = new_lab(quiet)
    (lab.state / "noise").mkdir(parents=True)
    lab.abprof()
    cheap = msgspec.structs.replace(ONE, within=1e-2, between=1e-9)
    kept(lab).write_bytes(msgspec.json.encode(Kept(cells={"w/case=a": cheap})))
    lab.abprof()
    assert rounds(lab)[0] == FEWEST


def test_what_any_of_a_runs_devices_taught_plans_it(tmp_path: Path) -> None:
    """A run that was spread taught each device its own cells."""
    said: list[str] = []
    (tmp_path / "noise").mkdir()
    other = msgspec.structs.replace(ONE, epochs=8)
    for device, cells in (("GPU-1", {"a": ONE}), ("GPU-2", {"a": other, "b": other})):
        (tmp_path / "noise" / f"{device}.json").write_bytes(msgspec.json.encode(Kept(cells=cells)))
    assert earlier(tmp_path, ["GPU-1", "GPU-2", "GPU-3"], said.append) == {"a": ONE, "b": other}
    assert earlier(tmp_path, ["GPU-1"], said.append) == {"a": ONE}
    assert said == []


def test_a_device_that_never_measured_a_cell_goes_by_what_it_is_told(tmp_path: Path) -> None:
    own, told = ONE, msgspec.structs.replace(ONE, within=4e-4)
    (tmp_path / "noise").mkdir()
    file = tmp_path / "noise" / "GPU-1.json"
    file.write_bytes(msgspec.json.encode(Kept(cells={"a": own})))
    with remembered(tmp_path, "GPU-1", pytest.fail, {"a": told, "b": told}) as known:
        assert [known.rounds(cell) for cell in "abc"] == [allocation.best(own), allocation.best(told), None]
        assert allocation.best(own) != allocation.best(told)
    assert msgspec.json.decode(file.read_bytes(), type=Kept).cells == {"a": own}, "what was told is another's"
