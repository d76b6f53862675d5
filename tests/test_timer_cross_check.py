"""Timer cross-check: the parent's clock contradicts a timer that code under test has patched."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec
import pytest

from abprof.records import Block, Ceilings, Comparison, Run, Verdict
from abprof.verdict import judge
from tests.blocks import block, head
from tests.tinyrepo import PACKAGE, abprof, source, tiny_repo

CALL, REST = 2e6, 300_000  # ns: a call, and the rest of a turn
EPOCHS = range(1, 5)


def epoch(number: int, claimed: float, true: float, *, recorded: bool = True, metric: str = "wall") -> Block:
    """Twelve rounds of two calls a turn: the timer says that the target takes `claimed` of base's time, the parent's clock
    that it takes `true` of it."""
    chance = random.Random(f"{number}/{claimed}/{true}")
    made = block(number, {"base": 1.0, "target": claimed}, base_ns=CALL, noise=1e-3, rounds=12, calls=2, metric=metric)
    real = (1.0, true)
    rounds = tuple(
        tuple(
            msgspec.structs.replace(
                turn, waited=int(2 * CALL * real[turn.arm] + REST * chance.uniform(0.5, 1.5)) if recorded else 0
            )
            for turn in row
        )
        for row in made.rounds
    )
    return msgspec.structs.replace(made, rounds=rounds)


def judged(claimed: float, true: float, **fields: object) -> Run:
    run = head()
    judges = [dataclasses.replace(load, judge="gpu") for load in run.workloads]
    if fields.get("metric") == "gpu_span":
        run = msgspec.structs.replace(run, workloads=tuple(judges))
    return judge(run, [epoch(number, claimed, true, **fields) for number in EPOCHS])  # type: ignore[arg-type]


def only(found: Run) -> Comparison:
    (row,) = found.comparisons
    return row


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
@pytest.mark.parametrize("work", [100, 250], ids=["the same work", "more work"])
def test_a_package_that_patches_the_timer(tmp_path: Path, work: int) -> None:
    """Its clock goes at a tenth of the pace, so that its calls seem to take a tenth of their time."""
    repo = tiny_repo(tmp_path / "repo", 100)
    repo.branch("forged")
    patch = "import time as _time\n_real = _time.perf_counter_ns\n_time.perf_counter_ns = lambda: _real() // 10\n"
    repo.commit("much faster", {"kernels/tiny/__init__.py": patch + PACKAGE, "kernels/tiny/tiny.c": source(work)})
    asked = ("--device", "cpu", "--no-peers", "--epochs", "4", "--json")
    done = abprof("main", "forged", *asked, cwd=repo.path, home=tmp_path / "home")
    (row,) = (row for row in done.run["comparisons"] if row["to"] == "target")
    assert row["pct"] < -10, "what its timer says"
    assert (row["verdict"], row["reasons"]) == ("unclear", ["timer"])
    assert [warning["kind"] for warning in done.run["warnings"]].count("timer") == 1
    assert done.code == 4
