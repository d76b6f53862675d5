"""Calls in CUDA graphs: beside a launch-bound cell's own turns, and as the timer that was asked for (abprof/graphed.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from abprof import runfolder, wire
from abprof.graphed import NOT_TRIED, launch_bound
from abprof.model import GPU_GRAPH, Block
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
