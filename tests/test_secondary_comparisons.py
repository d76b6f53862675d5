"""Secondary comparisons, of variants with each other and peers with sides: the same rules, and families of their own."""

import dataclasses

import msgspec
import pytest

from abprof.records import Block, Run
from abprof.verdict import judge, undecided
from tests.blocks import block, head, side
from tests.reports import html, markdown, shown
from tests.simulated.planted import SLOWER, NewLab, load, times
from tests.simulated.scenario import Scenario, Time

QUIET = [1.0, 1.001, 0.999, 1.0]
WILD = [1.0, 1.05, 0.95, 1.0]
STEPS = ("plain", "fast", "even", "wild")


def ladder(*, sides: tuple[str, ...] = ("base",), steps: tuple[str, ...] = STEPS, **fields: object) -> Run:
    """A run of a workload whose variants are a ladder."""
    run = head(variants=STEPS, sides=[side(name) for name in sides], **fields)
    return msgspec.structs.replace(run, workloads=(dataclasses.replace(run.workloads[0], ladder=steps),))


def climbed(sides: tuple[str, ...] = ("base",), count: int = 4) -> list[Block]:
    """`fast` takes 1/1.08 of the plain variant's time, `even` takes the same time, `wild` a random time."""
    made = []
    for epoch in range(count):
        noise, wild = QUIET[epoch % 4], WILD[epoch % 4]
        ratios = {"plain": 1.0, "fast": noise / 1.08, "even": noise, "wild": wild}
        made.append(block(epoch, {f"{name}:{step}": ratio for name in sides for step, ratio in ratios.items()}))
    return made


def between(judged: Run) -> dict[tuple[str, str], str]:
    return {(row.from_, row.to): row.verdict for row in judged.within}


def test_variants_are_judged_against_the_plain_one_and_the_step_before() -> None:
    judged = judge(ladder(), climbed())
    assert between(judged) == {
        ("base:plain", "base:fast"): "faster",
        ("base:plain", "base:even"): "same",
        ("base:plain", "base:wild"): "unclear",
        ("base:fast", "base:even"): "slower",
        ("base:even", "base:wild"): "unclear",
    }
    first = judged.within[0]
    assert (first.metric, first.epochs, first.look) == ("wall", 4, 1)
    assert first.pct == pytest.approx(100 / 1.08 - 100, abs=0.05)
    assert first.low_pct < first.pct < first.high_pct < -1.5
    assert judged.within[2].certifiable_pct is not None
    assert (judged.comparisons, judged.header.exit_code) == ((), 0)
    assert judged.header.sentence == (
        "Profiled 1 cell of main; of 5 comparisons between its variants 2 unclear, 1 faster, 1 same, 1 slower."
    )


def test_one_branch_goes_on_until_its_variants_are_decided_and_two_sides_do_not() -> None:
    assert undecided(ladder(), climbed()) == {"dense/n=0"}
    assert {row.reasons for row in judge(ladder(), climbed()).within if row.verdict == "unclear"} == {("budget",)}
    clear = msgspec.structs.replace(ladder(), arms=ladder().arms[:3])
    calm = [block(i, {"base:plain": 1.0, "base:fast": r / 1.08, "base:even": r}) for i, r in enumerate(QUIET)]
    assert undecided(clear, calm) == set()
    both = ("base", "target")
    slower = [
        block(i, {f"{name}:{step}": r * factor for name, factor in (("base", 1.0), ("target", 1.05))
                  for step, r in zip(STEPS, (1, 1, 1, w), strict=True)})
        for i, (r, w) in enumerate(zip(QUIET, WILD, strict=True))
    ]  # fmt: skip
    assert undecided(ladder(sides=both), slower) == set()
    open_ = [row for row in judge(ladder(sides=both), slower).within if row.verdict == "unclear"]
    assert {row.reasons for row in open_} == {("not_pursued",)}
    assert {row.to for row in open_} == {"base:wild", "target:wild"}


