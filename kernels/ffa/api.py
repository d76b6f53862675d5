"""The two public functions: check the arguments, make the schedule, call the autograd function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import torch
from torch.profiler import record_function

from .autograd import Attention
from .schedule import Blocks, Options, Ranges, Schedule, slices_of

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

DTYPES = (torch.float32, torch.bfloat16)
HEAD_DIMS = (64, 128)


def ffa_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_ranges: Ranges,
    k_ranges: Ranges,
    mask_types: Sequence[int] | torch.Tensor,
    *,
    scale: float | None = None,
    return_lse: bool = False,
) -> Result:
    """Attention over slices: rows of q_ranges[r] see keys of k_ranges[r], all (FULL) or causally (CAUSAL).

    q [Sq, Hq, D]; k, v [Sk, Hk, D]; Hq a multiple of Hk; D 64 or 128; float32 or bfloat16, one device.
    q_ranges, k_ranges: R half-open token ranges (a sequence of pairs or an int tensor [R, 2]); query ranges do not
    overlap. mask_types: R times FULL = 0 or CAUSAL = 1, which is aligned at the bottom right: in a slice of sq rows and
    sk keys, row i sees keys j <= i + sk - sq. One slice is full or causal attention, one per document is varlen.
    scale: of the scores before the softmax, 1/sqrt(D) if None.

    Returns out [Sq, Hq, D], with return_lse also lse, float32 [Hq, Sq]: the natural logarithm of the sum of exp(score).
    A row in no range, or that sees no key, has out = 0, lse = -inf and no influence on any gradient. Differentiable in
    q, k and v, once; lse is not. Gradients repeat bit for bit on CPUs, and on GPUs under
    torch.use_deterministic_algorithms(True). Raises ValueError (one line) on bad arguments, UnsupportedOption on what
    the device's backend does not implement.
    """
    _check_tensors(q, k, v)
    with record_function("ffa_fwd_range_merge"):
        schedule = slices_of(q_ranges, k_ranges, mask_types, q.shape[0], k.shape[0])
    return _attend(q, k, v, schedule, scale, return_lse)


def ffa_block_sparse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_num: torch.Tensor,
    kv_indices: torch.Tensor,
    *,
    q_block: int,
    k_block: int,
    scale: float | None = None,
    ref_block: tuple[int, int] | None = None,
    pack_gqa: bool = False,
    swap_ab: bool = False,
    sparse_load: bool = False,
    return_lse: bool = False,
) -> Result:
    """Attention over lists of key blocks: query block i of key head h sees blocks kv_indices[h, i, :kv_num[h, i]].

    q, k, v, scale, results and errors as in `ffa_attention`. kv_num int32 [Hk, nq] and kv_indices int32 [Hk, nq, max]
    with nq = ceil(Sq / q_block), on the device of q; a list names each block at most once, in any order; all Hq / Hk
    query heads of a key head share its lists. The last block of either side may be shorter. The lists' values are
    checked on the CPU; on a GPU, where looking at them would stall the stream, they are the caller's to keep in range.
    The lists must not be changed between forward and backward.

    ref_block (query rows, keys of the compute tile), pack_gqa, swap_ab and sparse_load choose how the backend
    computes, never what; a choice it does not have raises UnsupportedOption.
    """
    _check_tensors(q, k, v)
    options = Options(_tile(ref_block), pack_gqa, swap_ab, sparse_load)
    schedule = Blocks(kv_num, kv_indices, q_block, k_block, q.shape[0], k.shape[0], options)
    _check_blocks(schedule, k.shape[1], q.device)
    return _attend(q, k, v, schedule, scale, return_lse)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: Schedule, scale: float | None, return_lse: bool
) -> Result:
    factor = q.shape[2] ** -0.5 if scale is None else float(scale)
    if not math.isfinite(factor):
        raise ValueError(f"scale = {factor} is not finite")
    attention: Any = Attention.apply  # untyped in torch
    out, lse = attention(q, k, v, schedule, factor)
    return (out, lse) if return_lse else out


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 3:
            raise ValueError(f"{name} must be [tokens, heads, head dim], not of shape {list(tensor.shape)}")
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name} must be float32 or bfloat16, not {_name(tensor.dtype)}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            here, there = (f"{_name(t.dtype)} on {t.device}" for t in (tensor, q))
            raise ValueError(f"q, k and v must share dtype and device: {name} is {here}, q {there}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have equal shapes, not {list(k.shape)} and {list(v.shape)}")
    if q.shape[2] != k.shape[2] or q.shape[2] not in HEAD_DIMS:
        raise ValueError(f"head dimensions must be equal and 64 or 128, not {q.shape[2]} (q) and {k.shape[2]} (k, v)")
    if not k.shape[1] or not q.shape[1] or q.shape[1] % k.shape[1]:
        raise ValueError(f"query heads must be a multiple of key heads, not {q.shape[1]} and {k.shape[1]}")


def _tile(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    try:
        rows, keys = map(index, given)
    except (TypeError, ValueError):
        raise ValueError(f"ref_block must be two integers, query rows and keys, not {given}") from None
    return rows, keys


def _check_blocks(blocks: Blocks, key_heads: int, device: torch.device) -> None:
    num, indices = blocks.kv_num, blocks.kv_indices
    if blocks.q_block < 1 or blocks.k_block < 1:
        raise ValueError(f"q_block and k_block must be at least 1, not {blocks.q_block} and {blocks.k_block}")
    n_q, n_k = -(-blocks.q_len // blocks.q_block), -(-blocks.k_len // blocks.k_block)
    for name, tensor in (("kv_num", num), ("kv_indices", indices)):
        if tensor.dtype != torch.int32 or tensor.device != device:
            raise ValueError(f"{name} must be int32 on {device}, not {_name(tensor.dtype)} on {tensor.device}")
    if num.shape != (key_heads, n_q):
        raise ValueError(f"kv_num must be [Hk, nq] = [{key_heads}, {n_q}], not {list(num.shape)}")
    if indices.ndim != 3 or indices.shape[:2] != num.shape:
        raise ValueError(f"kv_indices must be [Hk, nq, max] = [{key_heads}, {n_q}, max], not {list(indices.shape)}")
    if device.type == "cpu":
        _check_lists(num, indices, n_k)


def _check_lists(num: torch.Tensor, indices: torch.Tensor, n_k: int) -> None:
    longest = indices.shape[2]
    if bool(((num < 0) | (num > longest)).any()):
        raise ValueError(f"kv_num must lie in 0..{longest}, the length of the lists")
    used = torch.arange(longest, device=num.device) < num[..., None]
    listed = torch.where(used, indices, n_k)
    if bool(((indices < 0) | (indices >= n_k))[used].any()):
        raise ValueError(f"kv_indices must lie in 0..{n_k - 1}, the key blocks")
    times = torch.zeros(*num.shape, n_k + 1, dtype=torch.int32, device=num.device)
    times.scatter_add_(2, listed.long(), torch.ones_like(listed))
    if bool((times[..., :n_k] > 1).any()):
        raise ValueError("kv_indices names a key block twice in one list")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
