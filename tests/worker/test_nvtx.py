"""NVTX ranges of the passes that are not timed turns: which, in which order, and none in a turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from abprof.records import messages as wire
from abprof.worker import foreground, nvtx
from abprof.worker.bench import Bench

KERNEL = """
import torch
from torch.profiler import record_function

def double(x):
    with record_function("tiny_prepare"):
        y = torch.empty_like(x)
    with record_function("tiny_run"):
        return torch.mul(x, 2, out=y)
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
PHASES = ["<tiny_prepare", "(tiny_prepare", ")", ">tiny_prepare", "<tiny_run", "(tiny_run", ")", ">tiny_run"]


def nested(names: list[str], inside: list[str]) -> list[str]:
    """What the recorder below sees of ranges of these names, the first outermost."""
    ends = [text for name in reversed(names) for text in (")", ">" + name)]
    return [*(text for name in names for text in ("<" + name, "(" + name)), *inside, *ends]


CALL = nested(["abprof_call", "bench_tiny_N4", "forward_pass"], PHASES)


class Recorder:
    """NVTX that keeps what it is told: `(` push, `)` pop, `<` start, `>` end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        for name in ("mark", "range_push", "range_pop", "range_start", "range_end"):
            patch.setattr(torch.cuda.nvtx, name, getattr(self, name))

    def mark(self, _text: str) -> None:
        pass

    def range_push(self, text: str) -> None:
        self.seen.append("(" + text)

    def range_pop(self) -> None:
        self.seen.append(")")

    def range_start(self, text: str) -> str:
        self.seen.append("<" + text)
        return text

    def range_end(self, handle: str) -> None:
        self.seen.append(">" + handle)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """The worker's own part in this process, with the marks it makes on a GPU."""
    (tmp_path / "kernels" / "tiny").mkdir(parents=True)
    (tmp_path / "kernels" / "tiny" / "__init__.py").write_text(KERNEL)
    (tmp_path / "good.py").write_text(WORKLOAD)
    mount = wire.Mount("tiny", str(tmp_path / "kernels"), "abprof_side.tiny", str(tmp_path), [str(tmp_path)])
    made = Bench(wire.Start(request.param, "base", mount, {"good": str(tmp_path / "good.py")}, str(tmp_path)))
    made.marks = nvtx.around
    before, known = vars(record_function).copy(), set(sys.modules)
    yield made
    for name in set(sys.modules) - known:
        if name.startswith(
            "abprof_"
        ):  # the package under test and the workload: other tests' proofs list what is loaded
            del sys.modules[name]
    assert vars(record_function) == before


def opened(bench: Bench, n: int = 4, arm: str = "base", peer: str = "") -> None:
    bench.open(wire.Open("good", {"n": n}, arm, peer=peer, seed=1))


@pytest.mark.parametrize("keep", [False, True])
def test_a_profiled_pass_is_marked_by_cell_arm_call_and_phase(bench: Bench, recorder: Recorder, keep: bool) -> None:
    opened(bench)
    assert recorder.seen == []  # nothing of it in what an epoch's opening times
    if keep:
        bench.trace(wire.Trace("base", "kept.json", 2, 1, 10**6))
    else:
        phased = bench.phases(wire.Phases("base", 2, 1))
        assert phased.phases["run"] is not None
        assert not phased.census.missing
    seen = [text for text in recorder.seen if "abprof_shown" not in text]
    if bench.clock.kind == "cuda":  # the kernel that the profiler is shown, first of all
        place = seen.index(")")
        del seen[place]
    assert seen == nested(["good/n=4", "base"], 3 * CALL)


@pytest.mark.parametrize("bench", ["cpu"], indirect=True)
def test_run_cell_is_marked_but_for_the_call_that_compiles(
    bench: Bench, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvtx, "nothing", nvtx.around)
    told = tmp_path / "told.json"
    job = wire.Foreground(bench.start, wire.Open("good", {"n": 4}, "base", seed=1), 1, 2, str(told))
    (tmp_path / "job.json").write_bytes(wire.dump(wire.pack(job)))
    assert foreground.run(tmp_path / "job.json") == 0
    assert wire.load(told.read_bytes())["status"] == "ok"
    assert recorder.seen == nested(["good/n=4", "base"], 3 * CALL)


def test_a_turn_is_not_marked(bench: Bench, recorder: Recorder) -> None:
    opened(bench)
    bench.check(wire.Check("base", "expected", "sample"))
    bench.phases(wire.Phases("base", 2, 1))
    recorder.seen.clear()
    for timer in (
        ("sustained", "wall_clock", "cuda_event") if bench.clock.kind == "cuda" else ("wall_clock", "cpu_clock")
    ):
        assert bench.turn(wire.Turn("base", 3, timer, placement=1)).value > 0
    assert recorder.seen == []


def test_a_peer_is_named_as_one(bench: Bench, recorder: Recorder) -> None:
    opened(bench, arm="peer:torch", peer="torch")
    bench.phases(wire.Phases("peer:torch", 2, 1))
    outer = [text for text in recorder.seen if text.startswith("(") and "abprof" not in text]
    assert outer == ["(good/n=4", "(peer:torch", *(3 * ["(bench_torch_N4", "(forward_pass"])]


def test_names_that_a_workload_cannot_tell_cost_the_pass_nothing(
    bench: Bench, recorder: Recorder, capfd: pytest.CaptureFixture[str]
) -> None:
    opened(bench, n=5)
    assert not bench.phases(wire.Phases("base", 2, 1)).census.missing
    assert recorder.seen[:5:2] == [
        "<good/n=5",
        "<base",
        "<abprof_shown" if bench.clock.kind == "cuda" else "<abprof_call",
    ]
    assert "RuntimeError: no names for five" in capfd.readouterr().err


def test_a_pass_on_a_cpu_is_not_marked_where_its_host_times_would_have_it_in_them(recorder: Recorder) -> None:
    assert Bench(wire.Start("cpu", "base")).marks is nvtx.nothing
    with nvtx.nothing(["a"]), record_function("b"):
        pass
    assert recorder.seen == []


def test_a_torch_without_nvtx_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")

    for name in ("mark", "range_push", "range_pop"):
        monkeypatch.setattr(torch.cuda.nvtx, name, fails)
    enter = record_function.__enter__
    with nvtx.around(["a", "b"]), record_function("c"):
        assert record_function.__enter__ is enter


def test_ranges_end_whatever_is_raised_in_them_and_nest_when_entered_again(recorder: Recorder) -> None:
    @record_function("outer")
    def down(depth: int) -> None:
        if not depth:
            raise ValueError("at the bottom")
        down(depth - 1)

    with pytest.raises(ValueError, match="at the bottom"), nvtx.around(["cell\n\udc80é"]):
        down(1)
    cell = r"cell" + "\n" + r"\udc80\xe9"
    inner = ["<outer", "(outer", "<outer", "(outer", ")", ">outer", ")", ">outer"]
    assert recorder.seen == ["<" + cell, "(" + cell, *inner, ")", ">" + cell]


def test_a_range_that_was_open_before_is_not_ended_as_ours(recorder: Recorder) -> None:
    before = record_function("before")
    before.__enter__()
    with nvtx.around(["a"]):
        before.__exit__(None, None, None)
    assert recorder.seen == ["<a", "(a", ")", ">a"]
