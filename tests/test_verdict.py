"""Exact verdicts from programmed epochs, and which cells go on."""

import math

import msgspec
import pytest

from abprof.records import Comparison, Outcome, Run, Turn
from abprof.verdict import judge, stats, undecided
from tests.blocks import block, cells, epochs, head, side

QUIET = [1.0, 1.001, 0.999, 1.0]  # sd about 0.08 %: a half-width of 0.23 % at the first look


def times(factor: float) -> list[float]:
    return [factor * value for value in QUIET]


def only(judgement: Run) -> Comparison:
    assert len(judgement.comparisons) == 1
    return judgement.comparisons[0]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        (times(1.03), "slower"),
        (times(0.97), "faster"),
        (times(1.0), "same"),
        (times(1.002), "same"),  # its sign may be certain: inside the margin it is the same all the same
        (times(1.01), "slight"),
        (times(0.99), "slight"),
        (times(1.015), "unclear"),  # at the threshold no interval is on one side of it
        (times(1.005), "slight"),  # straddles the margin, and its sign is certain
        ([1.0, 1.05, 0.95, 1.0], "unclear"),
        ([1.03, 1.03, 1.03], "unclear"),  # three epochs: no look yet
        ([1.03] * 4, "slower"),  # no spread at all
        ([1.0] * 4, "same"),
    ],
)
def test_verdicts(ratios: list[float], verdict: str) -> None:
    row = only(judge(head(), epochs(ratios)))
    assert row.verdict == verdict
    assert row.reasons == (("budget",) if verdict == "unclear" else ())


def clocked(ratios: list[float], base: float, target: float) -> Run:
    return judge(head(), epochs(ratios, mhz={"base": base, "target": target}))


@pytest.mark.parametrize("factor", [1.02, 0.98, 1.01])
def test_a_change_that_is_the_clocks_is_none(factor: float) -> None:
    """The same cycles on both sides; one side's clock was lower, and its time longer by as much."""
    judged = clocked(times(factor), 1800.0, 1800.0 / factor)
    row = only(judged)
    assert (row.verdict, row.reasons) == ("unclear", ("clock",))
    assert row.clock_pct == pytest.approx(100 / factor - 100)
    assert row.cycles_pct == pytest.approx(0.0, abs=0.06)
    assert judged.header.counts["undecided"] == 1
    assert [advice.kind for advice in judged.warnings if advice.kind == "clock"] == ["clock"]


def test_a_change_of_cycles_stands_though_the_clock_moved() -> None:
    row = only(clocked(times(1.05), 1800.0, 1764.0))
    assert (row.verdict, row.reasons) == ("slower", ())
    assert row.cycles_pct == pytest.approx(2.9, abs=0.1)


def test_unclear_after_the_epochs_that_were_asked_for_is_not_the_budgets_doing() -> None:
    asked = head(settings={"epochs": 4})
    judged = judge(asked, epochs([1.0, 1.05, 0.95, 1.0]))
    assert (only(judged).verdict, only(judged).reasons) == ("unclear", ("epochs",))
    (advice,) = (warning.advice for warning in judged.warnings if warning.kind == "undecided")
    assert "--epochs" in advice
    assert only(judge(asked, epochs([1.0, 1.05, 0.95]))).reasons == ("budget",), "one of them did not fit in"


def test_numbers_of_a_row() -> None:
    row = only(judge(head(), epochs(times(1.03))))
    interval = stats.repeated_interval([math.log(ratio) for ratio in times(1.03)])
    assert (row.cell, row.from_, row.to, row.metric) == ("dense/n=0", "base", "target", "wall")
    assert row.pct == pytest.approx(stats.percent(interval.theta))
    assert row.low_pct == pytest.approx(stats.percent(interval.low))
    assert row.high_pct == pytest.approx(stats.percent(interval.high))
    assert (row.epochs, row.look, row.discovery, row.certifiable_pct) == (4, 1, True, None)
    assert row.p == pytest.approx(stats.p_beyond([math.log(r) for r in times(1.03)], *stats.band(1.5)))


def test_an_interrupted_run_rests_on_its_last_look() -> None:
    row = only(judge(head(status="interrupted"), epochs([*times(1.03), 9.0])))
    assert (row.verdict, row.epochs, row.look) == ("slower", 4, 1)
    row = only(judge(head(status="interrupted"), epochs([1.03, 1.03])))
    assert (row.verdict, row.reasons, row.low_pct) == ("unclear", ("interrupted",), None)
    assert row.pct == pytest.approx(3.0)
    row = only(judge(head(status="interrupted"), []))
    assert (row.verdict, row.reasons, row.pct) == ("unclear", ("interrupted",), None)


@pytest.mark.parametrize("bad", [0.0, -3.0, math.nan, math.inf])
def test_an_impossible_time_in_a_kept_round_is_refused(bad: float) -> None:
    broken = msgspec.structs.replace(epochs([1.0])[0], rounds=((Turn(0, 0, 1, 1.0, 1.0), Turn(1, 1, 2, bad, 1.0)),))
    with pytest.raises(ValueError, match=r"dense/n=0, epoch 1: a round has an impossible time"):
        judge(head(), [broken])
    judge(head(), [msgspec.structs.replace(broken, rejected=(0,))])


