"""Compile kernels/dmask for sm_90a without a GPU: python -m tests.kernels.dmask_compile [label ...]."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from triton.runtime import driver

from kernels.dmask import backward, forward, prepass
from kernels.dmask.launch import Launch
from tests.kernels.offline_driver import OfflineDriver, report


def catalogue(device: torch.device) -> Iterator[tuple[str, Launch]]:
    """(label, launch) of every kernel, for both head dimensions."""
    for dim in (64, 128):
        q, k, v, out = (torch.empty(2, 256, 4, dim, dtype=torch.bfloat16, device=device) for _ in range(4))
        lse, delta = (torch.empty(2, 4, 256, device=device) for _ in range(2))
        mask = torch.ones(2, 4, 256, 256, dtype=torch.bool, device=device)
        classes = prepass.Classes(
            torch.empty(8, 4, 4, dtype=torch.uint8, device=device), torch.zeros(8, 2, dtype=torch.int64, device=device)
        )
        lists = prepass.Lists(
            torch.empty(8, 4, 2, dtype=torch.int32, device=device),
            torch.empty(8, 4, 4, dtype=torch.int32, device=device),
        )
        tensors = (q, k, v, out, lse, delta)
        yield f"forward {dim}", forward.forward_launch(q, k, v, out, lse, mask, classes, lists, 0.1)
        yield f"dkdv {dim}", backward.dkdv_launch(tensors, k, v, mask, classes, lists, 0.1)
        yield f"dq {dim}", backward.dq_launch(tensors, q, mask, classes, lists, 0.1)
        yield f"delta {dim}", backward.delta_launch(out, out, delta)
    yield "classify", prepass.classify_launch(mask, classes)
    yield "lists", prepass.lists_launch(classes, lists, (4, 1))


if __name__ == "__main__":
    driver.set_active(OfflineDriver())
    report(catalogue, sys.argv[1:])
