"""Timer cross-check: the parent's clock contradicts a timer that code under test has patched."""

import dataclasses
import random
from pathlib import Path

import msgspec
import pytest

from abprof.records import Block, Ceilings, Run, Verdict
from abprof.verdict import judge, undecided
from tests.blocks import block, head
from tests.test_verdict import only
from tests.tinyrepo import PACKAGE, abprof, source, tiny_repo

CALL, REST = 2e6, 300_000  # ns: a call, and the rest of a turn
EPOCHS = range(1, 5)


def epoch(
    number: int,
    claimed: float,
    true: float,
    *,
    recorded: bool = True,
    metric: str = "wall",
    load: float = 0.0,
    harness: float = 1.0,
) -> Block:
    """Twelve rounds of two calls a turn: the timer says that the target takes `claimed` of base's time, the parent's clock
    that it takes `true` of it. `load`: share of turns that wait for a processor, up to five times as long as they take.
    `harness`: share of base's time for the rest of a turn that target takes."""
    chance = random.Random(f"{number}/{claimed}/{true}")
    made = block(number, {"base": 1.0, "target": claimed}, base_ns=CALL, noise=1e-3, rounds=12, calls=2, metric=metric)
    real = (1.0, true)

    def rest(arm: int) -> float:
        return REST * (harness if arm else 1.0) * chance.uniform(0.5, 1.5) + (
            10 * CALL * chance.random() if chance.random() < load else 0.0
        )

    rounds = tuple(
        tuple(
            msgspec.structs.replace(turn, waited=int(2 * CALL * real[turn.arm] + rest(turn.arm)) if recorded else 0)
            for turn in row
        )
        for row in made.rounds
    )
    return msgspec.structs.replace(made, rounds=rounds)


def judged(claimed: float, true: float, settings: dict[str, object] | None = None, **fields: object) -> Run:
    run = head(settings=settings)
    judges = [dataclasses.replace(load, judge="gpu") for load in run.workloads]
    if fields.get("metric") == "gpu_span":
        run = msgspec.structs.replace(run, workloads=tuple(judges))
    return judge(run, [epoch(number, claimed, true, **fields) for number in EPOCHS])  # type: ignore[arg-type]


LOADED = [  # (claimed, true, share of turns that wait) -> verdicts by hand, and of code that may be hostile
    (0.9, 0.9, 0.0, "faster", "faster"),
    (0.9, 0.9, 0.6, "faster", "faster"),
    (0.9, 0.9, 1.0, "faster", "unclear"),  # neither seen nor contradicted
    (1.0, 1.0, 0.0, "same", "same"),
    (1.0, 1.0, 1.0, "same", "unclear"),
    (1.2, 1.2, 1.0, "slower", "slower"),
    (0.25, 1.0, 0.6, "unclear", "unclear"),
    (0.25, 1.0, 1.0, "faster", "unclear"),  # by hand nothing contradicts it
    (0.8, 1.0, 0.6, "unclear", "unclear"),
    (0.8, 1.0, 1.0, "faster", "unclear"),
    (1.0, 1.25, 0.6, "unclear", "unclear"),
    (1.0, 1.25, 1.0, "same", "unclear"),
]


@pytest.mark.parametrize(("claimed", "true", "load", "by_hand", "hostile"), LOADED)
def test_on_a_loaded_machine(claimed: float, true: float, load: float, by_hand: Verdict, hostile: Verdict) -> None:
    """Load lengthens turns by the parent's clock: most of them, or all."""
    for check, verdict in (("inside", by_hand), ("outside", hostile)):
        run = head(settings={"check": check})
        blocks = [epoch(number, claimed, true, load=load) for number in range(1, 9)]
        row = only(judge(run, blocks))
        assert (row.verdict, row.reasons) == (verdict, ("timer",) if verdict == "unclear" else ()), check
        assert verdict == by_hand or undecided(run, blocks), "more epochs may show it"


@pytest.mark.parametrize(("true", "verdict"), [(1.0, "unclear"), (0.9, "faster")])
@pytest.mark.parametrize("metric", ["wall", "gpu_span"])
def test_a_quicker_harness_is_no_saving(metric: str, true: float, verdict: Verdict) -> None:
    """Code under test could do abprof's own work between calls with less, and take that off its time."""
    hostile = {"check": "outside", "untrusted": True}
    row = only(judged(true - 0.03, true, hostile, harness=0.0, metric=metric))
    assert (row.verdict, row.reasons) == (verdict, ("timer",) if verdict == "unclear" else ())


