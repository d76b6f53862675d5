"""What a call launched: counted exactly, told from what ran elsewhere, and not known where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from abprof.records import messages as wire
from abprof.worker import census, profile
from abprof.worker.api import Op
from abprof.worker.census import Ran
from abprof.worker.clocks import clock
from abprof.worker.compiles import Watch, choices
from tests.test_worker_profile import Raw

SPANS = [(0, 100), (200, 300)]


def ran(name: str, at: int, ns: int = 10, **more: Any) -> Ran:
    return Ran(name, at, at, ns, **more)


def test_launches_are_counted_by_name_and_grid() -> None:
    calls = [[ran("k", at + 1, grid=(8, 1, 1)), ran("k", at + 20, grid=(8, 1, 1)), ran("k", at + 40, grid=(2, 1, 1))]
             for at, _ in SPANS]  # fmt: skip
    found = census.census([*calls[0], *calls[1], ran("flush", 150)], SPANS)
    assert not found.missing
    assert [(one.name, one.grid, one.count, one.ns) for one in found.launches] == [
        ("k", [8, 1, 1], 2, 20), ("k", [2, 1, 1], 1, 10)]  # fmt: skip


def test_calls_that_differ_give_no_census() -> None:
    found = census.census([ran("k", 1), ran("k", 201), ran("k", 220)], SPANS)
    assert found == wire.Census(missing=census.DIFFER)
    assert census.census([ran("k", 1)], []).missing


def test_time_beside_another_kernel_is_hidden() -> None:
    assert census.hidden([ran("a", 0, 100), ran("b", 50, 30), ran("c", 90, 60)]) == 30 + 10
    assert census.hidden([ran("a", 0, 10), ran("b", 10, 10)]) == 0


def test_a_name_launched_as_often_as_it_ran_is_matched_in_order() -> None:
    seen = [ran("k", 30), ran("k", 10), ran("other", 20)]
    found = census.identified(seen, [("k", "k[1]"), ("k", "k[2]")])
    assert [(one.at, one.key) for one in found] == [(10, "k[1]"), (20, ""), (30, "k[2]")]


def test_a_replayed_graph_is_matched_only_where_there_is_one_kernel_of_the_name() -> None:
    seen = [ran("k", 10), ran("k", 20), ran("k", 30)]
    assert {one.key for one in census.identified(seen, [("k", "k[1]")])} == {"k[1]"}
    assert {one.key for one in census.identified(seen, [("k", "k[1]"), ("k", "k[2]")])} == {""}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": [{"cat": "kernel", "args": {"correlation": "x"}}]}'])
def test_a_trace_that_is_not_as_expected_tells_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(text)
    assert census.geometry(tmp_path / "trace.json") == {}


def test_a_trace_tells_grids() -> None:
    args = {"grid": [8, 1, 1], "block": "128", "registers per thread": 40, "shared memory": True}
    assert (census.dims(args, "grid"), census.dims(args, "block")) == ((8, 1, 1), ())
    assert (census.number(args, "registers per thread"), census.number(args, "shared memory")) == (40, None)


def device_pass(*, shown: bool = True, kernels: int = 1) -> list[Raw]:
    """One pass on a device: abprof's own kernel first, then three calls that launch so many kernels each."""
    events = [Raw(profile._SHOWN, 0, 100), Raw("cudaLaunchKernel", 10, 5, correlation=900)]
    events += [Raw("fill", 40, 5, device=True, correlation=900)] if shown else []
    for call in range(3):
        at = 1000 * (call + 1)
        events.append(Raw("abprof_call", at, 900))
        for i in range(kernels):
            correlation = 10 * call + i + 1
            events.append(Raw("cuLaunchKernelEx", at + 10 + i, 5, correlation=correlation))
            events.append(Raw("k", at + 2000, 50, device=True, correlation=correlation))  # runs after the call's end
    return events


