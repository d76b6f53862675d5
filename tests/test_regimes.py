"""Two regimes: calls with pauses (burst) and without (sustained). Which cells get both, and which regime gives the verdict."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from abprof.records import LOOKS, POWER_CAP, SUSTAINED, Block, Comparison, MachineState
from abprof.verdict import judge
from abprof.verdict.stats import epochs_for_same
from tests.blocks import block, head
from tests.simulated.lab import Lab, Result
from tests.simulated.planted import NewLab, broken, load, planted, times
from tests.simulated.scenario import Fault, Scenario, Time
from tests.test_verdict import only

SLICES = 6  # most epochs of slices
WIDE = ("--margin", "1.5")  # `same` then takes 8 epochs
POWER = Scenario(
    workloads={"w": load(["agrees", "reversed", "same"])},
    times=times(
        planted("agrees", 1.15),
        planted("reversed", 1.15),
        Time(factor=0.8, cell="*case=reversed", side="target", timer="sustained"),
    ),
)


def capped(lab: Lab) -> Lab:
    """From now on the laboratory's device is at its power limit."""
    lab.scenario.with_name("scenario.json.capped").touch()
    return lab


def slices(result: Result) -> Counter[str]:
    """Cell -> its epochs of slices."""
    lines = map(json.loads, (result.folder / "rounds.jsonl").read_text().splitlines())
    return Counter(line["cell"] for line in lines if line["metric"] == SUSTAINED)


def test_a_change_that_is_reversed_at_the_power_limit_is_no_answer(new_lab: NewLab) -> None:
    lab = capped(new_lab(POWER))
    result = lab.abprof("main", "fast", *WIDE)
    agrees, turned, same = (result.row(f"w/case={name}") for name in ("agrees", "reversed", "same"))
    assert (agrees.verdict, agrees.reasons, agrees.sustained_pct) == ("slower", (), pytest.approx(15.0))
    assert (turned.verdict, turned.reasons) == ("unclear", ("power",))
    assert (turned.pct, turned.sustained_pct) == (pytest.approx(15.0), pytest.approx(-8.0))
    assert (same.verdict, same.sustained_pct) == ("same", pytest.approx(0.0))
    assert set(slices(result).values()) == {SLICES}
    said = [warning for warning in result.run.warnings if warning.kind == "power"]
    assert [warning.cells for warning in said] == [("w/case=reversed",)]
    assert "15.00 % slower in turns, 8.00 % faster without a pause" in said[0].text
    assert "w/case=agrees  base -> target: slower by burst (15.0 % slower); next without pauses" in result.err
    assert "verdict by burst; sustained 15.0 % slower (95 % interval: 15.0 to 15.0 % slower)" in result.out
    seen = {o.arm: o.metrics.get(SUSTAINED) for o in result.run.observations if o.cell == "w/case=agrees"}
    base, target = seen["base"], seen["target"]
    assert target.value / base.value == pytest.approx(1.15)
    before = slices(result)
    again = lab.command("rerun", str(result.folder), "--only", "*case=agrees", "--repo", str(lab.repo.path))
    assert slices(again) == before, "slices are measured once in a run"


def test_cells_below_the_power_limit_are_measured_in_turns_alone(new_lab: NewLab) -> None:
    """The device is at its limit in the turns of one cell."""
    others = [
        Fault("write", "turn", cell=f"*case={name}", text="scenario.json.capped-") for name in ("reversed", "same")
    ]
    at_limit = [Fault("write", "turn", text="scenario.json.capped+"), *others]
    result = new_lab(replace(POWER, faults=at_limit)).abprof("main", "fast", *WIDE)
    assert result.table() == {"w/case=agrees": "slower", "w/case=reversed": "slower", "w/case=same": "same"}
    assert slices(result) == {"w/case=agrees": SLICES}