def test_a_slow_down_that_a_quicker_harness_could_hide_counts_as_not_detectable() -> None:
    """The rest of a turn takes 3.8 to 11.3 % of its calls."""
    blocks = [epoch(number, 1.0, 1.0) for number in range(1, 9)]
    plain, hostile = (
        only(judge(head(settings={"check": "outside", "untrusted": yes}), blocks)).detectable_pct
        for yes in (False, True)
    )
    assert 3.8 < hostile - plain < 8


def test_a_slow_down_that_events_do_not_show() -> None:
    row = only(judged(1.0, 1.25, {"check": "outside", "untrusted": True}, metric="gpu_span"))
    assert (row.verdict, row.reasons) == ("unclear", ("timer",))


@pytest.mark.parametrize(
    ("claimed", "true", "verdict"),
    [(0.8, 0.8, "faster"), (0.8, 0.81, "faster"), (1.0, 1.0, "same"), (1.2, 1.2, "slower"), (1.2, 1.0, "slower")],
)
def test_what_passed_outside_too_stands(claimed: float, true: float, verdict: Verdict) -> None:
    assert (only(judged(claimed, true)).verdict, only(judged(claimed, true)).reasons) == (verdict, ())


@pytest.mark.parametrize(("claimed", "true"), [(0.8, 1.0), (0.8, 0.95), (0.01, 1.0), (1.0, 1.2), (0.999, 1.1)])
def test_what_did_not_is_no_verdict(claimed: float, true: float) -> None:
    found = judged(claimed, true)
    assert (only(found).verdict, only(found).reasons) == ("unclear", ("timer",))
    assert not only(found).discovery
    assert found.header.counts["undecided"] == 1
    [said] = [advice for advice in found.warnings if advice.kind == "timer"]
    assert said.cells == (only(found).cell,)


@pytest.mark.parametrize(
    ("best", "factor", "said"), [(10.0, 0.1, True), (10.0, 0.5, False), (100.0, 0.1, False), (1.0, 0.1, False)]
)
def test_faster_than_the_device_can_be(best: float, factor: float, said: bool) -> None:
    """Base does 2 TFLOP/s. Where the base is above the device's best too, it is the workload that counts otherwise."""
    run = head()
    cells = [msgspec.structs.replace(cell, flops=CALL * 2e3) for cell in run.cells]
    run = msgspec.structs.replace(run, cells=tuple(cells), ceilings=Ceilings(tflops=best))
    found = judge(run, [epoch(number, factor, factor) for number in EPOCHS])
    row = only(found)
    assert (row.verdict, row.reasons) == (("broken", ("impossible",)) if said else ("faster", ()))
    assert found.header.exit_code == said
    warned = [advice for advice in found.warnings if advice.kind == "roofline"]
    assert bool(warned) == said
    if said:
        assert warned[0].cells == (only(found).cell,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "forged"),
    [
        pytest.param("inside", [("/ 10", 100), ("/ 10", 250)], marks=pytest.mark.nightly),
        ("outside", [("/ 4", 100)]),
    ],
)
def test_a_package_that_patches_the_timer(tmp_path: Path, check: str, forged: list[tuple[str, int]]) -> None:
    """Its clock goes slower, so that its calls seem to take less time. Beside heavy load the epochs may not decide."""
    repo, names = tiny_repo(tmp_path / "repo", 100), ("one", "two")[: len(forged)]
    for name, (pace, work) in zip(names, forged, strict=True):
        repo.checkout("main")
        repo.branch(name)
        patch = f"import time as _time\n_real = _time.perf_counter_ns\n_time.perf_counter_ns = lambda: int(_real() {pace})\n"
        repo.commit("much faster", {"kernels/tiny/__init__.py": patch + PACKAGE, "kernels/tiny/tiny.c": source(work)})
    asked = ("--device", "cpu", "--no-peers", "--epochs", "6", "--json", "--check", check)
    done = abprof("main", *names, *asked, cwd=repo.path, home=tmp_path / "home")
    for row in done.run["comparisons"]:
        assert row["pct"] < -10, "what its timer says"
        assert row["verdict"] == "unclear"
        assert row["reasons"] in (["timer"], ["epochs"])
    assert len(done.run["comparisons"]) == len(forged)
    doubted = any("timer" in row["reasons"] for row in done.run["comparisons"])
    assert [warning["kind"] for warning in done.run["warnings"]].count("timer") == doubted
    assert done.code == 4
