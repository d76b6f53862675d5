"""The CUDA backend without a GPU: the Triton kernels in Triton's interpreter, options that it refuses."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.ffa.schedule import Blocks, Options, UnsupportedOption
from tests.kernels import ffa_cases as cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


QUICK = ("causal_more_keys", "varlen_causal", "gaps", "blocks_64_dense_tails", "blocks_odd")


def test_triton_kernels_in_the_interpreter(interpreted: Callable[..., None]) -> None:
    interpreted("ffa_cases", *QUICK)


# ---------------------------------------------------------------- machine code for Hopper


def test_backward_keeps_its_products_in_flight(tmp_path: Path) -> None:
    """Short of registers, ptxas waits after every wgmma, or moves accumulators to memory and back."""
    labels = ("gluon bwd causal 128", "gluon bwd full in pieces 128")
    command = [sys.executable, "-m", "tests.kernels.machine_code", *labels]
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for label, found in json.loads(done.stdout).items():
        # Two warpgroups: S before the loop (9); S, dP (9 each), dQ (8), dV and dK (4 each) in it.
        assert found["HGMMA"] == 2 * (9 + 34), label
        assert found["WARPGROUP.DEPBAR.LE"] <= 2 * 8, label
        assert found.get("LDL", 0) + found.get("STL", 0) < 60, label
        assert found["UTMAREDG"] == 2, label


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