@pytest.mark.parametrize(("regime", "verdict", "pct"), [("burst", "slower", 15.0), ("sustained", "faster", -8.0)])
def test_the_regime_that_gives_the_verdict_can_be_chosen(
    new_lab: NewLab, regime: str, verdict: str, pct: float
) -> None:
    result = capped(new_lab(POWER)).abprof("main", "fast", "--regime", regime, *WIDE)
    row = result.row("w/case=reversed")
    assert (row.verdict, row.reasons, row.pct) == (verdict, (), pytest.approx(pct))
    if regime == "burst":
        assert (row.sustained_pct, slices(result)) == (None, {})
        return
    assert (row.metric, row.sustained_pct, row.burst_pct) == (SUSTAINED, row.pct, pytest.approx(15.0))
    assert row.p is not None
    assert row.discovery
    assert slices(result)["w/case=reversed"] == LOOKS[0], "epochs end at the first look that decides"
    assert "verdict by sustained; burst 15.0 % slower" in result.out
    assert all(one.metric == SUSTAINED for one in result.run.controls)


def test_peers_at_the_power_limit_show_both_regimes_too(new_lab: NewLab) -> None:
    """A library that is slower by turns and faster without pauses."""
    peer = [Time(factor=1.01, arm="peer:lib"), Time(factor=0.95, arm="peer:lib", timer="sustained")]
    result = capped(new_lab(Scenario(workloads={"w": load(["a"], peers=["lib"])}, times=times(*peer)))).abprof(
        "main", "fast", *WIDE
    )
    row = next(row for row in result.run.comparisons if (row.from_, row.to) == ("peer:lib", "target"))
    assert (row.verdict, row.reasons) == ("unclear", ("power",))
    assert (row.pct, row.sustained_pct) == (pytest.approx(100 / 1.01 - 100), pytest.approx(100 / 1.01 / 0.95 - 100))
    assert result.row("w/case=a").verdict == "same"


def test_slices_that_fail_leave_the_verdict_of_the_turns(new_lab: NewLab) -> None:
    late = [broken("crash_status", "agrees", verb="turn", epoch=epochs_for_same(1.5) + 1 + i) for i in range(SLICES)]
    result = capped(new_lab(replace(POWER, faults=late))).abprof("main", "fast", *WIDE)
    row = result.row("w/case=agrees")
    assert (row.verdict, row.reasons, row.sustained_pct) == ("slower", ("burst_alone",), None)
    assert result.row("w/case=reversed").reasons == ("power",)


def test_a_side_that_did_not_build_and_a_cell_that_is_left_out_have_no_slices(new_lab: NewLab) -> None:
    """The run continues: the failure has a status, and the other cells have verdicts."""
    two = {"w": load(["agrees", "same"], skips={"w/case=same": "too large"}), "other": load(["agrees"], kernel="j")}
    faults = [Fault(do="crash_status", verb="build", side="target", cell="*", text="no compiler")]
    scenario = Scenario(workloads=two, times=times(planted("agrees", 1.15)), faults=faults)
    result = capped(new_lab(scenario)).abprof("main", "fast")
    assert "Traceback" not in result.err
    assert result.code == 1, "broken on the target"
    assert {result.status(f"{name}/case=agrees", "target")[0] for name in two} == {"build_failed"}
    assert all(row.sustained_pct is None for row in result.run.comparisons)


@pytest.mark.slow
def test_one_branchs_variants_have_slices_too_and_one_that_does_not_run_costs_the_others_nothing(
    new_lab: NewLab,
) -> None:
    """The pipelined variant wins turn by turn and loses at the power limit: that is no answer. `absent` cannot run here."""
    steps = ["ws", "pipelined", "absent"]
    scenario = Scenario(
        workloads={"w": load(["a"], variants=steps, ladder=steps[:2]), "plain": load(["a"], kernel="j")},
        times=times(Time(factor=1 / 1.08, arm="pipelined"), Time(factor=1.3, arm="pipelined", timer="sustained")),
        faults=[Fault("unsupported", "open", arm="absent")],
    )
    result = capped(new_lab(scenario)).abprof("run", "main")
    rows = {row.to: row for row in result.run.within}
    assert (rows["base:pipelined"].verdict, rows["base:pipelined"].reasons) == ("unclear", ("power",))
    assert rows["base:pipelined"].pct == pytest.approx(100 / 1.08 - 100)
    assert rows["base:pipelined"].sustained_pct == pytest.approx(130 / 1.08 - 100)
    assert rows["base:absent"].reasons == ("second_unsupported",)
    lines = (result.folder / "rounds.jsonl").read_text().splitlines()
    assert {json.loads(line)["cell"] for line in lines if SUSTAINED in line} == {"w/case=a"}


