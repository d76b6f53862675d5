"""Ways in which a verdict used to be wrong though its interval was right: each simulated, by the rule alone and as judged now."""

import hashlib
import hmac
import json
import math
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest

from abprof.records import REPORTED, Block, Comparison, Outcome, Run, Turn
from abprof.store import read
from abprof.verdict import decide, judge, stats
from tests.blocks import block, epochs, head
from tests.simulated.lab import Lab, Result
from tests.simulated.planted import load, times
from tests.simulated.scenario import Scenario
from tests.simulations.protocol import MOST, to_verdict
from tests.simulations.test_error_rates import upper
from tests.test_verdict import only


def row_of(blocks: list[Block], **options: Any) -> Comparison:
    return only(judge(head(settings=options), blocks))


def with_rounds(epoch: int, base: list[float], target: list[float], **fields: Any) -> Block:
    """A block with these times in ns."""
    rounds = tuple(
        (Turn(0, i, i + 1, a, a), Turn(1, i, i + 1, b, b)) for i, (a, b) in enumerate(zip(base, target, strict=True))
    )
    return msgspec.structs.replace(block(epoch, {"base": 1.0, "target": 1.0}, **fields), rounds=rounds)


# ---------------------------------------------------------------- times that a command prints with few digits


@pytest.mark.parametrize(("base", "target", "alone"), [(12.49, 12.51, "slower"), (12.0, 12.499, "same")])
def test_equal_printed_times_are_no_certainty(base: float, target: float, alone: str) -> None:
    """Whole milliseconds hide +0.16 % that looks like +8.3 %, and +4.2 % that looks like nothing."""
    printed = [with_rounds(epoch, [round(base) * 1e6] * 3, [round(target) * 1e6] * 3) for epoch in range(1, 9)]
    assert decide([math.log(round(target) / round(base))] * 8, 2.0, 2.0) == alone
    row = row_of(
        [msgspec.structs.replace(each, metric=REPORTED, last_digit_ns=1e6) for each in printed],
        threshold=2.0,
        margin=2.0,
    )
    assert row.verdict == "unclear"
    assert row.low_pct <= 100 * (target / base - 1) <= row.high_pct


def test_more_digits_narrow_the_interval() -> None:
    fields = {"metric": REPORTED, "last_digit_ns": 1e4}
    made = [with_rounds(n, [12.49e6, 12.50e6], [13.49e6, 13.50e6], **fields) for n in range(1, 5)]
    row = row_of(made)
    assert row.verdict == "slower"
    assert row.high_pct - row.low_pct < 0.5


# ---------------------------------------------------------------- a slow-down that is the clock's


def wandering(epoch: int, slower: float, chance: random.Random) -> Block:
    """One round of equal cycles at clocks that wander by 2 %; the target's clock is lower by `slower`."""
    clocks = [1600 * chance.lognormvariate(0, 0.02), 1600 / slower * chance.lognormvariate(0, 0.02)]
    turns = [Turn(arm, arm, arm + 1, 1.6e9 / mhz, 1.6e9 / mhz, 0.0, mhz) for arm, mhz in enumerate(clocks)]
    noisy = tuple(msgspec.structs.replace(turn, value=turn.value * chance.lognormvariate(0, 1e-4)) for turn in turns)
    return msgspec.structs.replace(block(epoch, {"base": 1.0, "target": 1.0}), rounds=(noisy,))


def test_equal_cycles_at_a_lower_clock_are_not_the_same() -> None:
    chance, cells = random.Random(1), 60
    seen: Counter[str] = Counter()
    for _ in range(cells):
        blocks = [wandering(epoch, 1.03, chance) for epoch in range(1, 5)]
        row = row_of(blocks)
        seen[row.verdict] += 1
        cycles = [
            math.log(b[1].value * b[1].mhz) - math.log(b[0].value * b[0].mhz) for each in blocks for b in each.rounds
        ]
        seen["by cycles alone"] += decide(cycles, 1.5, 0.5) == "same"
    assert seen["by cycles alone"] == cells
    assert seen["same"] <= upper(0.05, cells), seen


