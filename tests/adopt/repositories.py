"""Copies of the structure of real kernel projects before they adopt abprof."""

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
        x, weight = ctx.saved_tensors
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        normal = x.float() * scale
        inner = dy.float() * weight.float()
        dx = scale * (inner - normal * (inner * normal).mean(-1, keepdim=True))
        return dx.to(x.dtype), (dy.float() * normal).sum(0).to(weight.dtype), None


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

# A C extension that setup.py builds, imported from the top level by a small package around it.
SETUP = """
from pathlib import Path

from setuptools import Extension, setup

setup(
    name="scaled",
    version="1.0",
    long_description=Path("README.md").read_text(),
    packages=["scaled"],
    ext_modules=[Extension("scaled_ext", ["csrc/scaled.c"])],
)
"""
NATIVE = """
#include <Python.h>

static PyObject *scaled_add(PyObject *self, PyObject *args) {
    Py_ssize_t a, b, out, n;
    if (!PyArg_ParseTuple(args, "nnnn", &a, &b, &out, &n)) return NULL;
    for (Py_ssize_t i = 0; i < n; i++) ((float *)out)[i] = ((float *)a)[i] + ((float *)b)[i];
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"scaled_add", scaled_add, METH_VARARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "scaled_ext", "", -1, methods};
PyMODINIT_FUNC PyInit_scaled_ext(void) { return PyModule_Create(&module); }
"""
WRAPPER = '''
import torch
import scaled_ext


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a + b of two tensors of one shape.

    a: (rows, width)
    b: (rows, width)
    """
    out = torch.empty_like(a)
    scaled_ext.scaled_add(a.data_ptr(), b.data_ptr(), out.data_ptr(), a.numel())
    return out
'''
EXTENSION = {
    "setup.py": SETUP,
    "README.md": "# scaled\n",
    "csrc/scaled.c": NATIVE,
    "scaled/__init__.py": "from scaled.ops import add\n",
    "scaled/ops.py": WRAPPER,
}

# No kernel at all: a function of tensors.
ROWS = """
import torch


def softmax(x):
    n_rows, n_cols = x.shape
    shifted = x - x.max(dim=1, keepdim=True).values
    numerator = shifted.exp()
    return numerator / numerator.sum(dim=1, keepdim=True)
"""

# A single file: a tutorial whose name no import statement could spell.
TUTORIAL = """
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(out, x, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + cols, mask=cols < n_cols, other=-float("inf"))
    numerator = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + cols, numerator / tl.sum(numerator, axis=0), mask=cols < n_cols)


def softmax(x):
    n_rows, n_cols = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(n_rows,)](y, x, x.stride(0), n_cols, BLOCK=triton.next_power_of_2(n_cols))
    return y


if __name__ == "__main__":
    rows = torch.randn(1823, 781, device="cuda")
    assert torch.allclose(softmax(rows), torch.softmax(rows, 1))
"""
SINGLE = {"02-softmax.py": TUTORIAL, "README.md": "# a tutorial\n"}


def repository(path: Path, files: dict[str, str]) -> GitRepo:
    """These files as one commit on main."""
    repo = make_repo(path)
    repo.commit("all of it", {name: text.lstrip("\n") for name, text in files.items()})
    return repo


# A torch autograd function that takes bfloat16 alone, gives `weight` no gradient, and writes over the upstream gradient.
# No proposal can know this without running it.
GATED = """
import torch


class GatedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        kind, needed = str(x.dtype), "torch.bfloat16"
        if kind != needed:
            raise TypeError(f"expected {needed}, got {kind}")
        n_rows, n_cols = x.shape
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, dy):
        (weight,) = ctx.saved_tensors
        return (*[dy.mul_(weight), None],)


def gated(x, weight):
    return GatedFunction.apply(x, weight)
"""

# The gradient of this exponential lacks the factor exp(x).
WRONG = """
import torch


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        n_rows, n_cols = x.shape
        return x.exp()

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


exp = Exp.apply
"""
