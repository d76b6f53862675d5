"""Other people's repositories, rebuilt in their structure: what a kernel project looks like before abprof came along."""

from __future__ import annotations

from pathlib import Path

from tests.gitrepo import GitRepo, make_repo

# A Python package of Triton kernels in src/ layout: a kernel, an autograd function, a wrapper at the front.
NORM = """
import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm_fwd(X, W, Y, stride, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / n_cols + eps) * w
    tl.store(Y + row * stride + cols, y.to(Y.dtype.element_ty), mask=mask)


def rms_norm_forward(x, weight, eps):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    _rms_norm_fwd[(n_rows,)](x, weight, y, x.stride(0), n_cols, eps, BLOCK=triton.next_power_of_2(n_cols))
    return y


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        return rms_norm_forward(x, weight, eps)

    @staticmethod
    def backward(ctx, dy):
        raise NotImplementedError


def rms_norm(x, weight, eps=1e-6):
    return RMSNormFunction.apply(x.contiguous(), weight, eps)
"""
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-kernels"
version = "1.0"

[tool.setuptools.packages.find]
where = ["src"]
"""
TRITON = {
    "pyproject.toml": PROJECT,
    "README.md": "# tiny kernels\n",
    "src/tiny_kernels/__init__.py": "from .norm import rms_norm\n\n__all__ = ['rms_norm']\n",
    "src/tiny_kernels/norm.py": NORM,
    "tests/test_norm.py": "from tiny_kernels import rms_norm\n\n\ndef test_norm(x, weight):\n    rms_norm(x, weight)\n",
    "benchmarks/bench_norm.py": "def rms_norm_bench(x):\n    return x.shape\n",
}

# A C++ extension that setup.py builds, imported from the top level by a small package around it.
SETUP = """
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="scaled",
    version="1.0",
    long_description=Path("README.md").read_text(),
    packages=["scaled"],
    ext_modules=[CppExtension("scaled_ext", ["csrc/scaled.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
"""
# Most include torch/extension.h, which takes a compiler five times as long.
CPP = """
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

at::Tensor scaled_add(at::Tensor a, at::Tensor b) {
    return a.add(b);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled_add", &scaled_add); }
"""
WRAPPER = '''
import torch
import scaled_ext


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b of two tensors of one shape.

    a: (rows, width)
    b: (rows, width)
    """
    return scaled_ext.scaled_add(a, b)
'''
EXTENSION = {
    "setup.py": SETUP,
    "README.md": "# scaled\n",
    "csrc/scaled.cpp": CPP,
    "scaled/__init__.py": "from scaled.ops import add\n",
    "scaled/ops.py": WRAPPER,
}

# A single file: a tutorial whose name no import statement could spell.
TUTORIAL = """
import torch


def softmax(x):
    n_rows, n_cols = x.shape
    shifted = x - x.max(dim=1, keepdim=True).values
    numerator = shifted.exp()
    return numerator / numerator.sum(dim=1, keepdim=True)
"""
SINGLE = {"02-softmax.py": TUTORIAL, "README.md": "# a tutorial\n"}


def repository(path: Path, files: dict[str, str]) -> GitRepo:
    """These files as one commit on main."""
    repo = make_repo(path)
    repo.commit("all of it", {name: text.lstrip("\n") for name, text in files.items()})
    return repo