def test_a_kernel_belongs_to_the_call_that_launched_it() -> None:
    geometry = {n: {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 40} for n in range(900)}
    launched = [("k", "k[0]")] * 6
    found = profile.device_census(device_pass(kernels=2), {}, launched, geometry, 1)
    [launch] = found.launches
    assert (launch.name, launch.count, launch.compiled, launch.grid, launch.registers) == (
        "k",
        2,
        "k[0]",
        [4, 1, 1],
        40,
    )


def test_a_call_that_launches_nothing_is_told_from_a_profiler_that_sees_nothing() -> None:
    nothing = profile.device_census(device_pass(kernels=0), {}, [], {}, 1)
    assert (nothing.launches, nothing.missing) == ([], "")
    assert profile.device_census(device_pass(shown=False, kernels=0), {}, [], {}, 1).missing == census.UNSEEN


def test_on_a_cpu_the_outermost_operations_are_counted() -> None:
    x = torch.randn(64)

    def call() -> None:
        with torch.profiler.record_function("load"):
            y = x.clone()
        torch.softmax(y, 0).add_(1)

    phased = profile.phases(Op(call), {"load": "load"}, 2, clock("cpu"), discarded=1)
    counted = {one.name: one.count for one in phased.census.launches}
    assert counted == {"aten::clone": 1, "aten::softmax": 1, "aten::add_": 1}
    assert phased.census.hidden_ns == 0


def test_a_pass_that_cannot_be_read_costs_the_cell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of torch may tell its events otherwise; what the operation itself raises is raised (below)."""

    def torn(*_: Any) -> None:
        raise AttributeError("no attribute time_range")

    monkeypatch.setattr(profile, "read_host", torn)
    phased = profile.phases(Op(lambda: None), {"load": "load"}, 1, clock("cpu"), discarded=0)
    assert (phased.phases, phased.total) == ({}, 0.0)
    assert phased.census.missing == "the profiled pass could not be read: AttributeError: no attribute time_range"


def test_no_hook_is_left_when_the_pass_is_over() -> None:
    """A turn must not call one."""
    knobs: Any = pytest.importorskip("triton.knobs")
    before, during = list(knobs.runtime.launch_enter_hook.calls), []

    def call() -> None:
        during.append(len(knobs.runtime.launch_enter_hook.calls))

    profile.phases(Op(call), {}, 1, clock("cpu"), discarded=0, watch=Watch())
    assert during == [len(before) + 1]
    assert knobs.runtime.launch_enter_hook.calls == before
    with pytest.raises(ZeroDivisionError):
        profile.phases(Op(lambda: 1 / 0), {}, 1, clock("cpu"), discarded=0, watch=Watch())
    assert knobs.runtime.launch_enter_hook.calls == before


def test_what_triton_launches_is_known_by_the_handle_it_was_loaded_with() -> None:
    knobs: Any = pytest.importorskip("triton.knobs")
    compiler = pytest.importorskip("triton.compiler.compiler")
    watch = Watch()
    watch._loaded(None, 7, "k", {}, "a" * 64)
    with watch.launches() as seen:
        knobs.runtime.launch_enter_hook(compiler.LazyDict({"name": "k", "function": 7, "stream": 0}))
        knobs.runtime.launch_enter_hook(compiler.LazyDict({"name": "other", "function": 8, "stream": 0}))
    assert seen == [("k", "k[aaaaaaaa]"), ("other", "")]


def test_the_autotuners_choice_is_read_from_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    triton: Any = pytest.importorskip("triton")
    import sys
    import types

    def kernel(x: Any, BLOCK: Any) -> None: ...

    configs = [triton.Config({"BLOCK": size}, num_warps=4) for size in (64, 128)]
    tuned = triton.autotune(configs, key=[])(triton.jit(kernel))
    tuned.best_config = configs[1]
    module = types.ModuleType("abprof_side.tuned")
    module.__dict__.update(tuned=tuned, plain=triton.jit(kernel), json=json)
    monkeypatch.setitem(sys.modules, "abprof_side.tuned", module)
    [(name, (choice, offered))] = choices("abprof_side.tuned").items()
    assert (name, choice.split(",")[0], len(offered)) == ("kernel", "BLOCK: 128", 16)
    assert choices("abprof_side.other") == {}
