"""The CPU backend of kernels/ffa against float64, on every instruction set that this machine has."""

import pytest
import torch

from kernels import ffa
from kernels.ffa.cpu.library import load
from kernels.ffa.schedule import Slices
from tests.kernels import ffa_cases as cases

CPU = torch.device("cpu")
AVX2, AVX512 = 1, 2
CASES = [
    *cases.slice_cases(96),
    *cases.block_cases(),
    cases.Case("blocks_larger_than_a_tile", 500, 700, 2, 1, cases.blocks(1, 500, 700, 200, 256, 0.4), dim=64),
    cases.Case("blocks_that_no_vector_divides", 190, 205, 4, 1, cases.blocks(1, 190, 205, 48, 80, 0.4), dim=64),
    cases.Case("blocks_small", 50, 60, 2, 2, cases.blocks(2, 50, 60, 16, 7, 0.4)),
]


@pytest.fixture(params=["avx2", "avx512"], autouse=True)
def isa(request, monkeypatch):
    if load().ffa_isa() < {"avx2": AVX2, "avx512": AVX512}[request.param]:
        pytest.skip(f"this processor does not have {request.param}")
    monkeypatch.setenv("FFA_CPU_ISA", request.param)
    return request.param


def attend(case: cases.Case, data: dict[str, torch.Tensor], scale: float) -> cases.Outputs:
    """Forward and backward by the public functions, into memory full of NaN."""
    leaves, schedule = [data[name].detach().requires_grad_() for name in "qkv"], case.schedule(CPU)
    with cases.poisoned():
        if isinstance(schedule, Slices):
            ranges = (schedule.q_ranges, schedule.k_ranges, schedule.mask_types)
            out, lse = ffa.ffa_attention(*leaves, *ranges, scale=scale, return_lse=True)
        else:
            sizes = {"q_block": schedule.q_block, "k_block": schedule.k_block}
            lists = (schedule.kv_num, schedule.kv_indices)
            out, lse = ffa.ffa_block_sparse(*leaves, *lists, **sizes, scale=scale, return_lse=True)
        return out.detach(), lse, torch.autograd.grad(out, leaves, data["dout"])


def wrong(case: cases.Case, dtype: torch.dtype) -> str:
    data, scale = cases.draw(case, dtype, CPU, seed=0), case.dim**-0.5
    return cases.wrong(attend(case, data, scale), data, case, scale, lse_error=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward(case: cases.Case, dtype: torch.dtype) -> None:
    assert wrong(case, dtype) == ""


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert wrong(next(case for case in CASES if case.name == "varlen_long"), torch.float32) == ""
    finally:
        torch.set_num_threads(before)
