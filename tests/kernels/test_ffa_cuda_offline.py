"""The CUDA backend without a GPU: work lists by brute force, the Triton kernels in Triton's interpreter, the Gluon kernels
in an emulator, all of them compiled for sm_90a with gates on the machine code, the CUDA C++ by nvcc where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.ffa.schedule import Blocks, Options, UnsupportedOption
from tests.kernels import ffa_cuda_cases as cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def run(module: str, *args: str, tmp_path: Path, **env: str) -> str:
    """Return the output of `python -m module`, which must exit with 0."""
    variables = os.environ | {"ABPROF_BUILD_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"} | env
    command = [sys.executable, "-m", f"tests.kernels.{module}", *args]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------- the kernels' logic

QUICK = ("causal_more_keys", "varlen_causal", "gaps", "blocks_64_dense_tails", "blocks_odd")


def test_triton_kernels_in_the_interpreter(tmp_path: Path) -> None:
    printed = run("ffa_cuda_interpret", *QUICK, tmp_path=tmp_path, TRITON_INTERPRET="1")
    assert printed.count(": right") == len(QUICK)


# ---------------------------------------------------------------- machine code

# Spill instructions that are there today. All are addresses and descriptors, none is a tile's element.
SPILLS = {
    "gluon bwd full 128": 62,
    "gluon bwd full in pieces 128": 48,
    "gluon bwd causal 128": 87,
    "gluon bwd blocks128 128": 40,
}
SPILLS |= {"triton dkdv blocks64 128": 40, "triton dkdv causal 128": 40}


# ---------------------------------------------------------------- work lists and the rule


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (Options(swap_ab=True), "swap_ab"),
        (Options(sparse_load=True), "sparse_load"),
        (Options(pack_gqa=True), "pack_gqa"),
        (Options(ref_block=(128, 128)), "over blocks of 64"),
        (Options(ref_block=(48, 64)), "compute tile of 48"),
    ],
    ids=str,
)
def test_options_that_are_not_there_are_refused(options: Options, word: str) -> None:
    from kernels.ffa.cuda import dispatch

    schedule: Blocks = cases.blocks(1, 128, 128, 64, 64, 0.5, options=options)(CPU)
    q, k = torch.empty(128, 2, 128, dtype=torch.bfloat16), torch.empty(128, 1, 128, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedOption, match=word):
        dispatch.check_supported(q, k, k, schedule)
