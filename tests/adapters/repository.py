"""A repository that knows nothing of abprof: a package of two kernels, and three benchmarks of it."""

from pathlib import Path

from tests.gitrepo import GitRepo, make_repo

PACKAGE = """
import time
import torch

def softmax(x, repeat={repeat}):
    for _ in range(repeat):
        y = torch.softmax(x, -1)
    return y{more}
"""
REPORT = """
import torch
import triton
import triton.testing
from triton.testing import do_bench as timed
from triton.testing import do_bench_cudagraph
import mylib
from shapes import WIDTHS

@mylib.decorated if hasattr(mylib, "decorated") else (lambda f: f)
def helper():
    return mylib.softmax

@triton.testing.perf_report(triton.testing.Benchmark(
    x_names=["N"], x_vals=WIDTHS, line_arg="provider", line_vals=["mylib", "torch"], line_names=["m", "t"],
    plot_name="softmax", args={"M": 64}))
def benchmark(M, N, provider):
    x = torch.randn(M, N)
    quantiles = [0.5, 0.2, 0.8]
    if provider == "torch":
        timer = triton.testing.do_bench if N == 128 else do_bench_cudagraph
        return timer(lambda: torch.softmax(x, -1), quantiles=quantiles)
    with torch.no_grad():
        return timed(lambda: helper()(x), quantiles=quantiles)

if __name__ == "__main__":
    benchmark.run(print_data=True)
"""
SUITE = """
import pytest
import torch
import mylib

@pytest.fixture
def x():
    return torch.ones(8, 64)

@pytest.mark.parametrize("width", [32, 64])
def test_softmax(benchmark, width):
    y = benchmark(mylib.softmax, torch.ones(8, width), repeat=2)
    assert y.shape == (8, width)

def test_pedantic(benchmark, x):
    made = []
    def setup():
        made.append(1)
        return (x * len(made),), {}
    benchmark.pedantic(mylib.softmax, setup=setup, rounds=3)

@pytest.mark.skip(reason="needs a GPU")
def test_skipped(benchmark):
    benchmark(lambda: None)

def test_broken(benchmark):
    raise RuntimeError("no such thing")

def test_no_benchmark():
    pass
"""
OPERATOR = """
import argparse
import torch
from tritonbench.utils.triton_op import (
    BenchmarkOperator, BenchmarkOperatorMetrics, register_benchmark, register_metric, register_x_val)
from tritonbench.utils.env_utils import is_hip
from .sizes import SIZES
import mylib

class Operator(BenchmarkOperator):
    DEFAULT_PRECISION = "fp32"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.rows = int(self.extra_args[0]) if self.extra_args else 4

    @register_benchmark(baseline=True)
    def torch_softmax(self, x):
        return lambda: torch.softmax(x, -1)

    @register_benchmark(label="mine")
    def mylib_softmax(self, x):
        return lambda: mylib.softmax(x)

    @register_benchmark(enabled=False)
    def never(self, x):
        raise AssertionError

    @register_metric()
    def gbps(self, fn_name, example_inputs, metrics: BenchmarkOperatorMetrics):
        return 1.0

    @register_x_val(label="N")
    def get_x_val(self, example_inputs):
        return example_inputs[0].shape[-1]

    def get_input_iter(self):
        for n in SIZES:
            yield (torch.randn(self.rows, n, device=self.device, dtype=self.dtype, requires_grad=True),)

    def get_bwd_fn(self, fwd_fn):
        y = fwd_fn()
        return lambda: y.backward(torch.ones_like(y), retain_graph=True)

    def get_grad_to_none(self, args):
        return args
"""
TOML = """schema = 1
benchmarks = ["benchmarks"]
[kernels.mylib]
path = "src/mylib"
import = "mylib"
"""
WORKLOADS = {
    "report": "from abprof.adapters import perf_report\n"
    'WORKLOAD = perf_report("benchmarks/bench_softmax.py:benchmark", kernel="mylib")\n',
    "suite": "from abprof.adapters import pytest_benchmark\n"
    'WORKLOAD = pytest_benchmark("benchmarks/test_speed.py", kernel="mylib")\n',
    "operator": "from abprof.adapters import tritonbench\n"
    'WORKLOAD = tritonbench("benchmarks/softmax/operator.py:Operator", kernel="mylib")\n',
}


def package(repeat: int = 1, more: str = "") -> str:
    """The package. Its time is proportional to `repeat`; it adds `more` to its result."""
    return PACKAGE.format(repeat=repeat, more=more)


def files(repeat: int = 1) -> dict[str, str]:
    """All of the repository but its workloads."""
    return {
        "src/mylib/__init__.py": package(repeat),
        "benchmarks/bench_softmax.py": REPORT,
        "benchmarks/shapes.py": "WIDTHS = [128, 256]\n",
        "benchmarks/test_speed.py": SUITE,
        "benchmarks/softmax/operator.py": OPERATOR,
        "benchmarks/softmax/sizes.py": "SIZES = [32, 64]\n",
        "abprof.toml": TOML,
        ".gitignore": "runs/\n",
    }


def wrapped(path: Path, *names: str, repeat: int = 1) -> GitRepo:
    """The repository at `path` with these workloads, committed on main."""
    repo = make_repo(path)
    repo.commit("all", files(repeat) | {f"workloads/{name}.py": WORKLOADS[name] for name in names})
    return repo
