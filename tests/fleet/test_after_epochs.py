"""Follow-up measurements of a run on several devices: each cell once, on the device of its rounds."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from abprof.records import SUSTAINED, Block, Run
from abprof.store.runfolder import RunFolder
from tests.fleet.clusters import WIDE
from tests.fleet.test_pool import SPREAD, blocks, homes
from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import Fault
from tests.test_regimes import POWER, SLICES, capped

ALWAYS = ("main", "fast")


def said(result: Result) -> dict[str, tuple[str, tuple[str, ...], float | None]]:
    return {row.cell: (row.verdict, row.reasons, row.sustained_pct) for row in result.run.comparisons}


def slices(found: list[Block]) -> Counter[str]:
    return Counter(block.cell for block in found if block.metric == SUSTAINED and block.rounds)


def measured(folder: Path, *options: str) -> tuple[Lab, Result]:
    lab = capped(Lab(folder, POWER))
    return lab, lab.abprof(*ALWAYS, *options)


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, Result]:
    """A run on two devices, and its laboratory."""
    return measured(tmp_path_factory.mktemp("spread"), *SPREAD)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, Result]:
    return measured(tmp_path_factory.mktemp("single"), *WIDE)


def test_slices_say_what_they_say_on_one_device(single: tuple[Lab, Result], spread: tuple[Lab, Result]) -> None:
    (_, one), (_, two) = single, spread
    assert two.code == one.code, two.err
    assert said(two) == said(one)
    assert said(two)["w/case=reversed"][:2] == ("unclear", ("power",))
    assert set(slices(blocks(two)).values()) == {SLICES}
    assert all(len(devices) == 1 for devices in homes(blocks(two)).values())
    assert set().union(*homes(blocks(two)).values()) == {"simulated:0", "simulated:1"}


@pytest.mark.parametrize("devices", ["single", "spread"])
def test_a_run_that_was_killed_in_its_slices_gets_those_that_are_missing(
    request: pytest.FixtureRequest, devices: str
) -> None:
    lab, whole = request.getfixturevalue(devices)
    assert whole.folder
    says = said(whole)
    rounds = whole.folder / "rounds.jsonl"
    lines = rounds.read_bytes().splitlines(keepends=True)
    mine = [line for line in lines if SUSTAINED.encode() in line and b"case=reversed" in line]
    rounds.write_bytes(b"".join(line for line in lines if line not in mine[1:]))
    head = msgspec.json.decode((whole.folder / "run.json").read_bytes(), type=Run)
    RunFolder(whole.folder).write_run(msgspec.structs.replace(head, status="running"))
    before = homes(blocks(whole))
    assert len(mine) == SLICES

    result = lab.abprof("run", "--resume", str(whole.folder))
    assert said(result) == says
    assert slices(blocks(result)) == Counter(dict.fromkeys(before, SLICES)), result.err
    assert homes(blocks(result)) == before


def test_a_rerun_times_no_slices_again(spread: tuple[Lab, Result]) -> None:
    lab, two = spread
    assert two.folder
    before = blocks(two)
    again = lab.command("rerun", str(two.folder), "--only", "*case=agrees", "--repo", str(lab.repo.path))
    assert slices(blocks(again)) == slices(before), "once in a run"
    assert len([b for b in blocks(again) if b.rounds]) == len([b for b in before if b.rounds]) + 4, again.err


def test_a_shard_that_is_lost_in_its_slices_is_not_finished(tmp_path: Path, spread: tuple[Lab, Result]) -> None:
    """Its verdicts by turns alone would stand, and one of them is wrong."""
    faults = [Fault("kill_parent", "turn", cell="w/case=reversed", epoch=6, once=True)]
    lab = capped(Lab(tmp_path, replace(POWER, faults=faults)))
    result = lab.abprof(*ALWAYS, *SPREAD)
    assert said(result) == said(spread[1])
    (loss,) = result.run.losses
    assert "w/case=reversed" in loss.cells
    assert set(slices(blocks(result)).values()) == {SLICES}
    assert all(len(devices) == 1 for devices in homes(blocks(result)).values())
    assert lab.left_behind() == []
