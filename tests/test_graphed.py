"""Calls in CUDA graphs: beside a launch-bound cell's own turns, and as the timer that was asked for (abprof/measure/graphs.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from abprof.measure.graphs import NOT_TRIED, launch_bound
from abprof.records import GPU_GRAPH, Block, Census, Launch, Outcome
from abprof.records import messages as wire
from abprof.store import runfolder
from abprof.verdict.aggregation import gather
from tests.blocks import block, head
from tests.simulated.lab import Result
from tests.simulated.planted import LONG, NewLab, broken, load, new_lab, planted, times
from tests.simulated.scenario import Scenario, Time

__all__ = ["new_lab"]

# On the host `both` and `host` are slower on the target; in graphs only `both` is.
BOUND = Scenario(
    workloads={
        "w": load(["both", "host"], judge="gpu", host_ns=2 * LONG),
        "free": load(["a"], kernel="j", judge="gpu"),
    },
    times=times(
        Time(ns=LONG / 4, timer="cuda_graph"),
        planted("both", 1.15),
        Time(factor=1.15, cell="*case=host", side="target", timer="simulated"),
    ),
)


def blocks(result: Result) -> list[Block]:
    assert result.folder is not None
    return runfolder.read(result.folder)[1]


def opened(call: float, host: float = 0.0) -> wire.Opened:
    return wire.Opened("ok", call_ns=call, host_ns=host)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            [opened(5e4, 4e4), opened(5e4, 6e4)],
            "launch-bound: the host needs 60.0 us to enqueue a call that spans 50.0 us",
        ),
        ([opened(3e4, 1e4), opened(1.5e4, 1e4)], "launch-bound: a call spans 15.0 us, less than 20"),
        ([opened(3e4, 1e4), opened(2e4, 1e4)], ""),
        ([opened(6e7, 9e7), opened(6e7, 9e7)], ""),
        ([opened(0.0, 9e7), opened(1e4, 9e7)], ""),
    ],
)
def test_what_is_launch_bound(calls: list[wire.Opened], said: str) -> None:
    assert launch_bound(calls) == said


def test_a_launch_bound_cell_tells_the_devices_part_beside_the_verdict_of_its_span(new_lab: NewLab) -> None:
    result = new_lab(BOUND).abprof("main", "fast")
    assert result.table() == {"w/case=both": "slower", "w/case=host": "slower", "free/case=a": "same"}
    both, host, free = (result.row(id) for id in ("w/case=both", "w/case=host", "free/case=a"))
    assert (both.metric, both.pct, both.graph_pct) == ("gpu_span", pytest.approx(15.0), pytest.approx(15.0))
    assert (host.metric, host.pct, host.graph_pct) == ("gpu_span", pytest.approx(15.0), pytest.approx(0.0))
    assert host.graph_low_pct == pytest.approx(0.0) == host.graph_high_pct
    assert (free.graph_pct, free.graph_low_pct) == (None, None)
    seen = {(o.cell, o.arm): o for o in result.run.observations}
    assert seen["w/case=host", "base"].metrics[GPU_GRAPH].value == pytest.approx(LONG / 4)
    assert seen["w/case=host", "base"].metrics["host"].value == pytest.approx(2 * LONG)
    assert seen["w/case=host", "base"].uncaptured == ""
    assert not {GPU_GRAPH, "host"} & set(seen["free/case=a", "base"].metrics)
    beside = [block for block in blocks(result) if block.beside]
    assert {block.cell for block in beside} == {"w/case=both", "w/case=host"}
    assert {block.timer for block in beside} == {"cuda_graph"}
    assert all(block.rule.startswith("launch-bound: the host needs 40000.0 us") for block in beside)


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", ["uncaptured", "uncaptured:1"])
def test_what_cannot_be_captured_is_a_typed_reason_and_costs_no_verdict(new_lab: NewLab, spoiled: str) -> None:
    faults = [broken(spoiled, "host", side="target", verb="capture", text="the call waits for the device")]
    result = new_lab(replace(BOUND, faults=faults)).abprof("main", "fast")
    assert result.table() == {"w/case=both": "slower", "w/case=host": "slower", "free/case=a": "same"}
    assert result.row("w/case=host").graph_pct is None
    assert result.row("w/case=both").graph_pct == pytest.approx(15.0)
    seen = {o.arm: o for o in result.run.observations if o.cell == "w/case=host"}
    assert seen["target"].uncaptured == "host_sync: the call waits for the device"
    assert seen["base"].uncaptured.startswith("not timed in a CUDA graph: target cannot be captured: host_sync")
    assert {one.status for one in seen.values()} == {"ok"}
    tried = [block for block in blocks(result) if block.beside and block.cell == "w/case=host"]
    assert [block.epoch for block in tried] == [1], "once in a run"


@pytest.mark.slow
def test_a_workload_whose_calls_cannot_be_captured_is_not_tried_for_ever(new_lab: NewLab) -> None:
    four = {"w": load(list("abcd"), judge="gpu", host_ns=2 * LONG)}
    faults = [broken("uncaptured", "*", verb="capture", text="it syncs")]
    result = new_lab(Scenario(workloads=four, times=times(), faults=faults)).abprof("main", "fast")
    said = sorted(o.uncaptured for o in result.run.observations if o.arm == "base")
    assert said == ["host_sync: it syncs"] * 3 + [f"not tried: {NOT_TRIED}"]


@pytest.mark.slow
@pytest.mark.parametrize("more", [("--timer", "events"), ("--quick",)])
def test_nothing_is_captured_where_it_was_not_asked_for(new_lab: NewLab, more: tuple[str, ...]) -> None:
    result = new_lab(BOUND).abprof("main", "fast", *more)
    assert not any(block.beside for block in blocks(result))


def test_a_graph_that_runs_a_part_of_the_call_has_no_time() -> None:
    """The rest went to a stream that was not captured, and the graph would look fast."""
    census = Census(launches=(Launch(name="k", count=2, ns=1e3), Launch(name="l", count=1, ns=1e3)), on_device=True)
    ratios = {"base": 1.0, "target": 1.1}
    own = [
        block(epoch, ratios, status=dict.fromkeys(ratios, Outcome(status="ok", census=census)))
        for epoch in (1, 2, 3, 4)
    ]
    for nodes, reason in ((2, "part: the graph of target runs 2 of the 3 that a call launches"), (3, "")):
        more = {"metric": GPU_GRAPH, "beside": True, "nodes": {"base": 3, "target": nodes}}
        item = gather(head(), [*own, *(block(epoch, ratios, **more) for epoch in (1, 2, 3, 4))])["dense/n=0"]
        assert (item.uncaptured("base"), item.uncaptured("target")) == (reason, reason)
        assert len(item.epoch_graphs("base", "target")) == (0 if reason else 4)


# ---------------------------------------------------------------- the timer that was asked for

ASKED = replace(
    BOUND,
    workloads={"w": load(["both", "host"], judge="wall")},
    times=[*BOUND.times, Time(ns=LONG / 5, timer="cupti, added"), planted("both", 1.15)],
    packages={"cupti-python": "13.0.1"},
)


@pytest.mark.parametrize(
    ("timer", "metric", "ns"),
    [("graph", GPU_GRAPH, LONG / 4), pytest.param("cupti", "gpu_kernels", LONG / 5, marks=pytest.mark.slow)],
)
def test_a_timer_that_is_asked_for_judges_every_cell(new_lab: NewLab, timer: str, metric: str, ns: float) -> None:
    lab = new_lab(ASKED)
    result = lab.abprof("main", "fast", "--timer", timer)
    assert result.table() == {"w/case=both": "slower", "w/case=host": "same"}
    assert {row.metric for row in result.run.comparisons} == {metric}
    assert not any(block.beside for block in blocks(result))
    seen = next(o for o in result.run.observations if (o.cell, o.arm) == ("w/case=host", "base"))
    assert seen.metrics[metric].value == pytest.approx(ns)
    assert (result.run.settings.timer, result.run.workloads[0].judge) == (timer, {"cupti": "kernels"}.get(timer, timer))
    assert result.folder is not None
    page = (result.folder / "report.md").read_text()
    assert f"{timer}: " in page
    again = lab.command("rerun", str(result.folder), "--only", "*case=host", "--repo", str(lab.repo.path))
    assert {row.metric for row in again.run.comparisons} == {metric}, again.err


@pytest.mark.parametrize(("timer", "profiled"), [("graph", True), ("cupti", False)])
def test_torchs_profiler_runs_in_no_process_that_cupti_times(new_lab: NewLab, timer: str, profiled: bool) -> None:
    """After it CUPTI's records are in ticks of the processor's counter: on an H200 1.011 ms were told as 2.123."""
    result = new_lab(ASKED).abprof("main", "fast", "--timer", timer)
    told = {o.census is not None for block in blocks(result) for o in block.outcomes.values()}
    assert told == ({True, False} if profiled else {False})


@pytest.mark.slow
def test_one_side_without_graphs_leaves_its_cell_unsupported_and_no_side_broken(new_lab: NewLab) -> None:
    faults = [broken("uncaptured:1", "host", side="target", verb="capture", text="the call waits for the device")]
    result = new_lab(replace(ASKED, faults=faults)).abprof("main", "fast", "--timer", "graph")
    assert result.table() == {"w/case=both": "slower", "w/case=host": "unclear"}
    assert result.row("w/case=host").reasons == ("unsupported",)
    assert result.status("w/case=host", "target") == ("unsupported", "host_sync: the call waits for the device")
    status, reason = result.status("w/case=host", "base")
    assert (status, reason.startswith("not timed in a CUDA graph: target cannot be captured")) == ("unsupported", True)


def test_cuptis_timer_without_cupti_says_how_to_get_it(new_lab: NewLab) -> None:
    result = new_lab(replace(ASKED, packages={"torch": "2.13.0"})).abprof("main", "fast", "--timer", "cupti")
    assert result.code == 2
    assert "--timer: cupti-python is not installed for base" in result.err
    assert "-m pip install cupti-python" in result.err


def test_a_cpu_has_no_such_timers(new_lab: NewLab) -> None:
    lab = new_lab(ASKED)
    result = lab.command("run", "main", "fast", "--repo", str(lab.repo.path), "--device", "cpu", "--timer", "graph")
    assert (result.code, "graph times a GPU" in result.err) == (2, True), result.err


@pytest.mark.slow
def test_abprof_toml_names_the_timer_and_the_command_line_another(new_lab: NewLab) -> None:
    lab = new_lab(ASKED)
    lab.repo.write({"abprof.toml": 'schema = 1\n[defaults]\ntimer = "cupti"\n'})
    assert lab.abprof("main", "fast", "--quick").run.settings.timer == "cupti"
    assert lab.abprof("main", "fast", "--quick", "--timer", "events").run.settings.timer == "events"


def test_an_old_run_was_of_auto_and_has_no_graphs() -> None:
    run, old, _ = runfolder.read(Path(__file__).parent / "data" / "run_schema1")
    assert run.settings.timer == "auto"
    assert all(row.graph_pct is None for row in run.comparisons)
    assert all(block.judged and not block.nodes for block in old)
