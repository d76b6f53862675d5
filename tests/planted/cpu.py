"""A repository with a C++ kernel, and branches that each change one thing of it: the cause is known."""

from __future__ import annotations

from pathlib import Path

from tests.gitrepo import GitRepo, make_repo

PACKAGE = """
import ctypes, os, subprocess
from pathlib import Path

import torch

FLAGS = ["-O3", "-fno-math-errno"]

def build(*, verbose):
    out = Path(os.environ["ABPROF_BUILD_DIR"])
    source = str(Path(__file__).with_name("blend.cpp"))
    subprocess.run(["g++", *FLAGS, "-shared", "-fPIC", "-o", str(out / "partial.so"), source], check=True)
    (out / "partial.so").replace(out / "blend.so")

_library = None

def blend(x, y):
    global _library
    if _library is None:
        _library = ctypes.CDLL(str(Path(os.environ["ABPROF_BUILD_DIR"]) / "blend.so"))
        _library.blend.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    z = torch.empty_like(x)
    _library.blend(x.data_ptr(), y.data_ptr(), z.data_ptr(), x.numel())
    return z
"""
SOURCE = """
extern "C" void blend(const float *__restrict x, const float *__restrict y, float *__restrict z, long n) {
  for (long i = 0; i < n; ++i) {
    float a = x[i], b = y[i];
    for (int k = 0; k < 8; ++k) a = a * 0.5f + b * 0.25f;
    z[i] = a;
  }
}
"""
AGAIN = """
__attribute__((noinline)) void rescale(float *z, long n) {
  for (long i = 0; i < n; ++i) z[i] = z[i] * 3.0f;
  for (long i = 0; i < n; ++i) z[i] = z[i] / 3.0f;
}
"""
EIGHT_PASSES = "  for (int pass = 0; pass < 8; ++pass) rescale(z, n);\n"
WORKLOAD = '''
"""Blending two arrays, eight times over."""
import torch
from abprof.kit import Op, compare

API = 1
KERNEL = "blend"
SUITE = "blend"
PRESETS = {"default": {"n": [1 << 18]}}

def inputs(case, device, seed):
    made = torch.Generator().manual_seed(seed)
    return torch.rand(case["n"], generator=made), torch.rand(case["n"], generator=made)

def prepare(kernel, variant, case, given):
    return Op(lambda: kernel.blend(*given))

def reference(case, given):
    a, b = (one.double() for one in given)
    for _ in range(8):
        a = a * 0.5 + b * 0.25
    return a

def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-4, atol=1e-5)
'''
# Branch -> (its change, the kind of cause, text in the sentence)
BRANCHES: dict[str, tuple[dict[str, str], str, str]] = {
    "lost_vectorisation": ({"kernels/blend/__init__.py": PACKAGE.replace('"-O3"', '"-O1"')}, "vectorisation", "blend"),
    "extra_pass": (
        # Eight of them: one alone adds a third, which a busy machine's epochs may hide.
        {"kernels/blend/blend.cpp": AGAIN + SOURCE.replace("z[i] = a;\n  }\n", f"z[i] = a;\n  }}\n{EIGHT_PASSES}")},
        "pass",
        "rescale",
    ),
    "extra_operation": (
        {
            "kernels/blend/__init__.py": PACKAGE.replace(
                "    return z\n",
                # Large against the noise of two busy cores: a call takes several times as long.
                "    for _ in range(8):\n        z = (z.double() / 3.0 * 3.0).float()\n    return z\n",
            )
        },
        "operations",
        "aten::",
    ),
}
# A function that nothing calls, and time that is lost in Python: no function of the object is to blame.
UNUSED = """
extern "C" void unused_debug(float *z, const float *w, long n) {
  for (long i = 0; i < n; ++i) z[i] = z[i] * 3.0f + w[i];
  for (long i = 0; i < n; ++i) z[i] = z[i] / 3.0f;
}
"""
DECOY = {
    "kernels/blend/blend.cpp": SOURCE + UNUSED,
    "kernels/blend/__init__.py": PACKAGE.replace(
        "    _library.blend(x.data", "    for _ in range(60000):\n        pass\n    _library.blend(x.data"
    ),
}


def repository(path: Path) -> GitRepo:
    """Base on main, every branch, and the decoy."""
    repo = make_repo(path)
    repo.commit(
        "a kernel",
        {
            "kernels/blend/__init__.py": PACKAGE,
            "kernels/blend/blend.cpp": SOURCE,
            "workloads/blend.py": WORKLOAD,
            ".gitignore": "runs/\n",
        },
    )
    for name, files in ({name: files for name, (files, _, _) in BRANCHES.items()} | {"decoy": DECOY}).items():
        repo.branch(name)
        repo.commit(name, files)
        repo.checkout("main")
    return repo