def test_the_first_matching_threshold_holds() -> None:
    patterns = (("dense/n=1", 5.0), ("dense/*", 2.0))
    blocks = [b for cell in cells(2) for b in epochs(times(1.03), cell=cell.id)]
    rows = judge(head(2, settings={"thresholds": patterns}), blocks).comparisons
    assert [row.verdict for row in rows] == ["slower", "slight"]
    rows = judge(head(2, settings={"thresholds": patterns[::-1]}), blocks).comparisons
    assert [row.verdict for row in rows] == ["slower", "slower"]


def test_a_margin_wider_than_the_threshold_does_not_hide_a_change() -> None:
    narrow = head(settings={"threshold": 0.25, "margin": 0.5})
    assert only(judge(narrow, epochs([1.004] * 4))).verdict == "slower"
    assert only(judge(narrow, epochs([1.002, 1.003, 1.0025, 1.0025]))).verdict == "unclear"


def test_precision_asks_for_more_and_leaves_the_verdict() -> None:
    precise = head(settings={"precision": 0.1})
    blocks = epochs(times(1.03))
    row = only(judge(precise, blocks))
    assert (row.verdict, row.reasons) == ("slower", ("precision",))
    assert undecided(precise, blocks) == {"dense/n=0"}
    assert undecided(head(settings={"precision": 0.3}), blocks) == set()
    assert undecided(precise, epochs(times(1.03) * 8)) == set()  # the last look


@pytest.mark.parametrize(
    ("ratio", "reason"),
    [(1.2, "quick_worth_confirming"), (0.8, "quick_worth_confirming"), (1.01, "quick_nothing_large")],
)
def test_quick_never_says_more_than_worth_confirming(ratio: float, reason: str) -> None:
    quick = head(settings={"quick": True})
    blocks = epochs([ratio], quick=True)
    row = only(judge(quick, blocks))
    assert (row.verdict, row.reasons, row.low_pct, row.certifiable_pct) == ("unclear", (reason,), None, None)
    assert row.pct == pytest.approx(100 * (ratio - 1))
    assert undecided(quick, blocks) == set()
    assert undecided(quick, []) == {"dense/n=0"}


def test_undecided_before_the_first_epoch_is_what_can_run() -> None:
    run = head(3)
    skipped = (*run.cells[:2], msgspec.structs.replace(run.cells[2], skip="needs a GPU"))
    assert undecided(msgspec.structs.replace(run, cells=skipped), []) == {"dense/n=0", "dense/n=1"}


def test_a_clear_cell_stops_at_the_first_look_and_a_hard_one_goes_on() -> None:
    run = head(2)
    hard = [1.0, 1.03, 0.98, 1.01] * 8

    def after(number: int) -> set[str]:
        clear = epochs(times(1.03)[:number])
        return undecided(run, clear + epochs(hard[:number], cell="dense/n=1"))

    assert after(1) == after(2) == after(3) == {"dense/n=0", "dense/n=1"}
    assert after(4) == {"dense/n=1"}
    assert undecided(run, epochs(times(1.03)) + epochs(hard[:32], cell="dense/n=1")) == set()
    row = judge(run, epochs(times(1.03)) + epochs(hard[:32], cell="dense/n=1")).comparisons[1]
    assert (row.reasons, row.epochs, row.look) == (("epochs",), 32, 7)


def test_between_looks_an_undecided_cell_goes_on() -> None:
    hard = [1.0, 1.03, 0.98, 1.01]
    assert undecided(head(), epochs([*hard, 1.0])) == {"dense/n=0"}
    assert undecided(head(), epochs([*times(1.05), 1.7])) == set()  # decided at four: the fifth is past the end


