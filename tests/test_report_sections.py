"""Sections that workloads declare: numbers, texts for failed arms, and when a section is left out."""

import re

import pytest

from abprof.records import Sweep
from abprof.report import tables
from abprof.report.rows import Block, groups
from tests.reports import html, markdown

from . import declared, runs


def made(run) -> dict[str, Block]:
    """The blocks with a sentence of their own: those that a workload declares."""
    found = [part for group in groups(run) for part in tables.blocks(group)]
    return {part.title: part for part in found if part.text}


@pytest.fixture(scope="module")
def found() -> dict[str, Block]:
    return made(declared.run())


def rows(part: Block, *keys: str) -> list[tuple[str, ...]]:
    """Return the rows with this start, without it."""
    return [row[len(keys) :] for row in part.tables[0].rows if row[: len(keys)] == keys]


def test_sections_are_those_that_are_declared(found):
    assert list(found) == ["Ladder", "Scaling over seqlen", "Autotuning", "Density sweep"]
    assert made(runs.run()) == {}
    text = html(runs.run(), [])
    assert not re.search(r"<h3>(Ladder|Scaling|Density|Autotuning|Memory)", text)


def test_a_step_is_compared_with_the_first_and_with_the_one_before(found):
    part = found["Ladder"]
    assert part.tables[0].header[:5] == ("case", "side", "step", "time", "TFLOP/s")
    assert part.tables[0].header[5:] == ("scaling efficiency", "of the baseline", "of the step before")
    assert rows(part, "seqlen=4096", "target") == [
        ("basic", "1.000 ms", "274.9", "0.400", "1.00 ×", "-"),
        ("exp2", "900.0 µs", "305.4", "0.356", "1.11 ×", "1.11 ×"),
        ("approx", "450.0 µs", "610.8", "0.400", "2.22 ×", "2.00 ×"),
    ]
    assert rows(part, "seqlen=1024", "base") == [
        ("basic", "100.0 µs", "171.8", "1.000", "1.00 ×", "-"),
        ("exp2", "out of memory", "not recorded", "-", "-", "-"),
        ("approx", "50.00 µs", "343.6", "1.000", "2.00 ×", "-"),
    ]
    assert [row[0] for row in part.tables[0].rows][::6] == ["seqlen=1024", "seqlen=4096", "seqlen=16384"], "by number"
    assert "the baseline is basic" in part.text[0]


def test_scaling_has_the_best_step_and_the_share_of_the_most(found):
    part = found["Scaling over seqlen"]
    assert part.tables[0].header[2:] == ("seqlen", "basic", "exp2", "approx", "best", "TFLOP/s", "efficiency")
    assert rows(part, "fmha", "base") == [
        ("1024", "100.0 µs", "out of memory", "50.00 µs", "approx", "343.6", "55 %"),
        ("4096", "1.000 ms", "900.0 µs", "500.0 µs", "approx", "549.8", "87 %"),
        ("16384", "20.00 ms", "14.00 ms", "7.000 ms", "approx", "628.3", "100 %"),
    ]


def test_without_flops_scaling_has_times_alone():
    plain = declared.run()
    bare = runs.changed(plain, cells=tuple(runs.changed(cell, flops=None) for cell in plain.cells))
    part = made(bare)["Scaling over seqlen"]
    assert {row[-2:] for row in part.tables[0].rows} == {("not recorded", "not recorded")}


def test_speed_up_is_by_measured_density_against_the_densest_and_its_band(found):
    part = found["Density sweep"]
    assert part.tables[0].header == ("case", "side", "density", "time", "speed-up", "expected", "it is")
    assert [row[1:] for row in part.tables[0].rows] == [
        ("base", "0.100", "3.200 ms", "2.50 ×", "2 to 4 ×", "inside"),
        ("base", "0.400", "5.000 ms", "1.60 ×", "-", "-"),
        ("base", "0.700", "7.900 ms", "1.01 ×", "0.97 to 1.5 ×", "inside"),
        ("base", "1.000", "8.000 ms", "1.00 ×", "0.97 to 1.5 ×", "inside"),
        ("target", "0.100", "9.000 ms", "0.89 ×", "2 to 4 ×", "below"),
        ("target", "0.400", "5.000 ms", "1.60 ×", "-", "-"),
        ("target", "0.700", "4.000 ms", "2.00 ×", "0.97 to 1.5 ×", "above"),
        ("target", "1.000", "8.000 ms", "1.00 ×", "0.97 to 1.5 ×", "inside"),
    ]


def test_speed_up_may_be_against_a_variant_of_the_same_case():
    plain = declared.run()
    against = Sweep(axes=("seqlen",), density="share", against="basic")
    loads = tuple(runs.changed(load, sweep=against if load.name == "fmha" else None) for load in plain.workloads)
    seen = tuple(runs.changed(one, facts={"share": 0.5}) for one in plain.observations)
    part = made(runs.changed(plain, workloads=loads, observations=seen))["Density sweep"]
    assert rows(part, "seqlen=4096 approx", "target") == [("0.500", "450.0 µs", "2.22 ×", "-", "-")]
    assert not any("basic" in row[0] for row in part.tables[0].rows)
    assert "against the variant basic of the same case" in part.text[0]


def test_cells_that_differ_in_another_axis_are_not_compared():
    """Each other axis has its own densest case."""
    plain = declared.run()
    cells = {cell.id: cell for cell in plain.cells if cell.workload == "masked"}
    other = tuple(
        runs.changed(cell, params={**cell.params, "seqlen": 64 if cell.params["pattern"] in ("dense", "band") else 32})
        for cell in cells.values()
    )
    part = made(runs.changed(plain, cells=other))["Density sweep"]
    gains = {row[0].split()[0]: row[4] for row in part.tables[0].rows if row[1] == "base"}
    assert gains == {
        "pattern=band": "2.50 ×", "pattern=dense": "1.00 ×", "pattern=none": "1.58 ×", "pattern=random": "1.00 ×",
    }  # fmt: skip


def test_autotuning_says_where_sides_differ(found):
    listed = {row[0]: row[1:] for row in found["Autotuning"].tables[0].rows}
    assert listed["seqlen=4096 basic"] == ("BLOCK_M=128 num_warps=8", "BLOCK_M=128 num_warps=8", "same")
    assert listed["seqlen=4096 approx"] == ("BLOCK_M=128 num_warps=8", "BLOCK_M=64 num_warps=8", "differs")
    assert listed["seqlen=1024 exp2"] == ("not recorded", "BLOCK_M=128 num_warps=4", "-")


def test_one_branch_alone_has_its_own():
    plain = declared.run()
    alone = runs.changed(plain, sides=plain.sides[:1], comparisons=(), controls=(),
                         observations=tuple(o for o in plain.observations if o.arm.startswith("base")))  # fmt: skip
    part = made(alone)["Ladder"]
    assert {row[1] for row in part.tables[0].rows} == {"base"}
    assert made(alone)["Autotuning"].tables[0].header == ("case", "base")


def test_every_number_of_a_table_is_on_both_pages(found):
    run = declared.run()
    page, text = html(run, []), markdown(run, [])
    for title, part in found.items():
        assert f"<h3>{title}</h3>" in page
        assert f"### {title}" in text
        for row in part.tables[0].rows:
            assert all(cell.replace("_", "\\_") in text for cell in row)


def test_a_long_table_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr(tables, "ROWS_UP_TO", 4)
    part = made(declared.run())["Ladder"]
    assert len(part.tables[0].rows) == 4
    assert part.text[0].endswith("The first 4 of 18 rows.")
