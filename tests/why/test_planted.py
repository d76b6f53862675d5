"""Planted causes are named, and where nothing of the code changed nothing is."""

import random
from pathlib import Path

import msgspec
import pytest

from abprof.evidence.causes import gpu
from abprof.evidence.causes.sides import Sides
from abprof.records import Comparison
from tests.planted import BRANCHES, COMPILED, marked
from tests.why import cases, record
from tests.why.cases import Side

SIDES = cases.recorded()
# How the slower phase is recorded: (base, target), ns.
PHASED = ({"main": 0.8e6, "post": 0.2e6, "total": 1e6}, {"main": 0.8e6, "post": 0.5e6, "total": 1.3e6})


def row_of(branch: str, sides: dict[str, Side], pct: float = 30.0) -> Comparison:
    phases = PHASED if branch == "slower_phase" else ({}, {})
    return cases.judged(sides["base"], sides["target"], pct, phases=phases)


@pytest.mark.parametrize("branch", COMPILED)
def test_each_planted_cause_is_named(branch: str) -> None:
    row = row_of(branch, SIDES[branch])
    assert row.verdict == "slower"
    assert cases.kinds(row) == [BRANCHES[branch].kind]
    assert all(cause.evidence for cause in row.causes or ())


@pytest.mark.parametrize("branch", marked.SETS["triton"])
def test_each_cause_at_a_known_line_is_named(branch: str) -> None:
    row = row_of(branch, SIDES[branch])
    assert [kind in marked.BRANCHES[branch].kinds for kind in cases.kinds(row)] == [True]
    faster = cases.judged(SIDES[branch]["target"], SIDES[branch]["base"], -30.0)
    assert cases.kinds(faster) == cases.kinds(row), "what is gone makes it faster"
    wrong = cases.kinds(row_of(branch, SIDES[branch], -30.0))
    assert not {*wrong} & {*marked.BRANCHES[branch].kinds}, "what made it slower does not make it faster"


def test_a_known_line_is_one_that_the_branch_has_and_base_has_not() -> None:
    base, spare = marked.files(), marked.files(())
    for branch, of in marked.BRANCHES.items():
        files = marked.files([branch])
        own = {path for path in files if files[path] != spare[path]}
        assert own == {of.file}, "the rest is code that no row runs"
        text, before = files[of.file].splitlines(), base[of.file].splitlines()
        numbers = {int(one.rpartition(":")[2]) for one in marked.right(branch)}
        assert any(text[number - 1] not in before for number in numbers), branch
        assert not any("# +" in line or "// +" in line or "# -" in line for line in (*text, *before))


def test_changes_of_one_branch_keep_their_lines() -> None:
    both = ("exact", "exchanged")
    text = marked.files(both)["kernels/lined/product.py"].splitlines()
    lines = [text[int(where.rpartition(":")[2]) - 1].strip() for change in both for where in marked.right(change, both)]
    assert [line.partition("(")[0] for line in lines] == ["total += tl.dot", "tl.atomic_xchg"]
    every = [change for changes in marked.together("gpu").values() for change in changes]
    assert sorted(every) == sorted(marked.SETS["gpu"])


@pytest.mark.parametrize(
    ("branch", "said"),
    [
        ("special", "more special functions: 0 -> 8 in activate"),
        ("counter", "more atomics: 0 -> 1 in sums"),
        ("not_unrolled", "a loop is not unrolled any more: loops 0 -> 2, instructions 534 -> 54 in decay"),
        ("spill", "registers 73 -> 32, spill stores 0 -> 106, spill loads 0 -> 110 in polynomial"),
        (
            "tuned_otherwise",
            "different autotune choice (BLOCK: 2048, num_warps: 8, num_ctas: 1 -> BLOCK: 32, num_warps",
        ),
        ("lost_overlap", "overlap of copies and arithmetic lost: pipeline stages 3 -> 1, asynchronous copies 24 -> 0"),
        ("added_launch", "1 kernel launch added to a call: clamp 0 -> 1 times a call (650 µs)"),
        ("slower_phase", "slower phase post: 200 µs -> 500 µs (+150.0 %)"),
        ("block_size", "block size changed: BLOCK 2048 -> 64, grid 8192 -> 262144 in add_two"),
        ("extra_pass", "a loop more over global memory: loops 1 -> 2, global loads 14 -> 28 in row_sums"),
    ],
)
def test_the_sentence_has_the_numbers_of_both_sides(branch: str, said: str) -> None:
    [cause] = row_of(branch, SIDES[branch]).causes or ()
    assert cause.text.startswith(said)


