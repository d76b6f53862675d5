"""Attention written down plainly with a dense mask: the judge of kernels/ffa, in any dtype."""

from __future__ import annotations

import torch

Tensors = tuple[torch.Tensor, ...]


def slices_mask(q_ranges, k_ranges, mask_types, sq: int, sk: int) -> torch.Tensor:
    """bool [1, Sq, Sk]; element (i, j) of a causal slice of n rows and m keys is visible when j <= i + m - n."""
    mask = torch.zeros(1, sq, sk, dtype=torch.bool)
    for (q0, q1), (k0, k1), kind in zip(q_ranges, k_ranges, mask_types, strict=True):
        rows, keys = torch.arange(q1 - q0)[:, None], torch.arange(k1 - k0)[None]
        mask[0, q0:q1, k0:k1] = keys <= rows + (k1 - k0) - (q1 - q0) if kind else True
    return mask


def blocks_mask(kv_num, kv_indices, q_block: int, k_block: int, sq: int, sk: int) -> torch.Tensor:
    """bool [Hk, Sq, Sk] of block lists."""
    mask = torch.zeros(kv_num.shape[0], sq, sk, dtype=torch.bool)
    for h in range(kv_num.shape[0]):
        for i in range(kv_num.shape[1]):
            for b in kv_indices[h, i, : kv_num[h, i]].tolist():
                mask[h, i * q_block : (i + 1) * q_block, b * k_block : (b + 1) * k_block] = True
    return mask


def attention(q, k, v, mask: torch.Tensor, scale: float) -> Tensors:
    """(out [Sq, Hq, D], lse [Hq, Sq]) in the inputs' dtype, every intermediate rounded to it."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    mask = mask.repeat_interleave(group if mask.shape[0] > 1 else q.shape[1], 0)
    score = (torch.einsum("qhd,khd->hqk", q, k) * scale).masked_fill(~mask, -torch.inf)
    lse = score.double().logsumexp(-1).to(score.dtype)
    seen = mask.any(-1, keepdim=True)
    prob = torch.where(seen, score, 0.0).softmax(-1) * seen
    return torch.einsum("hqk,khd->qhd", prob, v), lse


def with_gradients(run, inputs: Tensors, grad: torch.Tensor) -> Tensors:
    """(out, lse, dq, dk, dv) of run(q, k, v) -> (out, lse) for the output gradient `grad`."""
    leaves = tuple(x.detach().clone().requires_grad_() for x in inputs)
    out, lse = run(*leaves)
    return out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, grad.to(out.dtype))


def assert_close(got: Tensors, inputs: Tensors, grad: torch.Tensor, mask: torch.Tensor, scale: float) -> None:
    """`got` = (out, lse, dq, dk, dv) against the float64 reference.

    bfloat16: at most twice as far off as the plain computation in bfloat16, and one rounding (FlashAttention's rule);
    1e-6 for gradients that are exactly zero there and cancel in float32 here.
    float32: within 1e-5 of the largest magnitude or of 1: sums of some hundred products of order 1, 6e-8 each. lse is
    always float32.
    """
    exact = with_gradients(lambda *x: attention(*x, mask, scale), tuple(x.double() for x in inputs), grad)
    plain = with_gradients(lambda *x: attention(*x, mask, scale), inputs, grad)
    seen = torch.isfinite(exact[1])
    assert torch.equal(torch.isfinite(got[1]), seen)
    assert torch.equal(got[1][~seen].double(), exact[1][~seen])
    if seen.any():
        assert (got[1] - exact[1])[seen].abs().max() <= 2e-6 * exact[1][seen].abs().max().clamp(min=1)
    for name, mine, theirs, ref in zip(("out", "lse", "dq", "dk", "dv"), got, plain, exact, strict=True):
        if name == "lse" or not ref.numel():
            continue
        assert mine.dtype == theirs.dtype
        assert mine.shape == ref.shape
        error = (mine - ref).abs().max()
        if mine.dtype == torch.float32:
            allowed = 1e-5 * ref.abs().max().clamp(min=1)
        else:
            allowed = 2 * (theirs - ref).abs().max() + (ref.to(mine.dtype) - ref).abs().max() + 1e-6
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"
