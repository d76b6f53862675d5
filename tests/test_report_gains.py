"""Speed-ups, scaling and configurations of the analyses that abprof replaces, computed from a run: hopper_ws and fmha_scaling."""

from __future__ import annotations

import io
import types
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from rich.console import Console

from abprof.records import Block, Cell, Outcome, Run, Value
from abprof.report import gains, sections, seed_tables, terminal, view
from abprof.verdict import judge
from tests import runs
from tests.blocks import block, head, side

STEPS = ("ws", "ws_pipelined")
CONFIG = "BLOCK_M=128 BLOCK_N=128 NUM_BUFFERS=2 NUM_MMA_WARPS=8 NUM_MMA_GROUPS=2 num_warps=4 num_stages=0"
SEVEN = ("BLOCK_M", "BLOCK_N", "NUM_BUFFERS", "NUM_MMA_WARPS", "NUM_MMA_GROUPS", "num_warps", "num_stages")
NS = {128: 234_000.0, 8192: 2_000_000.0}  # of the plain variant; 0.234 ms is the analysis's own example


def cell(length: int) -> Cell:
    """B1 H32 D128, fp16, not causal: 4 B H N^2 D operations, 8 B H N D bytes."""
    params: dict[str, Value] = {"N_CTX": length, "B": 1, "H": 32, "D": 128, "dtype": "fp16"}
    return Cell(id=f"dense/n={length}", workload="dense", kernel="ffa", suite="hopper_ws", params=params,
                flops=4.0 * 32 * length**2 * 128, bytes=8.0 * 32 * length * 128, convention="fwd-dense")  # fmt: skip


def made(*, sides: tuple[str, ...] = ("base",), gain: float = 1.08) -> tuple[Run, list[Block]]:
    """Two lengths; pipelined takes 1/gain of the plain time at 8192 and 1.25 of it at 128; the peer 0.9 of plain."""
    run = head(2, variants=STEPS, peers=("sdpa",), sides=[side(name) for name in sides])
    load = msgspec.structs.replace(run.workloads[0], suite="hopper_ws", axes=("N_CTX", "B", "H", "D", "dtype"), ladder=STEPS,
                                   scaled="N_CTX", seed_columns=("N_CTX", "B", "H", "D", "dtype"))  # fmt: skip
    cells = (cell(128), cell(8192))
    run = msgspec.structs.replace(run, workloads=(load,), cells=cells)
    told = Outcome(status="ok", facts={"autotuned": CONFIG, "density": 0.5})
    blocks = []
    for one in cells:
        length = int(one.params["N_CTX"])
        ratios = {f"{name}:{step}": ratio for name in sides
                  for step, ratio in (("ws", 1.0), ("ws_pipelined", 1.25 if length == 128 else 1 / gain))}  # fmt: skip
        status = {arm: told for arm in ratios if arm.endswith("pipelined")}
        blocks += [
            block(i, {**ratios, "peer:sdpa": 0.9}, cell=one.id, base_ns=NS[length], status=status) for i in range(4)
        ]
    judged = judge(run, blocks)
    return msgspec.structs.replace(run, header=judged.header, observations=judged.observations,
                                   comparisons=judged.comparisons, within=judged.within), blocks  # fmt: skip


@pytest.fixture(scope="module")
def profile() -> pd.DataFrame:
    text = seed_tables.files(made()[0])["profile_hopper_ws_main.csv"]
    return pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False).set_index(["N_CTX", "variant"])


def test_a_suite_without_a_direction_has_no_columns_of_directions(profile: pd.DataFrame) -> None:
    header = seed_tables.files(made()[0])["profile_hopper_ws_main.csv"].splitlines()[0].split(",")
    assert header[:8] == ["N_CTX", "B", "H", "D", "dtype", "latency_ms", "tflops_per_sec", "variant"]
    assert not [name for name in profile.columns if name.startswith(("fwd_", "bwd_", "direction"))]


def test_rates_are_those_of_the_analysis_recomputed(profile: pd.DataFrame) -> None:
    """0.234 ms at 128 tokens: 1.147 TFLOP/s and 17.92 GB/s of 4.194 MB; what its own sample printed was impossible."""
    row = profile.loc["128", "ws"]
    assert (row.latency_ms, row.tflops_per_sec, row.gb_per_s, row.memory_mb) == (
        "0.2340",
        "1.1472",
        "17.9244",
        "4.1943",
    )


def test_pipelined_over_plain_has_interval_and_verdict(profile: pd.DataFrame) -> None:
    long, short = profile.loc["8192", "ws_pipelined"], profile.loc["128", "ws_pipelined"]
    over = ["speedup_over_baseline", "speedup_over_baseline_low", "speedup_over_baseline_high"]
    assert list(long[over]) == ["1.0800"] * 3
    assert list(short[over]) == ["0.8000"] * 3
    assert (long.speedup_over_baseline_verdict, short.speedup_over_baseline_verdict) == ("faster", "slower")
    assert (long.baseline, long.step_before, long.speedup_over_step_before) == ("ws", "ws", "1.0800")
    assert (long.best_step, short.best_step) == ("ws_pipelined", "ws")
    assert profile.loc["8192", "ws"].speedup_over_step_before == ""
    assert (long.speedup_over_peer_sdpa, long.speedup_over_peer_sdpa_verdict) == ("0.9720", "slower")


def test_scaling_efficiency_is_the_growth_of_the_rate_over_that_of_the_length(profile: pd.DataFrame) -> None:
    rates = {key: float(row.tflops_per_sec) for key, row in profile.iterrows()}
    for step in STEPS:
        expected = rates["8192", step] / rates["128", step] / (8192 / 128)
        assert float(profile.loc["8192", step].scaling_efficiency) == pytest.approx(expected, rel=1e-4)
        assert profile.loc["128", step].scaling_efficiency == "1.0000"
    assert float(profile.loc["8192", "ws"].scaling_efficiency) == pytest.approx(0.234 / 2.0 * 64, abs=1e-4)