def test_without_a_difference_more_epochs_still_give_same() -> None:
    """As read the ratios scatter by 2.8 %, so that 32 epochs know them to 1.4 %."""
    chance = random.Random(2)
    verdicts = [row_of([wandering(epoch, 1.0, chance) for epoch in range(1, 33)], threshold=3.0) for _ in range(10)]
    assert [row.verdict for row in verdicts].count("same") >= 8


def test_same_at_one_clock_does_not_stand_beside_slices_that_certainly_differ() -> None:
    chance = random.Random(2)
    turns = [wandering(epoch, 1.0, chance) for epoch in range(1, 33)]
    slices = [block(epoch, {"base": 1.0, "target": ratio}, metric="gpu_sustained")
              for epoch, ratio in enumerate((1.03, 1.031, 1.029, 1.03), start=33)]  # fmt: skip
    assert row_of(turns, threshold=3.5).verdict == "same"
    row = row_of([*turns, *slices], threshold=3.5)
    assert (row.verdict, row.reasons) == ("unclear", ("power", "one_clock"))


# ---------------------------------------------------------------- the host takes longer than the device


@pytest.mark.parametrize(("device_ms", "after", "seen"), [(0.02, 0.06, -62.5), (0.02, 0.16, None), (1.0, 0.06, None)])
def test_a_host_bound_row_says_how_the_host_time_changed(device_ms: float, after: float, seen: float | None) -> None:
    """By the device the target takes 23 % longer; a caller that waits for each call sees it take 62 % less."""
    chance, made = random.Random(6), []
    for epoch in range(1, 5):
        each = block(epoch, {"base": device_ms, "target": 1.23 * device_ms}, metric="gpu_span")
        hosts = [ms * 1e6 * chance.lognormvariate(0, 0.02) for ms in (0.16, after)]
        outcomes = {arm: Outcome(status="ok", host_ns=ns) for arm, ns in zip(each.arms, hosts, strict=True)}
        made.append(msgspec.structs.replace(each, outcomes=outcomes))
    run = judge(head(), made)
    row = only(run)
    assert (row.verdict, round(row.pct)) == ("slower", 23)
    assert row.host_pct == (seen and pytest.approx(seen, abs=3))
    assert [one.kind for one in run.warnings].count("host_bound") == (seen is not None)


# ---------------------------------------------------------------- some calls are slow


def with_slow_calls(share: tuple[float, float], times: float, chance: np.random.Generator) -> list[Block]:
    """Four epochs of 40 rounds: a share of the calls of base and of target takes `times` as long."""

    def calls(part: float) -> list[float]:
        return list(1e6 * np.exp(chance.normal(0, 0.002, 40)) * np.where(chance.random(40) < part, times, 1.0))

    return [with_rounds(epoch, calls(share[0]), calls(share[1])) for epoch in range(1, 5)]


def test_slow_calls_are_never_plainly_the_same() -> None:
    """30 % of the calls at 1.5 times the time are 15 % of the mean; the median does not move."""
    chance = np.random.default_rng(3)
    rows = [row_of(with_slow_calls((0.0, 0.3), 1.5, chance)) for _ in range(50)]
    assert {row.verdict for row in rows} <= {"same", "slight", "unclear"}
    assert all("tail" in row.reasons for row in rows if row.verdict != "unclear")
    assert all(row.tail_pct == pytest.approx(50, abs=5) for row in rows if row.tail_pct is not None)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
def test_slow_calls_on_both_sides_are_no_difference(share: float) -> None:
    chance, runs = np.random.default_rng(4), 300
    rows = [row_of(with_slow_calls((share, share), 1.5, chance)) for _ in range(runs)]
    assert sum(row.tail_pct is not None for row in rows) <= upper(0.002, runs)


