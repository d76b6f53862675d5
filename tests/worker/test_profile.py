"""A profiled pass: counted calls, launches of a call, NVTX ranges, Triton's compilations, and ceilings."""

import hashlib
import inspect
import json
import sys
import time
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from abprof.records import messages as wire
from abprof.worker import bench as benches
from abprof.worker import main, profile
from abprof.worker.api import Op
from abprof.worker.bench import Bench, ceilings
from abprof.worker.clocks import clock
from abprof.worker.compiles import Watch, chosen
from abprof.worker.profile import Ran

HOST, DEVICE = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
SPANS = [(0, 100), (200, 300)]


def ran(name: str, at: int, ns: int = 10, grid: tuple[int, ...] = ()) -> Ran:
    return Ran(name, at, at, ns, (grid, (), None, None))


def span(name: str, start: int, end: int) -> Ran:
    """A range of the host."""
    return Ran(name, start, start, end - start)


class Raw:
    """One of Kineto's events: ns, and methods where the profiler's own have attributes."""

    def __init__(self, name: str, start: int, length: int, *, device: bool = False, correlation: int = 0) -> None:
        self.name = lambda: name
        self.start_ns = lambda: start
        self.duration_ns = lambda: length
        self.correlation_id = lambda: correlation
        self.device_type = lambda: DEVICE if device else HOST


# ---------------------------------------------------------------- the census


def test_launches_are_counted_by_name_and_grid() -> None:
    calls = [[ran("k", at + 1, grid=(8, 1, 1)), ran("k", at + 20, grid=(8, 1, 1)), ran("k", at + 40, grid=(2, 1, 1))]
             for at, _ in SPANS]  # fmt: skip
    found = profile.census([*calls[0], *calls[1], ran("flush", 150)], SPANS)
    assert not found.missing
    assert [(one.name, one.grid, one.count, one.ns) for one in found.launches] == [
        ("k", (8, 1, 1), 2, 20), ("k", (2, 1, 1), 1, 10)]  # fmt: skip
    assert profile.census([ran("k", 1), ran("k", 201), ran("k", 220)], SPANS) == wire.Census(missing=profile.DIFFER)
    assert profile.census([ran("k", 1)], []).missing


def test_time_beside_another_kernel_is_hidden() -> None:
    assert profile.hidden([ran("a", 0, 100), ran("b", 50, 30), ran("c", 90, 60)]) == 30 + 10


def test_a_name_launched_as_often_as_it_ran_is_matched_in_order_and_a_replayed_graph_if_it_is_one_kernel() -> None:
    found = profile.identified([ran("k", 30), ran("k", 10), ran("other", 20)], [("k", "k[1]"), ("k", "k[2]")])
    assert [(one.at, one.key) for one in found] == [(10, "k[1]"), (20, ""), (30, "k[2]")]
    seen = [ran("k", 10), ran("k", 20), ran("k", 30)]
    assert {one.key for one in profile.identified(seen, [("k", "k[1]")])} == {"k[1]"}
    assert {one.key for one in profile.identified(seen, [("k", "k[1]"), ("k", "k[2]")])} == {""}


def test_a_range_has_its_own_time_without_that_of_ranges_inside() -> None:
    marked = [span("outer", at, at + 90) for at, _ in SPANS]
    marked += [span("run", at + begin, at + begin + 20) for at, _ in SPANS for begin in (10, 50)]
    marked += [span("reset", 150, 160)]  # between calls
    assert profile.ranges_of(marked, SPANS) == (wire.Range("outer", 1, 50.0), wire.Range("run", 2, 40.0))
    assert profile.ranges_of([span("run", 1, 2)], SPANS) is None, "calls differ"
    marked = [span("outer", 0, 90), span("run", 10, 30), span("run", 50, 70)]
    kernels = [ran("k", at, ns) for at, ns in ((5, 1000), (20, 7000), (40, 2000), (60, 7000), (80, 4000), (95, 10**9))]
    assert profile.ranges_of(marked, SPANS[:1], kernels) == (wire.Range("outer", 1, 7e3), wire.Range("run", 2, 14e3))


def test_a_launch_has_the_phases_around_it_the_outermost_first() -> None:
    marked = [span("r.all", 0, 90), span("r.inner", 10, 30), span("foreign", 12, 20), span("r.inner", 50, 70)]
    kernels = [ran("k", at) for at in (5, 20, 40, 70, 71, 95)]
    found = profile.placed(kernels, marked, {"all": "r.all", "inner": "r.inner", "never": "r.never"})
    assert [one.phases for one in found] == [("all",), ("all", "inner"), ("all",), ("all", "inner"), ("all",), ()]