def test_the_seven_parameters_have_columns(profile: pd.DataFrame) -> None:
    row = profile.loc["8192", "ws_pipelined"]
    assert [row[f"autotuned_{name}"] for name in SEVEN] == ["128", "128", "2", "8", "2", "4", "0"]
    assert row.fact_density == "0.5"
    assert profile.loc["8192", "ws"].autotuned_BLOCK_M == ""


def test_the_comparison_has_both_sides_speedups() -> None:
    text = seed_tables.files(made(sides=("base", "target"), gain=1.2)[0])["compare_main_optimize_ffa_hopper_ws.csv"]
    rows = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False).set_index(["N_CTX", "variant"])
    assert list(rows.columns[4:7]) == ["latency_ms_baseline", "latency_ms_target", "latency_ms_improvement(%)"]
    row = rows.loc["8192", "ws_pipelined"]
    assert (row.speedup_over_baseline_baseline, row.speedup_over_baseline_target) == ("1.2000", "1.2000")
    assert row.verdict == "same"


def test_the_four_configurations_stand_in_one_table() -> None:
    run, _ = made()
    (group,) = view.groups(run)
    part = sections.of(group)[0]
    assert part.table.header[5:] == ("GB/s", "MB", "scaling efficiency", "of the baseline", "of sdpa")
    assert [row[0::2][:3] for row in part.table.rows] == [
        (f"N_CTX={length}", step, rate)
        for (length, step), rate in {
            (128, "ws"): "1.147", (128, "ws_pipelined"): "0.9177", (8192, "ws"): "549.8", (8192, "ws_pipelined"): "593.7",
        }.items()
    ]  # fmt: skip
    gained = ("1.080 × (1.080 to 1.080), faster", "0.972 × (0.972 to 0.972), slower")
    assert part.table.rows[-1][5:] == ("145.0", "268.435", "10.109", *gained)
    out = io.StringIO()
    terminal.show(run, Console(file=out, width=80), Path("x"))
    assert "of sdpa 0.972 × (0.972 to 0.972), slower" in " ".join(out.getvalue().split())


def test_variants_beside_the_ladder_stand_after_it_and_can_be_the_best() -> None:
    """`twin` is no step. Where it ran it has a row and may be a value's best; where nothing of it ran it has none."""
    run, blocks = made()
    load = msgspec.structs.replace(run.workloads[0], ladder=STEPS, variants=(*STEPS, "twin"))
    arms = (*run.arms, msgspec.structs.replace(run.arms[0], id="base:twin", variant="twin"))
    head_ = msgspec.structs.replace(run, workloads=(load,), arms=arms)
    idle = msgspec.structs.replace(head_, observations=judge(head_, blocks).observations)
    assert {row[2] for row in sections.of(view.groups(idle)[0])[0].table.rows} == set(STEPS)
    ran = [
        block(i, {"base:ws": 1.0, "base:ws_pipelined": 1.0, "base:twin": 0.5}, cell=run.cells[1].id) for i in range(4)
    ]
    judged = judge(head_, ran)
    whole = msgspec.structs.replace(head_, observations=judged.observations, within=judged.within)
    climb, scaled = sections.of(view.groups(whole)[0])[:2]
    last = climb.table.rows[-1]
    assert (last[2], last[8]) == ("twin", "2.000 × (2.000 to 2.000), faster")
    assert scaled.table.header[3:] == ("ws", "ws_pipelined", "twin", "best", "TFLOP/s", "efficiency")
    assert scaled.table.rows[-1][6] == "twin"


def test_the_best_step_names_those_that_are_not_certainly_slower() -> None:
    run, _ = made(gain=1.0)
    scaled = sections.of(view.groups(run)[0])[1]
    assert scaled.table.header[5] == "best"
    assert [row[5] for row in scaled.table.rows] == ["ws", "ws or ws_pipelined"]
    wrong = [msgspec.structs.replace(one, status="wrong") if one.arm == "base:ws" else one for one in run.observations]
    shown = sections.of(view.groups(msgspec.structs.replace(run, observations=tuple(wrong)))[0])[1]
    assert [row[5] for row in shown.table.rows] == ["ws_pipelined", "ws_pipelined"]
    assert "wrong output" in shown.table.rows[0][3], "a wrong answer's time may be shown, and is never the best"


def test_columns_follow_from_what_is_declared_and_not_from_what_came_out() -> None:
    run, _ = made()
    lost = [msgspec.structs.replace(one, status="oom", metrics={}) for one in run.observations]
    bare = msgspec.structs.replace(run, observations=tuple(lost), within=(), comparisons=())
    whole, empty = (seed_tables.files(one)["profile_hopper_ws_main.csv"].splitlines() for one in (run, bare))
    assert whole[0] == empty[0]
    assert {line.split(",")[5] for line in empty[1:]} == {"-1.0000"}


def test_the_least_speed_up_stands_first() -> None:
    """A time that fell by 8 to 12 % is a speed-up of 1.087 to 1.136."""
    one = runs.dense_cell("full", "fwd")
    plain, tuned = runs.observed(one, "base:plain", 10.0), runs.observed(one, "base:tuned", 9.0)
    judged = runs.compared(one, "faster", -10.0, 2.0, from_="base:plain", to="base:tuned")
    group = types.SimpleNamespace(beside={(one.id, "base:plain", "base:tuned"): judged})
    found = gains.gain(group, plain, tuned, "gpu_span")
    assert found.text == "1.111 × (1.087 to 1.136), faster"
