"""A repository of 64 commits on top of the first, one of which makes its kernel slower by real work: a step more of Newton's
method in every 32, which changes no answer. Most commits leave the kernel package alone, and those that touch it change
lines that cost nothing, but for the slip. In Triton for a GPU, in C for a CPU, where the slip is large against any noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.gitrepo import GitRepo, make_repo

COMMITS = 64

TRITON = """
import torch
import triton
import triton.language as tl

STEPS = 64


@triton.jit(do_not_specialize=["steps"])
def newton(x_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=1.0)
    y = x
    for _ in range(steps):
        y = 0.5 * (y + x / y)
    tl.store(y_ptr + at, y, mask=at < n)


def root(x):
    y = torch.empty_like(x)
    newton[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), STEPS, 1024)
    return y
"""
PYTHON = """
import ctypes, os, subprocess
from pathlib import Path

import torch

def build(*, verbose):
    source, out = Path(__file__).with_name("newton.c"), Path(os.environ["ABPROF_BUILD_DIR"])
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(out / "newton.so")], check=True)

def root(x):
    y = torch.empty_like(x)
    library = ctypes.CDLL(str(Path(os.environ["ABPROF_BUILD_DIR"]) / "newton.so"))
    library.newton(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(x.numel()))
    return y
"""
C = """
#define STEPS 64
void newton(const float *x, float *y, long n) {
    for (long i = 0; i < n; i++) {
        float root = x[i];
        for (int step = 0; step < STEPS; step++) root = 0.5f * (root + x[i] / root);
        y[i] = root;
    }
}
"""
WORKLOAD = '''
"""Square roots by Newton's method."""

import torch

from abprof.kit import Op, compare

API, KERNEL = 1, "newton"


def default(device):
    return {"n": [1 << 26] if device == "cuda" else [1 << 15]}


PRESETS = {"default": default}


def inputs(case, device, seed):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.rand(case["n"], generator=generator, device=device) + 0.5


def prepare(kernel, variant, case, inputs):
    return Op(lambda: kernel.root(inputs))


def reference(case, inputs):
    return inputs[::64].double().sqrt()


def check(case, outputs, expected):
    return compare(outputs[::64], expected, rtol=1e-5, atol=0)
'''


def files(device: str, steps: int = 64) -> dict[str, str]:
    """path -> content of the package, of which the file that has `steps` is the first, and its workload."""
    around = {"workloads/roots.py": WORKLOAD, ".gitignore": "runs/\n"}
    if device.startswith("cuda"):
        return {"kernels/newton/__init__.py": TRITON.replace("STEPS = 64", f"STEPS = {steps}"), **around}
    source = C.replace("STEPS 64", f"STEPS {steps}")
    return {"kernels/newton/newton.c": source, "kernels/newton/__init__.py": PYTHON, **around}


@dataclass(frozen=True)
class Slipping:
    """The repository, and its commits' hashes from the first, which is good, to the last."""

    repo: GitRepo
    commits: tuple[str, ...]


def repository(path: Path, device: str, slip: int, every: int) -> Slipping:
    """Commit `slip`, from 1, is the culprit; beside it every so many commits one touches the kernel package.

    The slip is 2 steps of 64 on a GPU, 3.1 % of the kernel's work, and three times the work on a CPU.
    """
    repo = make_repo(path)
    now = files(device)
    commits = [repo.commit("Square roots", now)]
    file = next(iter(now))
    slow = files(device, 66 if device.startswith("cuda") else 192)[file]
    text, notes = now[file], ""
    for number in range(1, COMMITS + 1):
        if number == slip:
            text = slow
            commits.append(repo.commit("Converge further", {file: text + notes}))
        elif number % every == 0:
            notes += f"{'//' if file.endswith('.c') else '#'} note {number}\n"
            commits.append(repo.commit(f"Note {number}", {file: text + notes}))
        else:
            commits.append(repo.commit(f"Words {number}", {f"docs/{number}.md": f"word {number}\n"}))
    return Slipping(repo, tuple(commits))
