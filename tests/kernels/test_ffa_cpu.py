"""The CPU backend of kernels/ffa against float64 autograd, on every instruction set that this machine has."""

from __future__ import annotations

import pytest
import torch
from ffa_reference import assert_close, blocks_mask, slices_mask, with_gradients

from kernels import ffa
from kernels.ffa.cpu.library import load

FP32, BF16 = torch.float32, torch.bfloat16
AVX2, AVX512 = 1, 2


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty returns NaN, which shows reads of memory that the kernels did not write."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(params=["avx2", "avx512"], autouse=True)
def isa(request, monkeypatch):
    if load().ffa_isa() < {"avx2": AVX2, "avx512": AVX512}[request.param]:
        pytest.skip(f"this processor does not have {request.param}")
    monkeypatch.setenv("FFA_CPU_ISA", request.param)
    return request.param


def tensors(sq, sk, hq, hk, d, dtype, seed=0):
    """(q, k, v), output gradient."""
    g = torch.Generator().manual_seed(seed)
    q, grad = (torch.randn(sq, hq, d, generator=g).to(dtype) for _ in range(2))
    k, v = (torch.randn(sk, hk, d, generator=g).to(dtype) for _ in range(2))
    return (q, k, v), grad


def run_slices(inputs, grad, q_ranges, k_ranges, masks, scale=None):
    return with_gradients(
        lambda *x: ffa.ffa_attention(*x, q_ranges, k_ranges, masks, scale=scale, return_lse=True), inputs, grad
    )


# name: (Sq, Sk, Hq, Hk, D, q_ranges, k_ranges, mask_types)
SLICES = {
    "full": (192, 192, 2, 2, 128, [(0, 192)], [(0, 192)], [0]),
    "full, no tile divides": (97, 211, 2, 2, 64, [(0, 97)], [(0, 211)], [0]),
    "causal": (405, 405, 2, 2, 64, [(0, 405)], [(0, 405)], [1]),
    "causal, more keys": (70, 300, 4, 2, 128, [(0, 70)], [(0, 300)], [1]),
    "causal, fewer keys: rows that see nothing": (150, 64, 2, 1, 64, [(0, 150)], [(0, 64)], [1]),
    "one token": (1, 1, 1, 1, 64, [(0, 1)], [(0, 1)], [1]),
    "one row, many keys": (1, 500, 4, 1, 128, [(0, 1)], [(0, 500)], [1]),
    "varlen full, one-token documents": (
        *(260, 260, 4, 2, 64),
        *[[(0, 100), (100, 101), (101, 102), (102, 199), (199, 260)]] * 2,
        [0, 0, 0, 0, 0],
    ),
    "varlen causal": (300, 300, 8, 2, 128, *[[(0, 17), (17, 18), (18, 211), (211, 300)]] * 2, [1, 1, 1, 1]),
    "gaps, keys in another order, mixed masks": (
        *(310, 280, 4, 1, 64),
        [(10, 50), (60, 61), (100, 300)],
        [(203, 280), (5, 6), (7, 199)],
        [1, 0, 1],
    ),
    "documents share keys": (128, 90, 2, 2, 64, [(0, 64), (64, 128)], [(0, 90), (30, 90)], [0, 1]),
    "unsorted, with empty ranges": (
        *(120, 120, 2, 2, 128),
        [(80, 120), (0, 0), (0, 40), (40, 80)],
        [(80, 120), (3, 9), (0, 40), (50, 50)],
        [1, 0, 1, 0],
    ),
}


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", SLICES)
def test_slices_forward_and_backward(name, dtype):
    sq, sk, hq, hk, d, q_ranges, k_ranges, masks = SLICES[name]
    inputs, grad = tensors(sq, sk, hq, hk, d, dtype)
    got = run_slices(inputs, grad, q_ranges, k_ranges, masks)
    assert_close(got, inputs, grad, slices_mask(q_ranges, k_ranges, masks, sq, sk), d**-0.5)


def test_rows_that_see_nothing_are_exactly_zero():
    inputs, grad = tensors(150, 64, 2, 1, 64, FP32)
    out, lse, dq, dk, dv = run_slices(inputs, grad, [(0, 100), (120, 140)], [(0, 64), (3, 3)], [1, 0])
    blind = torch.ones(150, dtype=torch.bool)
    blind[36:100] = False
    assert not out[blind].any()
    assert torch.equal(lse[:, blind], torch.full((2, 86), -torch.inf))
    assert not dq[blind].any()
    assert out[~blind].any(-1).all()
    grad[blind] = 1e30
    again = run_slices(inputs, grad, [(0, 100), (120, 140)], [(0, 64), (3, 3)], [1, 0])
    assert torch.equal(dk, again[3])
    assert torch.equal(dv, again[4])


def block_lists(hk, n_q, n_k, density, seed=0):
    """Random lists; of each density the last list is full and the first empty, so both ends always occur."""
    g = torch.Generator().manual_seed(seed)
    num = torch.zeros(hk, n_q, dtype=torch.int32)
    indices = torch.full((hk, n_q, max(n_k, 1)), 2**31 - 1, dtype=torch.int32)  # behind a list's end anything may stand
    for h in range(hk):
        for i in range(n_q):
            count = round(density * n_k)
            if 0 < density < 1 and (h, i) in ((0, 0), (hk - 1, n_q - 1)):
                count = n_k if i else 0
            num[h, i] = count
            indices[h, i, :count] = torch.randperm(n_k, generator=g)[:count].int()
    return num, indices


# name: (Sq, Sk, Hq, Hk, D, q_block, k_block)
BLOCKS = {
    "64x64": (256, 320, 2, 2, 64, 64, 64),
    "128x128, tails": (300, 410, 4, 2, 128, 128, 128),
    "blocks larger than a tile, tails": (500, 700, 2, 1, 64, 200, 256),
    "blocks that no vector divides": (190, 205, 4, 1, 64, 48, 80),
    "small blocks": (50, 60, 2, 2, 128, 16, 7),
}


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("name", BLOCKS)
def test_block_sparse_forward_and_backward(name, density, dtype):
    sq, sk, hq, hk, d, q_block, k_block = BLOCKS[name]
    inputs, grad = tensors(sq, sk, hq, hk, d, dtype)
    num, indices = block_lists(hk, -(-sq // q_block), -(-sk // k_block), density)
    got = with_gradients(
        lambda *x: ffa.ffa_block_sparse(*x, num, indices, q_block=q_block, k_block=k_block, return_lse=True),
        inputs,
        grad,
    )
    assert_close(got, inputs, grad, blocks_mask(num, indices, q_block, k_block, sq, sk), d**-0.5)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_number_of_threads(threads):
    inputs, grad = tensors(333, 333, 2, 1, 64, FP32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = run_slices(inputs, grad, [(0, 333)], [(0, 333)], [1])
    finally:
        torch.set_num_threads(before)
    assert_close(got, inputs, grad, slices_mask([(0, 333)], [(0, 333)], [1], 333, 333), 0.125)
