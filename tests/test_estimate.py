"""The time estimate of `--dry-run`: it follows the work, counts every arm, and warns if a look does not fit."""

import pytest

from abprof.measure import Estimate, turns
from abprof.records import Run
from abprof.verdict import stats

from . import runs


def planned(kind: str = "cpu", *, flops: float = 4e12, cells: int = 28, cpus: int = 2, **settings: object) -> Run:
    """A plan of `cells` equal cells of the dense workload, whose peer is sdpa."""
    of = runs.run()
    first = runs.changed(of.cells[0], flops=flops, bytes=None)
    many = tuple(runs.changed(first, id=f"{first.id},i={i}") for i in range(cells))
    machine = runs.changed(of.machine, kind=kind, cpus=cpus)
    return runs.changed(of, cells=many, machine=machine, options=runs.changed(of.options, **settings), observations=())


def said(of: Run, *, peers: bool = False) -> str:
    return Estimate(of).text(stats.epochs_if_unchanged, peers=peers)[0]


def test_long_calls_take_hours_and_the_first_look_does_not_fit() -> None:
    """4 TFLOP on two cores of 0.02 TFLOP/s: 100 s a call, of which an epoch needs 8 rounds of two sides at least."""
    run = planned()
    assert Estimate(run).call(run.cells[0]) == pytest.approx(100)
    epoch = Estimate(run).epoch(peers=False)
    assert epoch > 28 * 2 * turns.FEWEST * 100
    text = said(run)
    assert "the first look does not fit into the budget of 10 min, which decides the shortest cells or none" in text
    assert "assuming 0.04 TFLOP/s" in text
    hours = stats.LOOKS[0] * epoch / 3600
    assert f"{hours:.1f} h" in text


def test_short_calls_fit() -> None:
    text = said(planned(flops=1e9, cells=2))
    assert "if the first look decides" in text
    assert "does not fit" not in text


def test_a_budget_that_decides_some_cells() -> None:
    """Unchanged calls of a GPU below 50 ms need 24 epochs at a margin of 0.5 %; longer ones scatter by 0.3 %: six."""
    run = planned("cuda", flops=3e11, cells=2, margin=0.5, budget=60.0)
    both = (run.cells[0], runs.changed(run.cells[1], flops=3e13))
    for budget, decided in ((8.0, "0 of 2"), (20.0, "1 of 2"), (120.0, "2 of 2")):
        of = runs.changed(run, cells=both, options=runs.changed(run.options, budget=budget))
        text = said(of)
        assert f"enough to decide {decided} cells if nothing changed" in text, (budget, text)
    few = runs.changed(run, cells=both, options=runs.changed(run.options, epochs=6))
    assert "; 6 epochs fit into the budget, enough to decide 1 of 2 cells" in said(few)
    silent = runs.changed(run, cells=(both[0], runs.changed(both[1], flops=None)))
    assert "enough to decide at most 2 of 2 cells" in said(silent)


def test_slices_of_the_sustained_regime_take_time_in_each_epoch() -> None:
    burst, sustained = (
        Estimate(planned("cuda", flops=3e11, cells=2, regime=regime)) for regime in ("auto", "sustained")
    )
    assert sustained.epoch(peers=False) - burst.epoch(peers=False) >= 2 * 0.6, "0.6 s of slices a cell"


def test_peers_and_controls_are_arms_too() -> None:
    run = planned(cells=6)
    alone = Estimate(run).epoch(peers=False)
    beside = Estimate(run).epoch(peers=True)
    one_branch = Estimate(runs.changed(run, sides=run.sides[:1])).epoch(peers=False)
    assert beside / alone == pytest.approx(4 / 3, rel=0.01)  # two sides and a control; with the peer four
    assert one_branch / alone == pytest.approx(1 / 3, rel=0.01)


def test_a_gpu_is_faster_and_the_line_says_what_was_assumed() -> None:
    run = planned("cuda", flops=3e14, cells=1)
    assert Estimate(run).call(run.cells[0]) == pytest.approx(1.0)
    assert "assuming 300 TFLOP/s and 2000 GB/s" in said(run, peers=True)


def test_work_that_is_not_stated_is_said() -> None:
    run = planned(cells=3)
    silent = runs.changed(run, cells=tuple(runs.changed(cell, flops=None) for cell in run.cells))
    assert "no time for 3 of the cells, which state no work" in said(silent)
