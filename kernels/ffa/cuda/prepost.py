"""Before and after the backward's matrix products: delta = rowsum(O * dO), and dQ from float32 to the inputs' dtype.

By the CUDA C++ library on a Hopper GPU when the build made it, otherwise by Triton kernels of the same arithmetic.
"""

from __future__ import annotations

import ctypes

import torch
import triton
import triton.language as tl

from . import native
from .launch import Launch, run

ROWS = 64  # rows of one program of the Triton kernels


@triton.jit(do_not_specialize=["Sq", "H"])
def ffa_preprocess(OUT, DO, LSE, DELTA, LSE2, Sq, H, D: tl.constexpr, ROWS: tl.constexpr):
    """Grid (cdiv(Sq, ROWS) * H,). OUT, DO: [Sq, H, D]; LSE (natural), DELTA, LSE2 (base 2; +inf for -inf)."""
    head = tl.program_id(0) % H
    rows = tl.program_id(0) // H * ROWS + tl.arange(0, ROWS)
    here = rows < Sq
    at = rows.to(tl.int64)[:, None] * (H * D) + head * D + tl.arange(0, D)[None, :]
    o = tl.load(OUT + at, mask=here[:, None], other=0.0).to(tl.float32)
    do = tl.load(DO + at, mask=here[:, None], other=0.0).to(tl.float32)
    stat = head.to(tl.int64) * Sq + rows
    lse = tl.load(LSE + stat, mask=here, other=0.0)
    tl.store(DELTA + stat, tl.sum(o * do, 1), mask=here)
    tl.store(LSE2 + stat, tl.where(lse == -float("inf"), float("inf"), lse * 1.4426950408889634), mask=here)


@triton.jit(do_not_specialize=["Sq", "H"])
def ffa_postprocess(SUM, DQ, scale, Sq, H, D: tl.constexpr, ROWS: tl.constexpr):
    """Grid (cdiv(Sq, ROWS) * H,). DQ [Sq, H, D] = scale * SUM [H, Sq, D], whose columns are in the order of summed_at."""
    head = tl.program_id(0) % H
    rows = tl.program_id(0) // H * ROWS + tl.arange(0, ROWS)
    here = (rows < Sq)[:, None]
    dims = tl.arange(0, D)[None, :]
    # Loaded as it lies, and its columns exchanged between threads: loads of 8 bytes here and there take twice as long.
    total = tl.load(SUM + (head.to(tl.int64) * Sq + rows)[:, None] * D + dims, mask=here)
    total = total.reshape(ROWS, D // 32, 4, 4, 2).permute(0, 1, 3, 2, 4).reshape(ROWS, D)
    at = rows.to(tl.int64)[:, None] * (H * D) + head * D + dims
    tl.store(DQ + at, (total * scale).to(DQ.dtype.element_ty), mask=here)


def preprocess_launch(
    out: torch.Tensor, dout: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor, lse2: torch.Tensor
) -> Launch:
    """The Triton kernel that writes delta and lse2."""
    tokens, heads, dim = out.shape
    args = (out, dout, lse, delta, lse2, tokens, heads)
    return Launch(ffa_preprocess, triton.cdiv(tokens, ROWS) * heads, args, {"D": dim, "ROWS": ROWS})


def postprocess_launch(total: torch.Tensor, dq: torch.Tensor, scale: float) -> Launch:
    """The Triton kernel that writes dq."""
    tokens, heads, dim = dq.shape
    args = (total, dq, scale, tokens, heads)
    return Launch(ffa_postprocess, triton.cdiv(tokens, ROWS) * heads, args, {"D": dim, "ROWS": ROWS})


def preprocess(out: torch.Tensor, dout: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(lse2, delta), float32 [Hq, Sq], of out, dout [Sq, Hq, D], as `launch.packed` makes them, and contiguous lse [Hq, Sq]."""
    tokens, heads, dim = out.shape
    lse2, delta = torch.empty_like(lse), torch.empty_like(lse)
    library = _library(out)
    if library is None:
        run(preprocess_launch(out, dout, lse, delta, lse2), out.device)
        return lse2, delta
    stream = torch.cuda.current_stream(out.device).cuda_stream
    pointers = [t.data_ptr() for t in (out, dout, lse, delta, lse2)]
    half = int(out.dtype == torch.float16)
    with torch.cuda.device(out.device):
        code = library.ffa_bwd_preprocess(stream, *pointers, tokens, heads, dim, half)
    native.check(code, "ffa_bwd_preprocess")
    return lse2, delta


def postprocess(total: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """dq [Sq, Hq, D] = scale * total in `dtype`; total: contiguous float32 [Hq, Sq, D], columns as in summed_at."""
    heads, tokens, dim = total.shape
    dq = torch.empty(tokens, heads, dim, dtype=dtype, device=total.device)
    library = _library(total)
    if library is None:
        run(postprocess_launch(total, dq, scale), total.device)
        return dq
    stream = torch.cuda.current_stream(total.device).cuda_stream
    half = int(dtype == torch.float16)
    with torch.cuda.device(total.device):
        code = library.ffa_bwd_postprocess(stream, total.data_ptr(), dq.data_ptr(), scale, tokens, heads, dim, half)
    native.check(code, "ffa_bwd_postprocess")
    return dq


def _library(tensor: torch.Tensor) -> ctypes.CDLL | None:
    if not tensor.is_cuda or torch.cuda.get_device_capability(tensor.device) != (9, 0):
        return None  # the library holds sm_90a code only
    return native.load()
