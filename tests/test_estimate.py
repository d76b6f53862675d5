"""What `--dry-run` says of the time: it follows the work, counts every arm, and says when a look does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from abprof.measure import estimate, turns
from abprof.records import Run
from abprof.verdict import stats
from tests.simulated.lab import Lab
from tests.simulated.planted import load
from tests.simulated.scenario import Scenario

from . import runs


def planned(kind: str = "cpu", *, flops: float = 4e12, cells: int = 28, cpus: int = 2, **settings: object) -> Run:
    """A plan of `cells` equal cells of the dense workload, whose peer is sdpa."""
    of = runs.run()
    first = runs.changed(of.cells[0], flops=flops, bytes=None)
    many = tuple(runs.changed(first, id=f"{first.id},i={i}") for i in range(cells))
    machine = runs.changed(of.machine, kind=kind, cpus=cpus)
    return runs.changed(of, cells=many, machine=machine, options=runs.changed(of.options, **settings), observations=())


def test_long_calls_take_hours_and_the_first_look_does_not_fit() -> None:
    """4 TFLOP on two cores of 0.02 TFLOP/s: 100 s a call, of which an epoch needs 8 rounds of two sides at least."""
    run = planned()
    assert estimate.call_seconds(run, run.cells[0]) == pytest.approx(100)
    fewest, _ = estimate.epoch_seconds(run, peers=False)
    assert fewest > 28 * 2 * turns.FEWEST * 100
    said = estimate.estimate(run, peers=False)
    assert "the first look does not fit into the budget of 10 min" in said
    assert "assuming 0.02 TFLOP/s per core" in said
    hours = stats.LOOKS[0] * fewest / 3600
    assert f"{hours:.1f} h" in said


def test_short_calls_fit() -> None:
    said = estimate.estimate(planned(flops=1e9, cells=2), peers=False)
    assert "if all is clear" in said
    assert "does not fit" not in said


def test_peers_and_controls_are_arms_too() -> None:
    run = planned(cells=6)
    alone, _ = estimate.epoch_seconds(run, peers=False)
    beside, _ = estimate.epoch_seconds(run, peers=True)
    one_branch, _ = estimate.epoch_seconds(runs.changed(run, sides=run.sides[:1]), peers=False)
    assert beside / alone == pytest.approx(4 / 3, rel=0.01)  # two sides and a control; with the peer four
    assert one_branch / alone == pytest.approx(1 / 3, rel=0.01)


def test_a_gpu_is_faster_and_the_line_says_what_was_assumed() -> None:
    run = planned("cuda", flops=3e14, cells=1)
    assert estimate.call_seconds(run, run.cells[0]) == pytest.approx(1.0)
    assert "assuming 300 TFLOP/s and 2000 GB/s" in estimate.estimate(run, peers=True)


def test_work_that_is_not_stated_is_said() -> None:
    run = planned(cells=3)
    silent = runs.changed(run, cells=tuple(runs.changed(cell, flops=None) for cell in run.cells))
    assert "3 of the cells state no work" in estimate.estimate(silent, peers=False)
    alone = runs.changed(silent, cells=silent.cells[:1])
    assert "1 of the cells states no work" in estimate.estimate(alone, peers=False)


def test_so_many_epochs_and_quick() -> None:
    assert "in one epoch" in estimate.estimate(planned(flops=1e9, quick=True), peers=False)
    run = planned(flops=1e9, cells=1, epochs=5, budget=1e6)
    _, usual = estimate.epoch_seconds(run, peers=False)
    assert estimate.estimate(run, peers=False).startswith(f"about {5 * usual:.0f} s of measuring, builds")


@pytest.mark.parametrize(("seconds", "said"), [(89.6, "90 s"), (119, "119 s"), (720, "12 min"), (12600, "3.5 h")])
def test_a_span_is_said_as_people_do(seconds: float, said: str) -> None:
    assert estimate.span(seconds) == said


def spread(run: Run, devices: int) -> Run:
    return runs.changed(run, machines={f"GPU-{i}": run.machine for i in range(devices)})


def test_several_devices_take_what_their_schedule_does() -> None:
    """Twelve cells of a second's calls: each slot has its part, and what a shard needs before its first turn."""
    run = planned("cuda", flops=3e14, cells=12, epochs=4, budget=1e6)
    _, alone = estimate.measuring(run, 4, peers=False)
    begins, workers = estimate.PROGRAM["cuda"], 4 * turns.epoch_cost("cuda", 0)[0]
    assert alone == 4 * estimate.epoch_seconds(run, peers=False)[1]
    for devices in (2, 4):
        _, together = estimate.measuring(spread(run, devices), 4, peers=False)
        even = (alone - workers) / devices + begins + workers
        one_cell = (alone - workers) / 10  # a cell with its control takes more than a twelfth
        assert even <= together <= even + one_cell + begins + 2 * workers
        assert estimate.estimate(spread(run, devices), peers=False).startswith(
            f"about {estimate.span(together)} of measuring"
        )


def test_no_run_is_shorter_than_its_longest_cell() -> None:
    run = planned("cuda", flops=3e12, cells=8, epochs=4, budget=1e6)
    long = runs.changed(run, cells=(runs.changed(run.cells[0], flops=3e15), *run.cells[1:]))
    _, eight = estimate.measuring(spread(long, 8), 4, peers=False)
    _, cell = estimate.cell_seconds(long, long.cells[0], 2)
    assert eight >= 4 * cell
    assert eight == estimate.measuring(spread(long, 4), 4, peers=False)[1], "more devices do not help"


def test_a_look_that_fits_on_several_devices_alone() -> None:
    run = planned("cuda", flops=3e14, cells=12)
    fewest, _ = estimate.measuring(run, stats.LOOKS[0], peers=False)
    tight = runs.changed(run, options=runs.changed(run.options, budget=0.8 * fewest))
    assert "does not fit" in estimate.estimate(tight, peers=False)
    assert "does not fit" not in estimate.estimate(spread(tight, 4), peers=False)


def test_of_a_cluster_only_one_device_is_known() -> None:
    run = planned(flops=1e9, cells=2)
    there = runs.changed(run, options=runs.changed(run.options, executor="slurm"))
    assert "on one of the devices of --executor slurm" in estimate.estimate(there, peers=False)


def test_the_devices_of_a_plan_are_those_it_would_use(tmp_path: Path) -> None:
    lab = Lab(tmp_path, Scenario(workloads={"w": load(["a", "b"])}))
    where = ("--repo", str(lab.repo.path), "--device", "simulated:0:H200", "--device", "simulated:1:H200")
    out = lab.command("main", "fast", "--dry-run", *where).out
    assert out.splitlines()[-1].startswith("2 cells on 2 x H200; about ")
    alone = lab.command("main", "fast", "--dry-run", "--only", "case=a", *where).out
    assert alone.splitlines()[-1].startswith("1 cell on H200; about "), "one cell stays on the first"


def test_one_cell_is_one_cell(tmp_path: Path) -> None:
    lab = Lab(tmp_path, Scenario(workloads={"w": load(["a"])}))
    out = lab.command("main", "fast", "--dry-run", "--repo", str(lab.repo.path), "--device", "simulated").out
    assert out.splitlines()[-1].startswith("1 cell on ")
