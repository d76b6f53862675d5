"""A cell in detail: which rows have one, what it holds, and how large a page of many cells becomes."""

from __future__ import annotations

import re

import msgspec
import pytest

from abprof.report import details, facts, lines, view
from abprof.report.html import html

from . import large, runs


def made(run, blocks):
    groups = view.groups(run)
    every = {details.key(group): lines.lines(group) for group in groups}
    chosen = details.choose(groups, every)
    measured = details.by_cell(blocks)
    return [one for group in groups for one in details.details(run, group, every[details.key(group)], chosen, measured)]


def test_a_detail_holds_both_sides_numbers():
    run = runs.run()
    found = made(run, runs.blocks(run))
    assert len(found) == 17
    slower = next(one for one in found if one.line.verdict == "slower")
    rows = {row[0]: row[1:] for row in slower.rows}
    assert rows["time"] == ("10.01 ms (10.00 to 10.02 ms)", "10.22 ms (10.21 to 10.23 ms)")
    assert rows["TFLOP/s of 750.3"] == ("549.2, 73 %", "537.9, 72 %")
    assert rows["GB/s of 4103"] == ("53.94, 1 %", "52.84, 1 %")
    assert rows["memory"] == ("768.0 MiB",), "said once where both sides say the same"
    assert rows["– run"] == ("9.560 ms", "9.760 ms")
    assert rows["– residual"] == ("632.2 µs", "645.8 µs")
    assert rows["error"] == ("0.0039 (0.0021 relative); sides bit-equal",)
    assert "– range_merge" not in rows, "a phase that was never recorded has no row"
    assert slower.epochs == 6
    cell = slower.line.row.cell.id
    assert slower.command == f"abprof rerun runs/{run.id} --only {cell}"


def test_what_the_clock_and_the_power_limit_say_stands_in_the_detail():
    run = runs.run()
    slower = next(row for row in run.comparisons if row.verdict == "slower")
    told = {
        "read_pct": 3.456,
        "clock_pct": -1.3,
        "cycles_pct": 2.1,
        "sustained_low_pct": 1.04,
        "sustained_high_pct": 2.06,
    }
    known = msgspec.structs.replace(slower, **told)
    rows = tuple(known if row is slower else row for row in run.comparisons)
    with_clock = msgspec.structs.replace(run, comparisons=rows)
    found = next(one for one in made(with_clock, runs.blocks(run)) if one.line.row.cell.id == slower.cell)
    texts = {row[0]: row[1:] for row in found.rows}
    assert texts["at one clock"] == ("all times here; 3.46 % slower as read",)
    assert texts["in cycles"] == ("2.10 % more (time x clock); the clock was 1.30 % slower in the target’s turns",)
    assert texts["without a pause"] == ("1.0 to 2.1 % slower",)
    plain = next(one for one in made(run, runs.blocks(run)) if one.line.row.cell.id == slower.cell)
    assert not {"clock", "in cycles", "at one clock", "without a pause"} & {row[0] for row in plain.rows}


def test_a_backward_call_that_computes_the_output_again_shows_it():
    """The other direction's phases are no columns of their own, but where they were recorded the sum needs them."""
    run = runs.run()
    again = tuple(
        runs.changed(o, phases={**o.phases, "fwd_run": 594070.0}) if o.arm == "target" and o.phases else o
        for o in run.observations
    )
    found = made(runs.changed(run, observations=again), [])
    backward = next(one for one in found if one.line.case == "mask_type=full direction=bwd")
    assert {row[0]: row[1:] for row in backward.rows}["– fwd_run"] == ("not recorded", "594.1 µs")
    table = lines.phase_table(view.groups(runs.changed(run, observations=again))[0])
    assert "fwd_run" in table.header
    assert "fwd_run" not in lines.phase_table(view.groups(run)[0]).header