def test_launches_are_counted_by_phase_and_without_phases_where_calls_differ_in_them() -> None:
    calls = [span("abprof_call", at, end) for at, end in SPANS]
    runs = [span("r", at + 10, at + 20) for at, _ in SPANS]
    kernels = [ran("k", at + 15) for at, _ in SPANS] + [ran("k", at + 40, 30) for at, _ in SPANS]
    found = profile.read([*calls, *runs], kernels, {"run": "r"}, 0).census
    assert [(one.name, one.phases, one.count, one.ns) for one in found.launches] == [
        ("k", ("run",), 1, 10), ("k", (), 1, 30)]  # fmt: skip
    # Another thread launches the second kernel: in the phase, and after it.
    found = profile.read(
        [*calls, *runs], [ran("k", 15), ran("k", 18), ran("k", 215), ran("k", 240)], {"run": "r"}, 0
    ).census
    assert [(one.name, one.phases, one.count) for one in found.launches] == [("k", None, 2)]


# ---------------------------------------------------------------- Kineto's events of a GPU


def device_pass(*, shown: bool = True, kernels: int = 1) -> list[Raw]:
    """One pass on a device: abprof's own kernel first, then three calls that launch so many kernels each."""
    events = [Raw(profile._SHOWN, 0, 100), Raw("cudaLaunchKernel", 10, 5, correlation=900)]
    events += [Raw("fill", 40, 5, device=True, correlation=900)] if shown else []
    for call in range(3):
        at = 1000 * (call + 1)
        events += [Raw("abprof_call", at, 900), Raw("run", at + 5, 300), Raw("run", at + 500, 70, device=True)]
        for i in range(kernels):
            correlation = 10 * call + i + 1
            events.append(Raw("cuLaunchKernelEx", at + 10 + i, 5, correlation=correlation))
            events.append(Raw("k", at + 2000, 50, device=True, correlation=correlation))  # runs after the call's end
    return events


def read(events: list[Raw], launched: Any = (), **geometry: Any) -> wire.Phased:
    labels = {"run": "run", "store": "store"}
    trace = {"traceEvents": [{"cat": "kernel", "args": {"correlation": n, **geometry}} for n in range(900)]}
    return profile.read(*profile._device_events(events, launched, labels, trace), labels, 1, on_device=True)


def test_a_kernel_belongs_to_the_call_and_range_that_launched_it() -> None:
    geometry = {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 40}
    found = read(device_pass(kernels=2), [("k", "k[0]")] * 6, **geometry)
    [launch] = found.census.launches
    assert (launch.name, launch.count, launch.compiled, launch.grid) == ("k", 2, "k[0]", (4, 1, 1))
    assert launch.phases == ("run",)
    assert (launch.registers, found.census.ranges) == (40, (wire.Range("run", 1, 100.0),))
    assert (found.phases, found.total) == ({"run": 100.0, "store": None}, 100.0)


def test_a_call_without_launches_differs_from_a_blind_profiler() -> None:
    nothing = read(device_pass(kernels=0)).census
    assert (nothing.launches, nothing.missing) == ((), "")
    assert read(device_pass(shown=False, kernels=0)).census.missing == profile.UNSEEN


# ---------------------------------------------------------------- real passes on a CPU


def profiled(op: Op, ranges: dict[str, str], calls: int, discarded: int) -> wire.Phased:
    return profile.phases(op, ranges, wire.Phases("base", calls, discarded), clock("cpu"), Watch())


def test_on_a_cpu_the_outermost_operations_and_all_ranges_are_counted() -> None:
    x = torch.randn(64)

    def call() -> None:
        with record_function("load"):
            y = x.clone()
        with record_function("store"), record_function("load"):
            torch.softmax(y, 0).add_(1)
        y.sum()

    phased = profiled(Op(call), {"load": "load", "kept": "store"}, 3, 1)
    phases = {one.name: one.phases for one in phased.census.launches}
    stored = ("kept", "load")
    assert phases == {"aten::clone": ("load",), "aten::softmax": stored, "aten::add_": stored, "aten::sum": ()}
    counted = {one.name: one.count for one in phased.census.launches}
    assert counted == {"aten::clone": 1, "aten::softmax": 1, "aten::add_": 1, "aten::sum": 1}
    assert phased.census.hidden_ns == 0
    assert {one.name: one.count for one in phased.census.ranges or []} == {"load": 2, "store": 1}


