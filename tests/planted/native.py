"""Changes that are planted at a line of C++ (CPU) and CUDA kernels. As in `lined`, each branch also changes another line."""

from __future__ import annotations

from dataclasses import dataclass

BUILD = """
import ctypes, os, subprocess
from pathlib import Path

import torch


def build(*, verbose):
    out = Path(os.environ["ABPROF_BUILD_DIR"])
    source = str(Path(__file__).with_name("SOURCE"))
    subprocess.run([*COMMAND, "-o", str(out / "partial.so"), source], check=True)
    (out / "partial.so").replace(out / "kernels.so")


_library = None


def run(part, x):
    global _library
    _library = _library or ctypes.CDLL(str(Path(os.environ["ABPROF_BUILD_DIR"]) / "kernels.so"))
    y = torch.empty_like(x)
    stream = torch.cuda.current_stream().cuda_stream if x.is_cuda else 0
    call = getattr(_library, part)
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]
    call(x.data_ptr(), y.data_ptr(), x.numel(), stream)
    return y
"""
WORKLOAD = """
import torch
from abprof.kit import Op, compare

API = 1
KERNEL = "NAME"
SUITE = "NAME"
PRESETS = {"default": {"part": [PARTS]}}


def inputs(case, device, seed):
    return torch.rand(SIZE, generator=torch.Generator().manual_seed(seed)).to(device)


def prepare(kernel, variant, case, x):
    return Op(lambda: kernel.run(case["part"], x))


def reference(case, x):
    if case["part"] == "decay":
        return 0.5 * x.exp()
    return x * x + 0.25 * x if case["part"] == "square" else x * 0.5 + 1.0


def check(case, y, expected):
    return compare(y, expected, rtol=1e-3, atol=1e-4)
"""
CPP = """
#include <cmath>

extern "C" void spare(float *y) { y[0] = 1.0f; }

extern "C" void square(const float *__restrict x, float *__restrict y, long n, void *) {
  for (long i = 0; i < n; ++i) {
    float a = x[i];
    float b = a * 0.25f;
    y[i] = a * a + b;
  }
}

extern "C" void halve(const float *__restrict x, float *__restrict y, long n, void *) {
  for (long i = 0; i < n; ++i)
    y[i] = x[i] * 0.5f + 1.0f;
}
"""
CUDA = """
#include <cuda_runtime.h>

__global__ void spare(float *y) { y[0] = 1.0f; }

__global__ void decay_kernel(const float *__restrict__ x, float *__restrict__ y, long n) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) {
    float a = x[i];
    float b = __expf(a);
    y[i] = 0.5f * b;
  }
}

__global__ void halve_kernel(const float *__restrict__ x, float *__restrict__ y, long n) {
  __shared__ float tile[256];
  long i = blockIdx.x * 256L + threadIdx.x;
  float a = i < n ? x[i] : 0.0f;
  tile[threadIdx.x] = a;
  __syncthreads();
  float b = tile[threadIdx.x];
  if (i < n) y[i] = b * 0.5f + 1.0f;
}

extern "C" void decay(const float *x, float *y, long n, void *stream) {
  decay_kernel<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>(x, y, n);
}

extern "C" void halve(const float *x, float *y, long n, void *stream) {
  halve_kernel<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>(x, y, n);
}
"""


@dataclass(frozen=True)
class Line:
    """A branch: the kernel, the changed text, and text of the line to blame."""

    part: str
    old: str
    new: str
    at: str


CPP_BRANCHES = {
    "carried": Line("square", "y[i] = a * a + b;", "y[i] = a * a + b + (i ? 1e-12f * y[i - 1] : 0.0f);", "1e-12f"),
    "rooted": Line(
        "square",
        "float b = a * 0.25f;",
        "float b = a / std::sqrt(a * a + 16.0f - a * a);",
        "std::sqrt",
    ),
    "swept": Line(
        "halve",
        "    y[i] = x[i] * 0.5f + 1.0f;\n}",
        "    y[i] = x[i] * 0.5f + 1.0f;\n  for (long t = 0; t < 8; ++t)\n    for (long i = t; i < n; i += 8) y[i] += 1e-9f;\n}",
        "i += 8",
    ),
}
CUDA_BRANCHES = {
    "in_double": Line("decay", "float b = __expf(a);", "float b = exp((double)a);", "exp((double)a)"),
    "synchronised": Line(
        "halve",
        "  float b = tile[threadIdx.x];",
        "  for (int t = 0; t < 64; ++t) __syncthreads();\n  float b = tile[threadIdx.x];",
        "for (int t",
    ),
    "conflicting": Line(
        "halve",
        "  float b = tile[threadIdx.x];",
        "  float b = tile[threadIdx.x];\n  for (int t = 0; t < 64; ++t)\n"
        "    b += tile[(threadIdx.x * 32 + t) % 256] * 1e-30f;",
        "* 32 + t",
    ),
}  # fmt: skip
BRANCHES = {"cpp": CPP_BRANCHES, "cuda": CUDA_BRANCHES}


def files(kind: str, *branches: str) -> dict[str, str]:
    """path -> content of the package `kind` (cpp or cuda), on base, or on a branch with these changes.

    Raises ValueError if base lacks the text to replace."""
    source, name = (CPP, "native.cpp") if kind == "cpp" else (CUDA, "native.cu")
    command = ["g++", "-g", "-O3", "-fno-math-errno", "-march=native", "-shared", "-fPIC"]
    if kind == "cuda":
        command = ["nvcc", "-lineinfo", "-O3", "-arch=sm_90a", "-shared", "-Xcompiler", "-fPIC"]
    for line in (BRANCHES[kind][branch] for branch in dict.fromkeys(branches) if branch in BRANCHES[kind]):
        if source.count(line.old) != 1:
            raise ValueError(f"{name} has {line.old!r} {source.count(line.old)} times, not once")
        source = source.replace(line.old, line.new)
    if any(branches):
        source = source.replace("y[0] = 1.0f;", "// a remark\n  y[0] = 2.0f;")
    parts = ("square", "halve") if kind == "cpp" else ("decay", "halve")
    work = WORKLOAD.replace("NAME", kind).replace("PARTS", str(list(parts))[1:-1])
    return {
        f"kernels/{kind}/__init__.py": f"COMMAND = {command}\n{BUILD.replace('SOURCE', name)}",
        f"kernels/{kind}/{name}": source,
        f"workloads/{kind}.py": work.replace("SIZE", "1 << 18" if kind == "cpp" else "1 << 24"),
    }


def lines_of(kind: str, branch: str, *others: str) -> set[str]:
    """Return the FILE:LINE of the target that are to blame; `others`: further changes of the same branch."""
    line, made = BRANCHES[kind][branch], files(kind, branch, *others)
    return {f"{path}:{number}" for path, text in made.items() if path.endswith((".cpp", ".cu"))
            for number, one in enumerate(text.splitlines(), 1) if line.at in one}  # fmt: skip