# ---------------------------------------------------------------- many rows


def noisy_run(
    cells: int, sd: float, chance: np.random.Generator, *, control: bool = False, off: int = -1
) -> list[Block]:
    """Four epochs of unchanged cells, with a control each if `control`, which takes 3 % longer in the cell `off`."""
    arms = ("base", "target", *(["control"] if control else []))

    def ratios(n: int) -> dict[str, float]:
        return {arm: math.exp(chance.normal(0, sd)) * (1.03 if (n, arm) == (off, "control") else 1.0) for arm in arms}

    return [block(epoch, ratios(n), cell=f"dense/n={n}", rounds=1) for n in range(cells) for epoch in range(1, 5)]


@pytest.mark.slow
def test_the_exit_code_follows_false_discovery_control() -> None:
    """Of 40 unchanged cells some row is `slower` by itself in every seventh run."""
    chance, runs = np.random.default_rng(5), 120
    head_ = head(40, settings={"threshold": 0.25, "margin": 0.25})
    judged = [judge(head_, noisy_run(40, 0.025, chance)) for _ in range(runs)]
    alone = sum(any(row.verdict == "slower" for row in run.comparisons) for run in judged)
    assert alone > upper(0.05, runs)
    assert sum(run.header.exit_code == 1 for run in judged) <= upper(0.025, runs)
    for run in judged:
        assert (run.header.exit_code == 1) == any(row.discovery and row.verdict == "slower" for row in run.comparisons)


@pytest.mark.slow
def test_forty_controls_do_not_distrust_a_clean_run() -> None:
    chance, runs = np.random.default_rng(6), 80
    head_ = head(40, control=True, settings={"threshold": 0.25, "margin": 0.25})
    judged = [judge(head_, noisy_run(40, 0.02, chance, control=True)) for _ in range(runs)]
    alone = sum(any(row.low_pct > 0.25 or row.high_pct < -0.25 for row in run.controls) for run in judged)
    assert alone > upper(0.05, runs)
    assert sum(not run.header.trusted for run in judged) <= upper(0.05, runs)


def test_a_control_that_differs_still_distrusts_the_run() -> None:
    judged = judge(head(10, control=True), noisy_run(10, 0.0005, np.random.default_rng(7), control=True, off=3))
    assert (judged.header.trusted, judged.header.exit_code) == (False, 4)


# ---------------------------------------------------------------- builds whose layout costs time


def laid_out(chance: np.random.Generator, *, second_build: bool) -> Run:
    """Four unchanged cells. Each build's layout costs 1 % or nothing; without `second_build` the control has base's."""
    layout = {arm: 1 + 0.01 * chance.integers(2) for arm in ("base", "target", "control")}
    if not second_build:
        layout["control"] = layout["base"]

    def ratios() -> dict[str, float]:
        return {arm: factor * math.exp(chance.normal(0, 0.0003)) for arm, factor in layout.items()}

    blocks = [block(epoch, ratios(), cell=f"dense/n={n}", rounds=1) for n in range(4) for epoch in range(1, 5)]
    return judge(head(4, control=True, settings={"threshold": 0.5}), blocks)


def test_a_control_with_a_second_build_sees_what_layout_does() -> None:
    """Half of the runs call unchanged code changed. The controls notice half of these, or none if they share base's build."""
    chance, runs = np.random.default_rng(12), 60
    trusted = {}
    for second_build in (False, True):
        judged = [laid_out(chance, second_build=second_build) for _ in range(runs)]
        wrong = [run for run in judged if {"slower", "faster"} & {row.verdict for row in run.comparisons}]
        assert abs(len(wrong) - runs / 2) <= upper(0.5, runs) - runs / 2
        trusted[second_build] = sum(run.header.trusted for run in wrong) / len(wrong)
    assert trusted[False] == 1.0
    assert abs(trusted[True] - 0.5) < 0.3