def test_an_unreadable_pass_costs_the_cell_nothing_and_no_hook_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs: Any = pytest.importorskip("triton.knobs")
    before, during = list(knobs.runtime.launch_enter_hook.calls), []

    def call() -> None:
        during.append(len(knobs.runtime.launch_enter_hook.calls))

    def torn(*_: Any) -> None:
        raise AttributeError("no attribute time_range")

    with pytest.raises(ZeroDivisionError):
        profiled(Op(lambda: 1 / 0), {}, 1, 0)
    monkeypatch.setattr(profile, "_host_events", torn)  # as another version of torch may
    phased = profiled(Op(call), {"load": "load"}, 1, 0)
    assert phased.census.missing == "the profiled pass could not be read: AttributeError: no attribute time_range"
    assert (during, list(knobs.runtime.launch_enter_hook.calls)) == ([len(before) + 1], before)


# ---------------------------------------------------------------- a pass kept as a file


def test_a_trace_has_no_folders_of_the_machine_and_a_limited_size(tmp_path: Path) -> None:
    names = ["a/b/c", "void at::f<float>(x)", "https://x.y/z/a", "x / y"]
    events: list[dict[str, Any]] = [{"name": name, "ts": 5, "ph": "X"} for name in names]
    events += [{"name": f"at /home/me/some/kernel_{i}.py(3)", "ph": "X", "ts": -i} for i in range(100)]
    events.append({"ph": "M", "name": "process_name", "args": {"name": "python", "file": "/opt/x/y.py"}})
    raw, target = {"traceName": "/tmp/x/t.json", "traceEvents": events, "schemaVersion": 1}, tmp_path / "target"
    assert profile.write_chrome(raw, target, 10**6) == 0
    text = target.read_text()
    assert not any(folder in text for folder in ("/home", "/opt", "/tmp"))
    assert [event["name"] for event in json.loads(text)["traceEvents"]][-5:] == ["at kernel_0.py(3)", *names]
    left_out = profile.write_chrome(raw, target, 2000)
    kept = json.loads(target.read_text())["traceEvents"]
    assert target.stat().st_size <= 2000
    assert left_out == 105 - len(kept) > 0
    assert (kept[0]["ph"], kept[1]["ts"]) == ("M", -99), "names of threads, then the first in time"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_real_profile_is_written_with_its_operations(tmp_path: Path, device: str) -> None:
    x, target = torch.randn(64, device=device), tmp_path / "t.json"
    request = wire.Phases("base", 3, 1, target.name, 10**7)
    phased = profile.phases(Op(lambda: torch.exp(x + 1)), {}, request, clock(device), Watch(), target)
    assert (phased.census.missing, phased.left_out) == ("", 0)
    assert [launch.count for launch in phased.census.launches] == [1, 1]
    assert json.loads(target.read_text())["traceEvents"]
    assert "/tmp" not in target.read_text()


# ---------------------------------------------------------------- Triton


def test_compiles_are_counted_cache_hits_recorded_and_launches_identified(tmp_path: Path) -> None:
    knobs: Any = pytest.importorskip("triton.knobs")
    compiler = pytest.importorskip("triton.compiler.compiler")
    cubin = tmp_path / "k.cubin"
    cubin.write_bytes(b"machine code")
    watch = Watch()
    for hash, hit, group in (("a" * 64, False, {"fwd.json": "x", "fwd.cubin": str(cubin)}), ("b" * 64, True, None)):
        metadata = {"name": "fwd", "hash": hash, "shared": 1024, "num_warps": 4}
        source, times = SimpleNamespace(name="fwd"), SimpleNamespace(total=1_500_000)
        watch._compiled(src=source, metadata=metadata, metadata_group=group, times=times, cache_hit=hit)
    assert watch.count == 1
    hashes = {key: made.sha256 for key, made in watch.kernels.items()}
    assert hashes == {"fwd[aaaaaaaa]": hashlib.sha256(b"machine code").hexdigest(), "fwd[bbbbbbbb]": "b" * 64}
    assert watch.kernels["fwd[aaaaaaaa]"].summary() == "compiled in 1.50 s, 1024 B shared, 4 warps"
    spoken = set(inspect.signature(knobs.CompilationListener.__call__).parameters) - {"self"}
    assert spoken == set(inspect.signature(watch._compiled).parameters), "as the installed Triton calls it"
    watch._loaded(None, 7, "k", {}, "a" * 64)
    with watch.launches() as seen:
        knobs.runtime.launch_enter_hook(compiler.LazyDict({"name": "k", "function": 7, "stream": 0}))
        knobs.runtime.launch_enter_hook(compiler.LazyDict({"name": "other", "function": 8, "stream": 0}))
    assert seen == [("k", "k[aaaaaaaa]"), ("other", "")]


