"""The GPU's kernels, in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CHUNK = 4096
PROCESSORS = torch.cuda.get_device_properties(0).multi_processor_count


# Triton compiles other code for a loop bound that is a multiple of 16.
@triton.jit(do_not_specialize=["steps"])
def _chain(out, steps, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    value = tl.load(out + at)
    for _ in range(steps):
        value = value * 0.5 + 0.5
    tl.store(out + at, value)


@triton.jit(do_not_specialize=["count"])
def _copy(source, out, count, CHUNK: tl.constexpr):
    step = tl.num_programs(0).to(tl.int64) * CHUNK
    for begin in range(tl.program_id(0).to(tl.int64) * CHUNK, count, step):
        at = begin + tl.arange(0, CHUNK)
        tl.store(out + at, tl.load(source + at, at < count), at < count)


def chain(out: torch.Tensor, steps: int) -> None:
    _chain[(out.numel() // 1024,)](out, steps, WIDTH=1024, num_warps=8)


def copy(source: torch.Tensor, out: torch.Tensor, count: int) -> None:
    _copy[(4 * PROCESSORS,)](source, out, count, CHUNK=CHUNK, num_warps=8)
