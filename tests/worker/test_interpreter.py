"""Kernels that Triton's interpreter does not run by itself, measured through the command line on a machine without a GPU."""

import importlib.util
from pathlib import Path

import pytest

from tests.adopt.repositories import repository
from tests.tinyrepo import abprof

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="needs a machine without a GPU"),
]

KERNELS = """
import sys

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_wait
exp = tl.exp  # a copy of a function of the language

@triton.jit
def _copies(x, o, scale, WHAT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    if WHAT == "libdevice":
        v = libdevice.tanh(v) + libdevice.fast_expf(v) + libdevice.round(v)
    elif WHAT == "alias":
        gdc_wait()
        v = exp(v)
    elif WHAT == "float":
        v = v * scale.to(tl.float32)
    elif WHAT == "loop":
        for k in range(0, tl.load(x).to(tl.int32) + 3):
            v += k
    elif WHAT == "bfloat16":
        b = v.to(tl.bfloat16)
        v = (b * b - b + tl.maximum(b, -b)).to(tl.float32) + tl.sum(b, 0).to(tl.float32) + tl.max(b, 0).to(tl.float32)
        v += tl.cumsum(b, 0).to(tl.float32) + tl.where(b > 0, b, 0.5).to(tl.float32)
    elif WHAT == "rounded":
        v = (v * 1.01).to(tl.bfloat16).to(tl.float32)
    elif WHAT == "asm":
        v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1)
    elif WHAT == "popc":
        v = libdevice.popc(v.to(tl.int32)).to(tl.float32)
    tl.store(o + i, v)


_tuned = triton.autotune([triton.Config({"N": 64}), triton.Config({"N": 32})], key=[])(_copies)
@triton.jit
def _dot(x, o, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)
    v = tl.load(x + at).to(tl.bfloat16)
    tl.store(o + at, tl.dot(v, v))

@torch.compile(fullgraph=True)
def _fused(x):
    return x * 2 / 2

class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.device.type == "cuda" and torch.cuda.is_available()
        return run("list", x)

    @staticmethod
    def backward(ctx, dy):
        assert dy.is_cuda and dy.device.type == "cuda"
        return run("list", dy)

@triton.testing.perf_report(triton.testing.Benchmark(["n"], [1], "by", ["a"], ["a"], "plot", {}))
def benchmark(n, by):
    raise AssertionError("runs at import")

benchmark.run(print_data=True)

def run(what, x):
    o = torch.empty(x.shape, device="cuda" if what == "named" else x.device)
    if what in ("plain", "tuned"):
        _tuned[(1,)](x, o, 0.5, WHAT=what)
    elif what == "compiled":
        facts = triton.runtime.driver.active.utils.get_device_properties(0)
        kernel = _copies.warmup(x, o, 0.5, WHAT=what, N=64, grid=(1,))
        kernel._init_handles()
        kernel[(min(1, facts["max_num_regs"] // kernel.n_regs), 1, 1)](x, o, 0.5)
    elif what == "dot":
        _dot[(1,)](x, o, N=16)
    elif what == "device":
        assert x.is_cuda and torch.cuda.get_device_properties(x.device).multi_processor_count
        with torch.cuda.device(x.device), torch.cuda.device(x.device.index):
            _copies[(1,)](x, o, 0.5, WHAT=what, N=64)
    elif what == "backward":
        return _Backward.apply(x)
    elif what == "fused":
        return _fused(x)
    elif what == "torch":  # no kernel: whether the changes are there
        return torch.full_like(x, "abprof.worker.interpreter" in sys.modules)
    elif what == "list":
        _copies[lambda known: [1]](x, o, 0.5, WHAT=what, N=64)
    elif what == "empty":
        assert False
    elif what == "stream":
        torch.cuda.Stream()
    else:
        _copies[(1,)](x, o, 0.5, WHAT=what, N=64)
    return o
"""

WORKLOAD = '''
import os

import torch

from abprof.kit import Op, compare, directed
API, KERNEL = 1, "gaps"
WHAT = """libdevice alias float loop bfloat16 rounded dot plain tuned compiled device named list empty backward fused torch asm
popc stream""".split()
PRESETS = {"smoke": {"what": WHAT}, "default": {"what": WHAT}, "full": {"what": WHAT}}

def inputs(case, device, seed):
    generator = torch.Generator(device).manual_seed(seed)
    shape = (16, 16) if case["what"] == "dot" else (64,)
    return torch.rand(shape, generator=generator, device=device).bfloat16().float()

def gradients(x, function):
    return directed({"direction": "bwd"}, {"x": x, "dout": x}, function)

def prepare(kernel, variant, case, x):
    if case["what"] == "backward":
        return gradients(x, lambda inputs: kernel.run("backward", inputs["x"]))
    return Op(lambda: kernel.run(case["what"], x))

def reference(case, x):
    return {
        "libdevice": x.tanh() + x.exp() + (x + 0.5).floor(),
        "alias": x.exp(),
        "float": x * 0.5,
        "loop": x + 3,
        "bfloat16": x * x + x.sum() + x.max() + x.cumsum(0) + torch.where(x > 0, x, 0.5),
        "rounded": (x * 1.01).bfloat16().float(),
        "dot": x @ x if case["what"] == "dot" else x,
        "backward": gradients(x, lambda inputs: inputs["x"] * 1).call(),
        "torch": torch.full_like(x, "TRITON_INTERPRET" in os.environ),
    }.get(case["what"], x)

def check(case, outputs, expected):
    return compare(outputs, expected, rtol=2e-2 if case["what"] in ("bfloat16", "dot") else 1e-5, atol=1e-5)
'''
FILES = {"kernels/gaps/__init__.py": KERNELS, "workloads/gaps.py": WORKLOAD}


def observed(tmp_path: Path, *options: str, **env: str) -> dict[str, tuple[str, str]]:
    repo = repository(tmp_path / "repo", FILES)
    done = abprof("run", ".", "--quick", "--device", "cpu", "--json", *options, cwd=repo.path, home=tmp_path, **env)
    return {row["cell"].rpartition("=")[2]: (row["status"], row["reason"]) for row in done.run["observations"]}


@pytest.mark.slow  # one run of 17 kernels
def test_the_interpreters_gaps_are_closed_or_named(tmp_path: Path) -> None:
    found = observed(tmp_path, TRITON_INTERPRET="1")
    for what, lacks in {"asm": "inline_asm", "popc": "__nv_popc"}.items():
        reason = f"Triton's interpreter cannot run this ({lacks} not supported): run it on a GPU"
        assert found.pop(what) == ("unsupported", reason)
    assert found.pop("stream") == ("unsupported", "torch finds no GPU: run it on a GPU")
    where = "__init__.py, line "
    status, reason = found.pop("empty")
    assert (status, where in reason, reason.endswith(": assert False")) == ("crash", True, True), reason
    assert len(found) == 16
    assert found == dict.fromkeys(found, ("ok", ""))


@pytest.mark.slow  # the workers' Triton is another than above, and so is this run
def test_without_the_interpreter_nothing_is_changed_and_the_way_out_is_named(tmp_path: Path) -> None:
    found = observed(tmp_path, "--set", "what=torch,plain,float,stream")
    assert found.pop("torch") == ("ok", "")
    way_out = "finds no GPU: set TRITON_INTERPRET=1 to run Triton's kernels without one, in its interpreter"
    found = {what: (status, reason.partition(" ")[2]) for what, (status, reason) in found.items()}
    assert found == dict.fromkeys(("plain", "float", "stream"), ("unsupported", way_out))
