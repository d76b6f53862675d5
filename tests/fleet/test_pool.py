"""A run spread over several devices: shards in programs of their own, the same verdicts, every cell whole and on one device."""

from collections import Counter
from pathlib import Path

import pytest

from abprof.records import Block, Run
from abprof.store import runfolder
from tests.fleet.clusters import WIDE
from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import Noise, Scenario, Time, Workload

TWO = ("--device", "simulated:0", "--device", "simulated:1")
SPREAD = (*TWO, *WIDE)
SIZES = [1, 2, 3, 4, 5, 6, 7, 8]
VERDICTS = {f"{'w' if n < 5 else 'v'}/n={n}": {2: "slower", 7: "faster"}.get(n, "same") for n in SIZES}


def scenario() -> Scenario:
    """Eight cells of two packages; one slower, one faster, the others the same."""
    half = {"default": {"n": SIZES[:4]}}, {"default": {"n": SIZES[4:]}}
    return Scenario(
        workloads={"w": Workload("k", half[0]), "v": Workload("j", half[1])},
        times=[
            Time(ns=1e6),
            Time(factor=1.1, side="target", cell="w/n=2"),
            Time(factor=0.8, side="target", cell="v/n=7"),
        ],
        noise=[Noise(turn=0.002)],
        clock_ns=0,
    )


def blocks(result: Result) -> list[Block]:
    assert result.folder
    _, found, notes = runfolder.read(result.folder)
    assert notes == []
    return found


def homes(found: list[Block]) -> dict[str, set[str]]:
    """Cell -> the devices that its blocks are of."""
    made: dict[str, set[str]] = {}
    for block in found:
        made.setdefault(block.cell, set()).add(block.device)
    return made


def once_each(run: Run, found: list[Block]) -> None:
    """No cell is lost or measured on two devices, and no epoch of it twice."""
    assert homes(found).keys() == {cell.id for cell in run.cells}
    assert all(len(devices) == 1 for devices in homes(found).values())
    assert set(Counter((block.cell, block.epoch) for block in found).values()) == {1}


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, Result]:
    """A run on two devices, and its laboratory."""
    lab = Lab(tmp_path_factory.mktemp("spread"), scenario())
    return lab, lab.abprof("main", "fast", *SPREAD)


def test_two_devices_say_what_one_says(tmp_path: Path, spread: tuple[Lab, Result]) -> None:
    lab, two = spread
    one = Lab(tmp_path, scenario()).abprof("main", "fast", "--epochs", "4")
    assert (one.code, two.code) == (1, 1), two.err
    assert two.table() == one.table()
    assert two.table() == VERDICTS
    once_each(two.run, blocks(two))
    assert set(two.run.machines) == {"simulated:0", "simulated:1"}
    assert {device for devices in homes(blocks(two)).values() for device in devices} == {"simulated:0", "simulated:1"}
    assert lab.left_behind() == []


def test_devices_of_two_models_are_two_machines(tmp_path: Path) -> None:
    lab = Lab(tmp_path, scenario())
    result = lab.abprof("main", "fast", "--device", "simulated:0:H200", "--device", "simulated:1:A100", *WIDE)
    assert result.folder
    homes_of = {seen.cell: seen.device for seen in result.run.observations}
    machines = result.run.machines
    assert {machine.device for machine in machines.values()} == {"H200", "A100"}
    assert machines["simulated:0:H200"].builds == ()
    keys = {build.key for build in result.run.builds}
    assert machines["simulated:1:A100"].builds
    assert not keys & {build.key for build in machines["simulated:1:A100"].builds}, "of another architecture"
    cells = (result.folder / "cells.csv").read_text()
    assert set(homes_of.values()) == set(machines), "both measured something"
    for cell, lease in homes_of.items():
        assert lease in next(line for line in cells.splitlines() if line.startswith((f"{cell},", f'"{cell}"')))
    for lease in machines:
        controls = [one for one in result.run.controls if homes_of[one.cell] == lease]
        assert len(controls) >= 2, lease
    assert result.run.header.counts["controls_second_build"] == result.run.header.counts["controls"], "on both machines"


def test_each_shard_has_logs_of_its_own(spread: tuple[Lab, Result]) -> None:
    lab, result = spread
    assert result.folder
    shards = {block.shard: block.device for block in blocks(result)}
    assert len(shards) > 2, "more shards than slots"
    for number in shards:
        logs = result.folder / "logs" / f"shard-{number}"
        assert (logs / "program.log").exists()
        assert list(logs.glob("worker-*.log")), number
    assert (result.run.touched, result.run.losses) == ((), ())
    assert not list((result.folder / "logs").glob("abprof-*"))
    assert lab.left_behind() == []


def test_a_rerun_goes_where_the_cell_was(spread: tuple[Lab, Result]) -> None:
    lab, first = spread
    assert first.folder
    before = blocks(first)
    cell = next(cell for cell, home in homes(before).items() if home == {"simulated:1"})
    again = lab.command("rerun", str(first.folder), "--repo", str(lab.repo.path), "--only", cell)
    assert again.code == first.code, again.err
    once_each(again.run, blocks(again))
    more = blocks(again)[len(before) :]
    assert {(block.cell, block.device) for block in more} == {(cell, "simulated:1")}
    assert again.table() == VERDICTS