LAYOUT = Scenario(workloads={"w": load(["a", "b"])}, times=times(), layout=0.01)


def with_layout(lab: Lab, *, base: bool, control: bool, target: bool) -> None:
    """Draw layouts until the three builds of main's code cost 1 % more as stated."""
    code = hashlib.sha256((lab.repo.path / "kernels/k/__init__.py").read_bytes()).hexdigest()
    for seed in range(100):
        drawn = replace(LAYOUT, seed=seed)
        slow = [drawn.uniform("layout", name, code) < 0.5 for name in ("", "control", "target")]
        if slow == [base, control, target]:
            lab.set(drawn)
            return
    raise AssertionError("no seed draws these layouts")


def make_long(lab: Lab) -> None:
    """Let the kept builds have taken more than a minute, and forget the second builds."""
    for published in (lab.cache / "builds").glob("*/published.json"):
        if "-" in published.parent.name:
            shutil.rmtree(published.parent)
        else:
            kept = json.loads(published.read_bytes()[32:])
            kept["build"]["seconds"] = 61.0
            record = json.dumps(kept).encode()
            key, name = (lab.state / "build-key").read_bytes(), published.parent.name
            published.write_bytes(hmac.digest(key, name.encode() + b"\0" + record, "sha256") + record)


def trust(result: Result) -> str:
    return next(line for line in result.out.splitlines() if "rusted: " in line)


def test_the_same_commit_twice_has_two_builds_and_the_trust_panel_says_so(tmp_path: Path) -> None:
    lab = Lab(tmp_path, LAYOUT)
    with_layout(lab, base=False, control=False, target=True)
    result = lab.abprof("main", "main")
    assert [row.pct for row in result.run.comparisons] == [pytest.approx(1.0, abs=0.01)] * 2
    assert (result.code, result.run.header.trusted) == (4, False)
    assert "A/A" in result.err
    assert trust(result).startswith("Not trusted: 2 of 4 controls within 0.5 %, 2 beyond (4 with a second build)")
    assert {build.side: build.key[20:] for build in result.run.builds} == {
        "base": "",
        "target": "-target",
        "control": "-control",
    }
    with_layout(lab, base=False, control=True, target=False)
    again = lab.abprof("main", "main")
    assert all(build.cached for build in again.run.builds)
    assert trust(again).startswith("Not trusted: 2 of 4 controls within 0.5 %, 2 beyond (4 with a second build)")
    make_long(lab)
    blind = lab.abprof("main", "main")
    assert (blind.code, {row.verdict for row in blind.run.comparisons}) == (0, {"same"})
    assert trust(blind).startswith("Trusted: 4 of 4 controls within 0.5 % (none with a second build)")
    assert len({build.key for build in blind.run.builds}) == 1


def test_a_second_build_is_known_again_by_a_rerun(tmp_path: Path) -> None:
    lab = Lab(tmp_path, LAYOUT)
    with_layout(lab, base=False, control=False, target=False)
    first = lab.abprof("main", "main")
    more = lab.command("rerun", str(first.folder), "--only", "w/*", "--repo", str(lab.repo.path))
    assert more.run.header.counts["controls_second_build"] == 4
    assert [build.key for build in more.run.builds] == [build.key for build in first.run.builds]
    assert max(block.epoch for block in read(more.folder)[1]) > 4


# ---------------------------------------------------------------- epochs that depend on each other


def dependent(cells: int, length: int, rho: float, chance: np.random.Generator) -> list[list[float]]:
    """Epoch values that follow the epoch before by `rho`, half of their variance shared by all cells."""

    def path() -> list[float]:
        values = [chance.normal()]
        for _ in range(length - 1):
            values.append(rho * values[-1] + math.sqrt(1 - rho**2) * chance.normal())
        return values

    common = path()
    return [[0.01 * (a + b) for a, b in zip(common, path(), strict=True)] for _ in range(cells)]


