"""The CUDA backend without a GPU: the Triton kernels in Triton's interpreter, options that it refuses."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch

from kernels.ffa.schedule import Blocks, Options, UnsupportedOption
from tests.kernels import ffa_cases as cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
CPU = torch.device("cpu")


QUICK = ("causal_more_keys", "varlen_causal", "gaps", "blocks_64_dense_tails", "blocks_odd")


def test_triton_kernels_in_the_interpreter(interpreted: Callable[..., None]) -> None:
    interpreted("ffa_cases", *QUICK)


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
