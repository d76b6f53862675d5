"""Changes of code that are not what cost the time, and near misses of each rule: what must not be named, and what must not
be hidden by it."""

import copy
import random
from dataclasses import replace
from typing import Any

import pytest

from abprof.records import Census, KernelProfile, Launch, Profile
from abprof.records.ncu import L1_BYTES, L2_BYTES, TIME
from tests import blocks
from tests.planted import BRANCHES, COMPILED
from tests.why import cases
from tests.why.cases import Side

SIDES = cases.recorded()
SPILL = SIDES["spill"]["base"]


def changed(side: Side, classes: dict[str, int] | None = None, **fields: Any) -> dict[str, Any]:
    """The side with these fields of its kernels; `constants` and `classes` are added to theirs."""
    made = copy.deepcopy(dict(side))
    for one in made["kernels"]:
        one["constants"] |= fields.get("constants", {})
        one["classes"] |= classes or {}
        one.update({name: value for name, value in fields.items() if name != "constants"})
    return made


def kinds_of(row_pct: float, before: Side, after: Side, **more: Any) -> list[str]:
    return cases.kinds(cases.judged(before, after, row_pct, **more))


# ---------------------------------------------------------------- a harmless change beside the cause


@pytest.mark.parametrize("name", ["VERSION", "VOCAB_SIZE", "GROUP_M"])
@pytest.mark.parametrize("branch", ["extra_pass", "lost_tensor_cores", "spill"])
def test_a_constant_beside_the_cause_does_not_take_its_place(branch: str, name: str) -> None:
    base = changed(SIDES[branch]["base"], constants={name: 8})
    target = changed(SIDES[branch]["target"], constants={name: 4})
    assert kinds_of(60.0, base, target) == [BRANCHES[branch].kind]


def test_the_same_code_over_another_grid_is_said() -> None:
    row = cases.judged(SPILL, {**SPILL, "grid": [8192, 1, 1]}, 100.0)
    [cause] = row.causes or ()
    assert (cause.kind, cause.text) == (
        "grid",
        f"the same code is launched with another grid ({SPILL['grid'][0]} -> 8192) in polynomial",
    )


def test_a_launch_that_moved_to_another_phase_is_no_cause() -> None:
    def census(ns: float, phases: list[tuple[str, ...]]) -> Census:
        key, [k] = {"grid": (8, 1, 1), "block": (128, 1, 1)}, SPILL["kernels"]
        each = [Launch(name=k["name"], count=1, ns=ns / 2, compiled=k["key"], phases=one, **key) for one in phases]
        both = [replace(each[0], count=2, ns=ns)] if phases[0] == phases[1] else each
        return Census(launches=tuple(both), hidden_ns=0.0)

    passes = census(1e6, [("run",), ("run",)]), census(1.3e6, [("run",), ("post",)])
    assert cases.kinds(cases.judged(SPILL, SPILL, 30.0, censuses=passes)) == ["same_code"]


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("number", range(10))
def test_a_clock_is_no_change_of_code(number: int) -> None:
    """Slower with the same code at a lower clock, by the phase that computes: memory has a clock of its own."""
    chance = random.Random(number)
    pct = chance.uniform(3.0, 8.0)
    side = SIDES[COMPILED[number % len(COMPILED)]]["base"]
    base = {"main": 7e5, "post": 3e5, "total": 1e6}
    after = {"main": 7e5 + 1e4 * pct, "post": 3e5, "total": 1e6 + 1e4 * pct}
    mhz = {"base": 1900.0, "target": 1900.0 / (1 + 0.4 * pct / 100)}
    row = cases.judged(side, side, pct, phases=(base, after), mhz=mhz, noise=chance)
    assert row.verdict == "slower"
    [cause] = row.causes or ()
    assert cause.kind == "same_code"
    assert "the device's clock was" in cause.text
    still = cases.judged(side, side, pct, phases=(base, after), noise=chance)
    assert cases.kinds(still) == ["phase"], "with the clock where it was the phase is what is known"


@pytest.mark.parametrize(("share", "kind"), [(0.9, "phase"), (0.97, "same_code")])
def test_a_phase_that_is_almost_the_whole_call_is_no_cause(share: float, kind: str) -> None:
    """It says no more than the row does."""
    side = SIDES[COMPILED[0]]["base"]
    base, after = ({"total": 1e6 + more, "main": share * 1e6 + more, "post": (1 - share) * 1e6} for more in (0, 2e5))
    assert cases.kinds(cases.judged(side, side, 20.0, phases=(base, after), noise=random.Random(1))) == [kind]


# ---------------------------------------------------------------- near misses


@pytest.mark.parametrize("branch", [name for name in COMPILED if name not in {"slower_phase", "added_launch"}])
def test_what_made_it_slower_is_no_cause_of_a_faster_row(branch: str) -> None:
    sides = SIDES[branch]
    neutral = {"autotune", "block_size", "constants", "kernels_replaced", "stages"}  # these cost time or save it
    kinds = set(kinds_of(-20.0, sides["base"], sides["target"]))
    assert not kinds & ({BRANCHES[branch].kind} - neutral)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"main": 7e5, "post": 5e5, "total": 1.2e6}, ["phase"]),
        ({"main": 8.6e5, "post": 3.7e5, "total": 1.23e6}, ["same_code"]),  # all phases alike: no one of them
        ({"main": 7.9e5, "post": 4.1e5, "total": 1.2e6}, ["same_code"]),  # half of it here, half there
        ({"main": 7e5, "post": 3.8e5, "total": 1.08e6}, ["same_code"]),  # the profiled pass says another number
        ({"main": 8e5, "post": 4.1e5, "total": 1.21e6}, ["same_code"]),  # a little more than half of it
    ],
)
def test_a_phase_is_named_where_it_is_nearly_all_of_the_change(after: dict[str, float], said: list[str]) -> None:
    base = {"main": 7e5, "post": 3e5, "total": 1e6}
    assert kinds_of(20.0, SPILL, SPILL, phases=(base, after)) == said


# ---------------------------------------------------------------- counters against code


@pytest.mark.parametrize(("bytes_after", "named"), [(1.02e8, []), (2e8, ["memory"])])
def test_bytes_that_nsight_compute_did_not_see_rise_refute_a_loop_more(bytes_after: float, named: list[str]) -> None:
    sides = SIDES["extra_pass"]
    profiles = tuple(
        Profile(
            cell=blocks.head().cells[0].id, arm=arm, purpose="profile", warmup=1, runs=2,
            kernels=(
                KernelProfile(
                    name="row_sums", grid="1x1", block="32x1", kind="compute", launches=3, launches_a_call=1,
                    metrics={TIME: ns, L2_BYTES[0]: moved, L1_BYTES[0]: moved},
                ),
            ),
        )
        for arm, ns, moved in (("base", 1e6, 1e8), ("target", 1.3e6, bytes_after))
    )  # fmt: skip
    assert kinds_of(30.0, sides["base"], sides["target"], profiles=profiles) == named