def test_dependent_epochs_are_noticed_and_independent_ones_are_not() -> None:
    chance, runs = np.random.default_rng(8), 100
    clean = [stats.lag_one(dependent(30, 8, 0.0, chance)) for _ in range(runs)]
    assert sum(found is not None for found in clean) <= upper(0.002, runs)
    loaded = [stats.lag_one(dependent(30, 16, 0.8, chance)) for _ in range(runs)]
    assert sum(found is not None for found in loaded) > runs / 2


def test_a_run_says_that_its_epochs_depend_on_each_other() -> None:
    paths = dependent(30, 16, 0.9, np.random.default_rng(9))
    blocks = [
        block(epoch, {"base": 1.0, "target": math.exp(value)}, cell=f"dense/n={n}", rounds=1)
        for n, path in enumerate(paths)
        for epoch, value in enumerate(path, start=1)
    ]
    assert "dependent" in [warning.kind for warning in judge(head(30), blocks).warnings]


# ---------------------------------------------------------------- processes that are slow now and then


def test_a_target_that_is_slow_in_one_process_of_ten_is_seldom_the_same() -> None:
    """Of a target that takes 10 % longer in a tenth of its processes, the first look sees nothing in two runs of three."""
    chance, runs, at_once, at_the_end = np.random.default_rng(3), 600, 0, 0
    for _ in range(runs):
        values = list(np.log1p(0.1) * (chance.random(MOST) < 0.1) + chance.normal(0, 5e-4, MOST))
        at_once += decide(values[: stats.LOOKS[0]], 1.5, 0.5) == "same"
        at_the_end += to_verdict(values, 1.5, 0.5)[0] == "same"
    assert at_once > 0.6 * runs
    assert at_the_end <= 0.1 * runs


# ---------------------------------------------------------------- what a run could have seen


@pytest.mark.parametrize("number", [4, 8, 12])
def test_a_slow_down_of_the_stated_size_is_found_nine_times_in_ten(number: int) -> None:
    chance, runs = np.random.default_rng(number), 400
    found = 0
    for _ in range(runs):
        noise = list(chance.normal(0, 0.003, number))
        size = row_of(epochs(list(np.exp(noise)), rounds=1)).detectable_pct
        injected = [value + math.log1p(size / 100) for value in noise]
        found += decide(injected, 1.5, 0.5) == "slower"
    assert abs(found / runs - 0.9) <= 0.05


def test_a_quiet_run_could_have_seen_little_more_than_the_threshold() -> None:
    rows = [row_of(epochs([1.0, 1.0 + noise, 1.0, 1.0 - noise], rounds=1)) for noise in (1e-4, 1e-2)]
    assert 1.5 < fmean([rows[0].detectable_pct or 0.0]) < 1.6 < (rows[1].detectable_pct or 0.0)


def test_an_unclear_row_states_the_epochs_that_decide_it() -> None:
    """Of rows whose mean and scatter were known, at least half are decided by the stated look, and hardly any much earlier."""
    chance, stated, decided = np.random.default_rng(11), 0, 0
    for _ in range(200):
        values = list(chance.normal(0.002, 0.003, 32))
        row = row_of(epochs(list(np.exp(values[:4])), rounds=1))
        if row.needed_epochs is not None:
            stated += 1
            decided += any(decide(values[:look], 1.5, 0.5) for look in stats.LOOKS if look <= 2 * row.needed_epochs)
            assert row.needed_seconds == pytest.approx(row.needed_epochs - 4), "blocks of one second"
    assert stated > 100
    assert decided > stated / 2


def test_no_number_of_epochs_decides_at_the_threshold() -> None:
    row = row_of(epochs([1.014, 1.016, 1.013, 1.017], rounds=1))
    assert (row.verdict, row.needed_epochs, row.needed_seconds) == ("unclear", None, None)