def test_outputs_that_are_not_the_same_bytes_say_how_far_they_are_apart():
    run = runs.run()
    other = tuple(
        runs.changed(o, check=runs.changed(o.check, digest="d2", base_max_abs=0.001))
        if o.check and o.arm == "target"
        else o
        for o in run.observations
    )
    found = made(runs.changed(run, observations=other), [])
    slower = next(one for one in found if one.line.verdict == "slower")
    rows = {row[0]: row[1:] for row in slower.rows}
    assert rows["error"] == ("0.0039 (0.0021 relative)", "0.0039 (0.0021 relative); 0.001 from base’s output")


def test_facts_stand_beside_each_other():
    run = runs.run()
    seen = tuple(
        runs.changed(o, facts={"autotuned": f"of {o.arm}", "density": 0.25, "packed": True}) for o in run.observations
    )
    rows = {row[0]: row[1:] for row in made(runs.changed(run, observations=seen), [])[0].rows}
    assert rows["autotuned"] == ("of base", "of target")
    assert (rows["density"], rows["packed"]) == (("0.25",), ("yes",))


def test_a_cell_that_failed_has_its_log_and_no_picture():
    run = runs.run()
    crashed = next(one for one in made(run, runs.blocks(run)) if one.line.change == "crash")
    rows = {row[0]: row[1:] for row in crashed.rows}
    assert rows["time"] == ("2.000 ms (1.998 to 2.002 ms)", "crash")
    assert rows["why"] == ("–", "RuntimeError: invalid argument | grid (0, 1, 1)")
    assert crashed.logs == ("logs/target-ffa.log",)
    assert "data-base" in crashed.picture
    assert "data-target" not in crashed.picture


def test_rounds_that_a_rule_dropped_are_not_drawn():
    run = runs.run()
    (first, *_), cell = runs.blocks(run, epochs=1, rounds=4), run.cells[0].id
    assert first.cell == cell
    dropped = runs.changed(first, rejected=(0, 1, 2, 3))
    assert made(run, [dropped])[0].picture == ""


@pytest.mark.parametrize("count", [12, 90])
def test_turns_are_thinned_to_sixty_points_a_cell(count):
    run = runs.run()
    for one in made(run, runs.blocks(run, epochs=2, rounds=count)):
        drawn = [len(text) - 5 for text in re.findall(r"data-(?:base|target)=([\w-]+)", one.picture)]
        assert sum(drawn) <= 60
        assert len(drawn) < 2 or set(drawn) == {min(30, 2 * count - 1)}


def test_two_hundred_cells_are_under_300_kb_each_with_its_detail():
    run = large.run(200)
    text = html(run, large.blocks(run))
    assert len(text.encode()) < 300_000
    assert text.count('<details class="cell ') == 200
    assert "have a detail" not in text


@pytest.mark.slow
def test_ten_thousand_cells_are_under_5_mb_and_the_page_says_what_it_leaves_out():
    """A thousand of them are flagged. Where fewer are: the test below."""
    run = large.run(10_000)
    text = html(run, large.blocks(run))
    assert len(text.encode()) < 5_000_000
    assert text.count('<details class="cell ') == 300
    assert "Of 10000 rows 300 have a detail" in text


def test_a_large_run_says_which_rows_have_a_detail():
    run = large.run(400)
    text = html(run, large.blocks(run))
    assert text.count('<details class="cell ') == 40
    assert "Of 400 rows 40 have a detail: those that changed, broke or are not decided." in text


@pytest.mark.parametrize(("count", "shown"), [(2, "fwd0 1 s, fwd1 1 s"), (24, "24 kernels compiled")])
def test_a_build_of_many_kernels_is_one_line(count: int, shown: str) -> None:
    """All of their names made a page of the report's end; the log has them."""
    whole = runs.run()
    built = msgspec.structs.replace(whole.builds[0], facts={f"fwd{i}": "1 s" for i in range(count)})
    (_, line), *_ = facts.builds(msgspec.structs.replace(whole, builds=(built,)))
    assert shown in line
    assert len(line) < 200