def test_a_step_that_does_not_run_is_broken_nowhere_and_no_pair_bridges_it() -> None:
    blocks = [block(i, {"base:plain": 1.0, "base:even": 1.0, "base:wild": 1.0}, status={"base:fast": "unsupported"})
              for i in range(4)]  # fmt: skip
    rows = {(row.from_, row.to): (row.verdict, row.reasons) for row in judge(ladder(), blocks).within}
    assert rows["base:plain", "base:fast"] == ("unclear", ("second_unsupported",))
    assert rows["base:fast", "base:even"] == ("unclear", ("first_unsupported",))
    assert rows["base:plain", "base:even"] == ("same", ())
    assert ("base:plain", "base:wild") in rows
    assert undecided(ladder(), blocks) == set()


LADDER = load(["a"], variants=["ws", "pipelined", "twin"], ladder=["ws", "pipelined", "twin"], peers=["lib"])
PLANTED = times(
    Time(factor=1 / 1.08, arm="pipelined"), Time(factor=1 / 1.08, arm="twin"), Time(factor=1.3, arm="peer:lib")
)


def test_one_branch_says_by_itself_which_variant_is_faster(new_lab: NewLab) -> None:
    result = new_lab(Scenario(workloads={"w": LADDER}, times=PLANTED)).abprof("run", "main")
    rows = {(row.from_, row.to): row for row in result.run.within}
    exact = {
        ("base:ws", "base:pipelined"): ("faster", -100 * (1 - 1 / 1.08)),
        ("base:ws", "base:twin"): ("faster", -100 * (1 - 1 / 1.08)),
        ("base:pipelined", "base:twin"): ("same", 0.0),
    }
    assert {key: row.verdict for key, row in rows.items()} == {key: verdict for key, (verdict, _) in exact.items()}
    for key, (_, pct) in exact.items():
        assert rows[key].pct == pytest.approx(pct)
        assert rows[key].low_pct == pytest.approx(pct)
    peers = {row.to: row for row in result.run.comparisons}
    assert {row.from_ for row in peers.values()} == {"peer:lib"}
    assert {to: row.verdict for to, row in peers.items()} == dict.fromkeys(
        ("base:ws", "base:pipelined", "base:twin"), "faster"
    )
    assert peers["base:pipelined"].pct == pytest.approx(100 / 1.08 / 1.3 - 100)
    assert result.code == 0
    assert "of 3 comparisons between its variants 2 faster, 1 same" in result.out
    assert "1.080 × (1.080 to 1.080), faster" in result.out
    assert [row.verdict for row in result.run.within] == ["faster", "faster", "same"]


@pytest.mark.slow
def test_two_sides_with_a_ladder_and_a_peer(new_lab: NewLab) -> None:
    """Comparisons of variants change neither the sides' table nor the exit code."""
    slower = Time(factor=SLOWER, side="target", arm="twin")
    result = new_lab(Scenario(workloads={"w": LADDER}, times=[*PLANTED, slower])).abprof(
        "main", "fast", "--epochs", "4"
    )
    assert result.verdict("w/case=a", "target:twin") == "slower"
    assert {row.verdict for row in result.run.within if row.from_ == "target:pipelined"} == {"slower"}
    assert {row.verdict for row in result.run.within if row.from_ == "base:pipelined"} == {"same"}
    assert (result.run.header.counts["comparisons"], result.run.header.counts["slower"]) == (3, 1)


def test_every_page_has_the_verdicts_between_variants() -> None:
    run = judge(ladder(), climbed())
    pages = markdown(run, climbed()), html(run, climbed())
    for text in pages:
        assert "shown to be equal, not merely not shown to differ" in text
    for text in (shown(run, 250), *pages):
        assert "7.41 % faster" in text
        assert "1.080 × (1.077 to 1.083), faster" in text
        assert "the time budget ended first" in text
