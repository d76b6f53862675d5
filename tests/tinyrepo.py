"""A repository with a tiny C kernel package and its workload, for tests that drive real workers with real torch."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gitrepo import GitRepo, make_repo
from tests.simulated import warm
from tests.simulated.processes import show

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1200.0  # seconds; pytest's own limit of a test is shorter

PACKAGE = '''
import ctypes, os, subprocess
from pathlib import Path

import torch

def build(*, verbose):
    out = Path(os.environ["ABPROF_BUILD_DIR"])
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(out / "partial.so"), str(Path(__file__).with_name("tiny.c"))]
    print("$", *command, flush=True)
    subprocess.run(command, check=True)
    (out / "partial.so").replace(out / "tiny.so")

_library = None

def double(x):
    """x * 2 for a float32 tensor."""
    global _library
    if _library is None:
        _library = ctypes.CDLL(str(Path(os.environ["ABPROF_BUILD_DIR"]) / "tiny.so"))
        _library.twice.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    y = torch.empty_like(x)
    _library.twice(x.data_ptr(), y.data_ptr(), x.numel())
    return y
'''

# `volatile` keeps the compiler from leaving the repeats out: the time is proportional to REPEAT.
SOURCE = """
#define REPEAT %d
void twice(const float *x, float *y, long n) {
  for (int r = 0; r < REPEAT; ++r)
    for (long i = 0; i < n; ++i) ((volatile float *)y)[i] = 2.0f * x[i];
}
"""

WORKLOAD = '''
"""Doubling: a kernel whose time is known."""
import torch
from abprof.kit import Check, Op, Work, compare

API = 1
KERNEL = "tiny"
SUITE = "tiny"
PRESETS = {"default": {"n": [4096]}, "two": {"n": [4096, 8192]}}
SCALED = "n"

def inputs(case, device, seed):
    return torch.randn(case["n"], generator=torch.Generator().manual_seed(seed))

def prepare(kernel, variant, case, inputs):
    return Op(lambda: kernel.double(inputs), facts=lambda: {"autotuned": "none"})

def facts(case, inputs):
    return {"elements": inputs.numel(), "minimum_dram_bytes": 8.0 * inputs.numel()}

def reference(case, inputs):
    return inputs.double() * 2

def check(case, outputs, expected):
    return compare(outputs, expected, rtol=1e-6, atol=0.0)

def work(case):
    return Work(flops=case["n"], bytes=8.0 * case["n"], convention="one-multiply")
'''


@dataclass(frozen=True)
class Done:
    """The result of a finished command."""

    code: int
    out: str
    err: str

    @property
    def run(self) -> dict[str, Any]:
        """Return the output of --json."""
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded

    def verdicts(self) -> dict[str, str]:
        """cell -> verdict, for comparisons with a target."""
        return {row["cell"]: row["verdict"] for row in self.run["comparisons"] if row["from"].startswith("base")}

    def statuses(self, arm: str) -> dict[str, str]:
        """cell -> status of this arm."""
        return {row["cell"]: row["status"] for row in self.run["observations"] if row["arm"] == arm}


def source(repeat: int) -> str:
    """tiny.c whose time is proportional to `repeat`."""
    return SOURCE % repeat


def tiny_repo(path: Path, repeat: int = 100) -> GitRepo:
    """The repository, with one commit on main."""
    repo = make_repo(path)
    files = {
        "kernels/tiny/__init__.py": PACKAGE,
        "kernels/tiny/tiny.c": source(repeat),
        "workloads/tiny.py": WORKLOAD,
        ".gitignore": "runs/\n",
    }
    repo.commit("a kernel", files)
    return repo


def abprof(*args: str, cwd: Path, home: Path, **env: str) -> Done:
    """Run the command line with its own caches."""
    done = warm.abprof(args, environment(home, env), cwd, LIMIT)
    return Done(done.code, done.out, done.err)


def abprof_afresh(*args: str, cwd: Path, home: Path, **env: str) -> Done:
    """The same in an interpreter of its own, where /proc tells of it what it tells of any: for tests of what can be found
    there, and of what the interpreter itself reads of its environment."""
    command = [sys.executable, "-P", "-m", "abprof", *args]
    done = subprocess.run(command, cwd=cwd, env=environment(home, env), capture_output=True, text=True, check=False)
    show(args, done.returncode, done.stdout, done.stderr)
    return Done(done.returncode, done.stdout, done.stderr)


def begun(*args: str, cwd: Path, home: Path) -> subprocess.Popen[bytes]:
    """Start the same, without waiting for its end."""
    command = [sys.executable, "-P", "-m", "abprof", *args]
    return subprocess.Popen(command, cwd=cwd, env=environment(home, {}), stdout=subprocess.DEVNULL)


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The tests' own, with caches of its own below `home`, and `more`."""
    places = {"ABPROF_CACHE_DIR": str(home / "cache"), "ABPROF_STATE_DIR": str(home / "state")}
    return {**os.environ, "PYTHONPATH": str(ROOT), **places, **more}
