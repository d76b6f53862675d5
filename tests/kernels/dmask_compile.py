"""Compile kernels/dmask for sm_90a on a machine without a GPU: python -m tests.kernels.dmask_compile [label ...].

A process of its own, like tests.kernels.offline_driver. Prints one JSON object per kernel, all or those asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch
from triton.runtime import driver

from tests.kernels.offline_driver import OfflineDriver, machine_code

OPCODES = ("HGMMA", "WARPGROUP.DEPBAR", "LDGSTS", "STL", "LDL")


def catalogue() -> Iterator[tuple[str, object]]:
    """(label, launch) of every kernel, for both head dimensions."""
    from kernels.dmask import backward, forward, prepass

    for dim in (64, 128):
        q, k, v, out = (torch.empty(2, 256, 4, dim, dtype=torch.bfloat16) for _ in range(4))
        lse, delta = (torch.empty(2, 4, 256) for _ in range(2))
        mask = torch.ones(2, 4, 256, 256, dtype=torch.bool)
        classes = prepass.Classes(torch.empty(8, 4, 4, dtype=torch.uint8), torch.zeros(8, 2, dtype=torch.int64))
        lists = prepass.Lists(torch.empty(8, 4, 2, dtype=torch.int32), torch.empty(8, 4, 4, dtype=torch.int32))
        tensors = (q, k, v, out, lse, delta)
        yield f"forward {dim}", forward.forward_launch(q, k, v, out, lse, mask, classes, lists, 0.1)
        yield f"dkdv {dim}", backward.dkdv_launch(tensors, k, v, mask, classes, lists, 0.1)
        yield f"dq {dim}", backward.dq_launch(tensors, q, mask, classes, lists, 0.1)
        yield f"delta {dim}", backward.delta_launch(out, out, delta)
    yield "classify", prepass.classify_launch(mask, classes)
    yield "lists", prepass.lists_launch(classes, lists, (4, 1))


def main(labels: list[str]) -> None:
    driver.set_active(OfflineDriver())
    for label, job in catalogue():
        if not labels or label in labels:
            code = machine_code(job.kernel.warmup(*job.args, grid=(job.programs,), **job.options))
            facts = {"label": label, "registers": code.registers, "stack": code.stack, "shared": code.shared}
            print(json.dumps(facts | {opcode: code.count(opcode) for opcode in OPCODES}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
