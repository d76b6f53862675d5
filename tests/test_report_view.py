"""The rows every renderer walks: order, names, and nothing dropped."""

from __future__ import annotations

from abprof.report.view import groups, label

from . import runs


def test_what_is_broken_comes_first_and_what_nobody_supports_last():
    run = runs.run()
    verdicts = ("same", "broken", "unclear", "faster", "slower", "slight")
    dense = tuple(runs.changed(c, verdict=v) for c, v in zip(run.comparisons, verdicts, strict=False))
    first, *_ = groups(runs.changed(run, comparisons=(*dense, *run.comparisons[6:])))
    assert [row.verdict for row in first.rows] == ["broken", "slower", "unclear", "faster", "slight", "same"]
    sparse = groups(run)[1].rows
    assert [row.apart for row in sparse] == [""] * 8 + ["unsupported"]  # what only the target lacks is broken


def test_a_cell_that_was_never_judged_is_a_row():
    run = runs.changed(runs.run(), comparisons=(), observations=())
    assert sum(len(group.rows) for group in groups(run)) == len(run.cells) + 1  # the ladder has two variants
    assert {row.verdict for group in groups(run) for row in group.rows} == {None}


def test_axes_that_are_always_equal_are_said_once():
    _, sparse, _ = groups(runs.run())
    assert sparse.axes == ("sparsity_ratio", "q_block_size")
    assert sparse.constants["kblockn"] == "q_block_size"
    assert sparse.constants["seqlen"] == "49152"
    assert label(runs.sparse_cell(0.1, 64, "fwd"), sparse.axes) == "sparsity_ratio=0.1 q_block_size=64"


def test_peers_and_comparisons_with_them_are_kept_apart():
    run = runs.run()
    peer = runs.changed(run.comparisons[-1], from_="peer:sdpa")
    *_, ladder = groups(runs.changed(run, comparisons=(*run.comparisons, peer)))
    assert [(row.variant, row.verdict) for row in ladder.rows] == [("ws", "same"), ("ws_pp", "same")]
    assert [seen.arm for _, _, seen in ladder.peers] == ["peer:sdpa"]
    assert ladder.others == (peer,)


def test_a_control_makes_no_row():
    """The control's arm is one for the whole run, with the variant of whichever package has variants."""
    run = runs.run()
    arms = tuple(runs.changed(a, variant="ws") if a.id == "control" else a for a in run.arms)
    seen = (*run.observations, *(runs.observed(cell, "control", 1.0) for cell in run.cells))
    expected = [(row.cell.id, row.variant) for group in groups(run) for row in group.rows]
    found = groups(runs.changed(run, arms=arms, observations=seen))
    assert [(row.cell.id, row.variant) for group in found for row in group.rows] == expected


def test_every_target_has_its_own_rows():
    found = groups(runs.two_targets())
    assert [(group.target.id, group.workload.name) for group in found if group.target] == [
        (target, name) for target in ("target", "target2") for name in ("dense", "block_sparse", "ladder")
    ]