def test_a_cell_that_is_the_same_is_measured_until_rare_slow_processes_would_have_been_seen() -> None:
    """The wider the margin, the fewer processes: rare slow processes must shift the mean beyond it."""
    for margin, needed in ((0.5, 24), (1.0, 12), (2.0, 6), (5.0, 4)):
        run = head(settings={"margin": margin, "threshold": 5.0})
        going = {count: bool(undecided(run, epochs([1.0, 1.001] * (count // 2)))) for count in (4, 6, 8, 12, 22, 24)}
        assert going == {count: count < needed for count in going}, margin
    strict = head(settings={"margin": 5.0, "threshold": 5.0, "thresholds": (("dense/*", 0.5),)})
    assert undecided(strict, epochs([1.0, 1.001] * 11)) == {"dense/n=0"}, "a cell's threshold limits its margin"
    slow = [6e7 * ratio for ratio in (1.0, 1.001, 1.0, 1.001)]
    long = [block(i, {"base": 6e7, "target": time}) for i, time in enumerate(slow, start=1)]
    assert undecided(head(), long) == set(), "calls of 60 ms: the row says what share of processes may differ unseen"


def test_a_change_that_may_be_chance_among_many_cells_goes_on() -> None:
    ratios = [1.02, 1.021, 1.019, 1.02]  # p about 0.01: enough alone, not among thirty
    assert undecided(head(), epochs(ratios)) == set()
    run = head(30)
    others = [1.0, 1.001] * 12
    blocks = [b for cell in run.cells for b in epochs(ratios if cell.id == "dense/n=0" else others, cell=cell.id)]
    judged = judge(run, blocks)
    assert (judged.comparisons[0].verdict, judged.comparisons[0].discovery) == ("slower", False)
    assert undecided(run, blocks) == {"dense/n=0"}
    more = [block(i, {"base": 1.0, "target": r}) for i, r in enumerate([1.021, 1.0195], start=5)]
    assert undecided(run, blocks + more) == set()
    assert judge(run, blocks + more).comparisons[0].discovery


def test_peers_inform_and_have_no_say() -> None:
    run = head(peers=("sdpa",))
    blocks = [block(i, {"base": 1.0, "target": r, "peer:sdpa": 0.5}) for i, r in enumerate(QUIET)]
    judged = judge(run, blocks)
    assert [(row.from_, row.to, row.verdict) for row in judged.comparisons] == [
        ("base", "target", "same"),
        ("peer:sdpa", "base", "slower"),
        ("peer:sdpa", "target", "slower"),
    ]
    assert judged.comparisons[1].pct == pytest.approx(100.0)
    assert (judged.header.exit_code, judged.header.counts["slower"], judged.header.counts["comparisons"]) == (0, 0, 1)
    assert all(row.p is not None and row.discovery for row in judged.comparisons[1:]), "a family of their own"
    failed = [block(i, {"base": 1.0, "target": r}, status={"peer:sdpa": "crash"}) for i, r in enumerate(QUIET)]
    judged = judge(run, failed)
    assert judged.comparisons[1].reasons == ("peer_crash",)
    assert (judged.header.exit_code, judged.warnings) == (0, ())


def test_an_a_a_run_is_judged_by_its_intervals() -> None:
    """Calling every cell `same` because the code is would prove nothing about the instrument."""
    run = head(sides=[side("base"), side("target", tree="a" * 40)])
    same = {"base": "identical", "target": "identical"}
    noisy = [block(i, {"base": 1.0, "target": r}, status=same) for i, r in enumerate([1.0, 1.02, 0.98, 1.01])]
    row = only(judge(run, noisy))
    assert (row.verdict, row.reasons) == ("unclear", ("identical_code", "budget"))
    assert undecided(run, noisy) == {"dense/n=0"}
    shifted = [block(i, {"base": 1.0, "target": r}, status=same) for i, r in enumerate(times(1.03))]
    judged = judge(run, shifted)
    assert (only(judged).verdict, judged.header.trusted, judged.header.exit_code) == ("slower", False, 4)


def test_metrics_have_units_protocols_and_intervals() -> None:
    run = head(cell={"flops": 8e9, "bytes": 3e6, "convention": "fwd-full"})
    outcome = Outcome(status="ok", peak_mem_bytes=4096)
    blocks = [
        block(i, {"base": 1.0, "target": r}, metric="gpu_span", timer="cuda_event", calls=3, status={"target": outcome})
        for i, r in enumerate([2.0, 2.02, 1.98])
    ]
    base, target = judge(run, blocks).observations
    assert (base.arm, base.epochs, base.metrics["gpu_span"].value) == ("base", 3, 1_000_000.0)
    span = target.metrics["gpu_span"]
    assert (span.unit, span.better, span.protocol) == ("ns", "lower", "cuda_event, 3 calls a turn")
    own = stats.own_time([2_000_000.0, 2_020_000.0, 1_980_000.0])
    assert (span.value, span.low, span.high) == pytest.approx(own)
    assert target.metrics["wall"].value == pytest.approx(own[0] + 5_000, rel=1e-6)
    rate = target.metrics["tflops"]
    assert (rate.unit, rate.better, rate.protocol) == ("TFLOP/s", "higher", "fwd-full")
    assert (rate.value, rate.low, rate.high) == pytest.approx((8e6 / span.value, 8e6 / span.high, 8e6 / span.low))
    assert target.metrics["bandwidth"].value == pytest.approx(3e6 / span.value)  # bytes a ns = GB/s
    assert (target.metrics["peak_mem_bytes"].value, target.metrics["peak_mem_bytes"].unit) == (4096.0, "bytes")
    assert "peak_mem_bytes" not in base.metrics


def test_phases_are_means_with_a_residual_of_their_own_pass() -> None:
    first = Outcome(status="ok", phases={"prepare": 100.0, "run": 800.0, "cast": None, "total": 1000.0})
    second = Outcome(status="ok", phases={"prepare": 120.0, "run": 840.0, "cast": None, "total": 1060.0})
    blocks = [block(i, {"base": 1.0, "target": 1.0}, status={"base": o}) for i, o in enumerate([first, second])]
    base, target = judge(head(), blocks).observations
    assert base.phases == {"prepare": 110.0, "run": 820.0, "cast": None, "total": 1030.0, "residual": 100.0}
    assert target.phases is None