def test_a_spent_budget_drops_the_second_regime_and_the_row_says_so(new_lab: NewLab) -> None:
    result = capped(new_lab(POWER)).abprof("main", "fast", "--budget", "0.01s")
    row = result.row("w/case=agrees")
    assert ("burst_alone" in row.reasons, row.sustained_pct, slices(result)) == (True, None, {})
    assert "by burst alone: no budget" in result.out
    assert "next without pauses" not in result.err


def test_slices_take_five_seconds_a_cell_at_most(new_lab: NewLab) -> None:
    """The first epoch takes more than half of that, so that no second begins, and one epoch gives no interval."""
    slow = Fault("slow:2.6", "turn", side="base", epoch=LOOKS[0] + 1, times=1)
    scenario = Scenario(workloads={"w": load(["a"])}, times=times(planted("a", 1.15)), faults=[slow])
    result = capped(new_lab(scenario)).abprof("main", "fast")
    assert slices(result) == {"w/case=a": 1}
    row = result.row("w/case=a")
    assert (row.verdict, row.reasons, row.sustained_pct) == ("slower", ("burst_alone",), None)


def judged(
    turns: float, sustained: float, *, regime: str = "auto", spread: float = 0.001, number: int = 3, **timed: str
) -> Comparison:
    """Return the row of twelve epochs of turns and `number` of slices, whose ratios scatter by `spread`."""

    def blocks(ratio: float, epochs: range, by: float, **fields: object) -> list[Block]:
        steps = [(epoch, 1 + by * (-1) ** epoch) for epoch in epochs]
        return [block(epoch, {"base": 1.0, "target": ratio * step}, **fields) for epoch, step in steps]

    at_limit = MachineState(throttle=(POWER_CAP,))
    every = blocks(turns, range(1, 13), 0.001, state=at_limit, **timed)
    every += blocks(sustained, range(13, 13 + number), spread, metric=SUSTAINED)
    return only(judge(head(settings={"regime": regime}), every))


@pytest.mark.parametrize(
    ("turns", "sustained", "verdict"),
    [
        (1.0, 1.0, "same"), (1.0, 1.03, "unclear"), (1.0, 0.97, "unclear"), (1.01, 1.01, "slight"),
        (1.01, 0.98, "unclear"), (1.01, 1.05, "unclear"), (0.99, 0.99, "slight"), (0.99, 1.01, "unclear"),
        (1.1, 1.03, "slower"), (1.1, 1.0, "unclear"), (0.9, 0.95, "faster"), (0.9, 1.0, "unclear"),
    ],
)  # fmt: skip
def test_slices_outside_what_the_verdict_states_withhold_it(turns: float, sustained: float, verdict: str) -> None:
    row = judged(turns, sustained)
    assert row.verdict == verdict, row
    assert ("power" in row.reasons) == (verdict == "unclear")
    assert row.needed_epochs is None, "more turns settle nothing"
    assert row.sustained_pct == pytest.approx(100 * sustained - 100, abs=0.1)


@pytest.mark.parametrize("timer", ["cuda_graph", "cupti", "wall_clock"])
def test_turns_that_events_do_not_time_have_no_second_regime(timer: str) -> None:
    for regime in ("auto", "sustained"):
        assert judged(1.0, 1.0, number=0, regime=regime).reasons == ("burst_alone",)
        assert judged(1.0, 1.0, number=0, regime=regime, timer=timer).reasons == ()


def test_slices_that_scatter_contradict_nothing() -> None:
    row = judged(1.0, 1.03, spread=0.03)
    assert (row.verdict, row.reasons) == ("same", ())
    assert row.sustained_low_pct < 0


def test_a_chosen_regime_is_not_contradicted_by_the_other() -> None:
    row = judged(1.0, 1.03, regime="sustained", number=12)
    assert (row.metric, row.verdict, row.reasons) == (SUSTAINED, "slower", ())
    assert (row.burst_pct, row.sustained_pct) == (pytest.approx(0.0, abs=0.01), row.pct)
    few = judged(1.0, 1.03, regime="sustained", number=2)
    assert (few.metric, few.verdict) == (SUSTAINED, "unclear"), "too few for a verdict"