def test_the_autotuners_choice_is_read_from_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    triton: Any = pytest.importorskip("triton")

    def kernel(x: Any, BLOCK: Any) -> None: ...

    configs = [triton.Config({"BLOCK": size}, num_warps=4) for size in (64, 128)]
    tuned = triton.autotune(configs, key=[])(triton.jit(kernel))
    tuned.best_config = configs[1]
    module = types.ModuleType("abprof_side.tuned")
    module.__dict__.update(tuned=tuned, plain=triton.jit(kernel))
    monkeypatch.setitem(sys.modules, "abprof_side.tuned", module)
    [found] = chosen([wire.Launch("kernel", 1, 5.0)], "abprof_side.tuned")
    assert found.choice.split(",")[0] == "BLOCK: 128"
    [other] = chosen([wire.Launch("kernel", 1, 5.0)], "abprof_side.other")
    assert other.choice == ""


# ---------------------------------------------------------------- NVTX

KERNEL = """
import torch
from torch.profiler import record_function

def double(x):
    with record_function("tiny_run"):
        return x * 2
"""
WORKLOAD = """
import torch
from abprof.kit import Op, compare
API = 1
KERNEL = "tiny"
PRESETS = {"default": {"n": [4]}}
PHASES = {"run": ("tiny_run", "the kernel")}
PEERS = {"torch": lambda case, x: Op(lambda: x + x)}
def inputs(case, device, seed):
    return torch.ones(case["n"], device=device)
def prepare(kernel, variant, case, x):
    return Op(lambda: kernel.double(x))
def nvtx(case, arm):
    if case["n"] == 5:
        raise RuntimeError("no names for five")
    return [f"bench_{arm or 'tiny'}_N{case['n']}", "forward_pass"]
def reference(case, x):
    return x * 2
def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-6, atol=0)
"""


def nested(names: list[str], inside: list[str]) -> list[str]:
    """Return the recording of ranges with these names, the first outermost."""
    ends = [text for name in reversed(names) for text in (")", ">" + name)]
    return [*(text for name in names for text in ("<" + name, "(" + name)), *inside, *ends]


CALL = nested(["abprof_call", "bench_tiny_N4", "forward_pass"], nested(["tiny_run"], []))


class Recorder:
    """Records NVTX: `(` push, `)` pop, `<` start, `>` end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        patch.setattr(torch.cuda.nvtx, "mark", lambda _text: None)
        for name, sign in {"range_push": "(", "range_pop": ")", "range_start": "<", "range_end": ">"}.items():
            patch.setattr(torch.cuda.nvtx, name, partial(self.record, sign))

    def record(self, sign: str, text: str = "") -> str:
        self.seen.append(sign + text)
        return text


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The worker's own part in this process, with the ranges it makes on a GPU."""
    (tmp_path / "kernels" / "tiny").mkdir(parents=True)
    (tmp_path / "kernels" / "tiny" / "__init__.py").write_text(KERNEL)
    (tmp_path / "good.py").write_text(WORKLOAD)
    mount = wire.Mount("tiny", str(tmp_path / "kernels"), "abprof_side.tiny", str(tmp_path), [str(tmp_path)])
    made = Bench(wire.Start(request.param, "base", mount, {"good": str(tmp_path / "good.py")}, str(tmp_path)))
    if request.param == "cpu":
        on_gpu = SimpleNamespace(clock=SimpleNamespace(kind="cuda"), module=made.module)
        monkeypatch.setattr(made, "marked", lambda of: Bench.marked(on_gpu, of))  # type: ignore[arg-type]
    before, known = vars(record_function).copy(), set(sys.modules)
    yield made
    for name in set(sys.modules) - known:
        if name.startswith("abprof_"):  # other tests' proofs list loaded files
            del sys.modules[name]
    assert vars(record_function) == before


