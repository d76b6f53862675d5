"""Compile kernels/memtraffic for sm_90a without a GPU: python -m tests.kernels.memtraffic_compile [label ...]."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from triton.runtime import driver

from kernels.memtraffic import launch, lists
from tests.kernels.offline_driver import OfflineDriver, report


def catalogue(device: torch.device) -> Iterator[tuple[str, launch.Launch]]:
    """Every kernel in the original's dtypes and head dimensions."""
    every = lists.every_block(4, device)
    for dtype, dim in ((torch.float16, 128), (torch.float16, 256), (torch.float32, 512)):
        q, k, v, out = (torch.empty(1, 2, 256, dim, dtype=dtype, device=device) for _ in range(4))
        scores = torch.empty(2, every.entries, 64, 64, dtype=dtype, device=device)
        end = f"{str(dtype).removeprefix('torch.')} {dim}"
        if dim < 512:
            yield f"flash2 {end}", launch.flash2(q, k, v, out, 0.1)
        yield f"blocks {end}", launch.blocks(q, k, v, out, every, 0.1)
        yield f"qk {end}", launch.qk(q, k, scores, every, 0.1)
        yield f"pv {end}", launch.pv(scores, v, out, every)
    yield "softmax float32", launch.softmax(scores, every)


if __name__ == "__main__":
    driver.set_active(OfflineDriver())
    report(catalogue, sys.argv[1:])