def test_a_few_spills_beside_many_more_products_are_not_the_cause() -> None:
    base, target = SIDES["three_products"]["base"], SIDES["three_products"]["target"]
    for count, kind in ((2, "tensor"), (400, "spills")):
        [kernel] = target["kernels"]
        spilled = kernel | {"classes": kernel["classes"] | {"local loads": count, "local stores": count}}
        assert cases.kinds(cases.judged(base, target | {"kernels": [spilled]}, 30.0)) == [kind]


@pytest.mark.parametrize("number", range(20))
def test_nothing_is_named_where_both_sides_are_the_same(number: int) -> None:
    """A/A: rows that do not move have no causes; a row that the machine moves gets the cause `same_code`."""
    chance = random.Random(number)
    side = SIDES[COMPILED[number % len(COMPILED)]]["base"]
    phases = [
        {"main": 8e5 * chance.lognormvariate(0, 0.01), "post": 2e5 * chance.lognormvariate(0, 0.01)} for _ in range(2)
    ]
    totals = [parts | {"total": sum(parts.values())} for parts in phases]
    still = cases.judged(side, side, 0.0, phases=totals, noise=chance)
    assert (still.verdict, still.causes) == ("same", None)
    moved = cases.judged(side, side, chance.choice((-4.0, 4.0)), phases=totals, noise=chance)
    assert moved.verdict in {"slower", "faster"}
    assert cases.kinds(moved) == ["same_code"]


@pytest.mark.parametrize(
    ("pct", "clock", "said"),
    [
        (6.0, -5.0, "; the device's clock was 5.0 % lower"),
        (-6.0, 5.0, "; the device's clock was 5.0 % higher"),
        (6.0, -1.6, "; the device's clock was 1.6 % lower"),
        (6.0, -1.4, ""),  # less than a quarter of the change
        (6.0, 5.0, ""),  # a faster clock makes nothing slower
        (-6.0, -5.0, ""),
    ],
)
def test_the_clocks_share_is_said_where_it_is_one(pct: float, clock: float, said: str) -> None:
    side = SIDES["spill"]["base"]
    row = msgspec.structs.replace(cases.judged(side, side, pct), clock_pct=clock)
    census = cases.census(side, 1e6), cases.census(side, 1e6 * (1 + pct / 100))
    kernels = cases.kernels(side, "base"), cases.kernels(side, "target")
    [found] = gpu.same_code(Sides(row, True, 1e6, census, kernels, (None, None)))
    assert found.kind == "same_code"
    assert found.text == "same machine code and the same launches on both sides, different time" + said


def test_a_kernel_with_another_name_is_no_added_launch() -> None:
    base = SIDES["spill"]["base"]
    renamed = base | {"kernels": [one | {"name": "horner", "key": "horner[1]"} for one in base["kernels"]]}
    row = cases.judged(base, renamed, 5.0)
    assert cases.kinds(row) == ["same_code"]


@pytest.mark.slow
def test_what_is_recorded_is_what_compilers_of_now_make(tmp_path: Path) -> None:
    """Numbers differ between compilers; the causes must not."""
    fresh = record.compiled(tmp_path)
    for branch, sides in fresh.items():
        kinds = marked.BRANCHES[branch].kinds if branch in marked.BRANCHES else (BRANCHES[branch].kind,)
        assert [kind in kinds for kind in cases.kinds(row_of(branch, sides))] == [True], branch