@pytest.mark.parametrize("keep", [False, True])
def test_a_profiled_pass_is_marked_and_a_turn_is_not(bench: Bench, recorder: Recorder, keep: bool) -> None:
    bench.open(wire.Open("good", {"n": 4}, "base", seed=1))
    assert recorder.seen == []
    if keep:
        bench.phases(wire.Phases("base", 2, 1, "kept.json", 10**6))
    else:
        phased = bench.phases(wire.Phases("base", 2, 1))
        assert phased.phases["run"] is not None
        assert not phased.census.missing
    seen = [text for text in recorder.seen if "abprof_shown" not in text]
    if bench.clock.kind == "cuda":  # the kernel that the profiler is shown, first of all
        del seen[seen.index(")")]
    assert seen == nested(["good/n=4", "base"], 3 * CALL)
    recorder.seen.clear()
    on_gpu = bench.clock.kind == "cuda"
    for timer in ("sustained", "wall_clock", "cuda_event") if on_gpu else ("wall_clock", "cpu_clock"):
        assert bench.turn(wire.Turn("base", 3, timer, placement=1)).value > 0
    assert recorder.seen == []


def test_a_peer_is_named_and_a_workload_without_names_costs_the_pass_nothing(bench: Bench, recorder: Recorder) -> None:
    bench.open(wire.Open("good", {"n": 4}, "peer:torch", peer="torch", seed=1))
    bench.phases(wire.Phases("peer:torch", 2, 1))
    outer = [text for text in recorder.seen if text.startswith("(") and "abprof" not in text]
    assert outer == ["(good/n=4", "(peer:torch", *(3 * ["(bench_torch_N4", "(forward_pass"])]
    recorder.seen.clear()
    bench.open(wire.Open("good", {"n": 5}, "base", seed=1))
    assert not bench.phases(wire.Phases("base", 2, 1)).census.missing
    assert recorder.seen[:3:2] == ["<good/n=5", "<base"]


def test_a_foreground_run_reports_in_a_file_and_is_not_marked_on_a_cpu(recorder: Recorder, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(WORKLOAD)
    start = wire.Start("cpu", "base", None, {"good": str(tmp_path / "good.py")}, str(tmp_path))
    reported = tmp_path / "profile.json"
    job = wire.Foreground(start, wire.Open("good", {"n": 4}, "base", peer="torch", seed=1), 1, 2, str(reported))
    (tmp_path / "job.json").write_bytes(wire.dump(wire.pack(job)))
    assert main.foreground(tmp_path / "job.json") == 0
    assert wire.load(reported.read_bytes())["status"] == "ok"
    assert recorder.seen == []
    for name in [name for name in sys.modules if name.startswith("abprof_")]:
        del sys.modules[name]


def test_ranges_end_on_an_error_and_nest_when_entered_again(recorder: Recorder) -> None:
    @record_function("outer")
    def down(depth: int) -> None:
        if not depth:
            raise ValueError("at the bottom")
        down(depth - 1)

    before = record_function("before")
    before.__enter__()

    def both() -> None:
        before.__exit__(None, None, None)  # opened before: not ended as ours
        down(1)

    with pytest.raises(ValueError, match="at the bottom"), profile.nvtx(["cell\n\udc80é"]):
        both()
    cell = r"cell" + "\n" + r"\udc80\xe9"
    inner = ["<outer", "(outer", "<outer", "(outer", ")", ">outer", ")", ">outer"]
    assert recorder.seen == ["<" + cell, "(" + cell, *inner, ")", ">" + cell]


# ---------------------------------------------------------------- ceilings


def test_a_cpus_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "SIZE", {"cpu": 512})
    monkeypatch.setattr(benches, "MIB", {"cpu": 16})
    found = ceilings(clock("cpu"))
    assert 1e-4 < (found.tflops or 0) < 100
    assert 0.05 < (found.gbps or 0) < 5000
    assert found.tflops_by.startswith("float32 matrix products of 512 x 512 x 512 on ")
    assert "MiB, bytes read and written on" in found.gbps_by
    monkeypatch.setattr(benches, "MIB", {"cpu": 1 << 40})
    assert ceilings(clock("cpu")).gbps is None, "no room"


@pytest.mark.gpu
@pytest.mark.alone
def test_a_gpus_ceilings() -> None:
    device = clock("cuda")
    ceilings(device)  # loads the libraries
    began = time.monotonic()
    found = ceilings(device)
    assert time.monotonic() - began < 2.0
    assert found.tflops is not None
    assert found.gbps is not None
    if "H200" in torch.cuda.get_device_name():
        assert 500 < found.tflops < 990, "989 is the data sheet's, dense"
        assert 3500 < found.gbps < 4800, "4800 is the data sheet's"
