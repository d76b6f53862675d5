"""What kernels/memtraffic asks of memory, counted in Triton's interpreter, against the workload's formulas.

    TRITON_INTERPRET=1 python -m tests.kernels.memtraffic_count

Counts the bytes of unmasked elements of every load and store of the inputs' dtype; the lists (int32) are not counted, as
in the formulas. Prints a line for each problem, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import triton
from triton.runtime.interpreter import InterpreterBuilder

from abprof.worker.mount import workload
from kernels import memtraffic
from kernels.memtraffic import launch
from tests.workloads.conftest import FOLDER

CASES = [
    ("fused", {"subject": "flash2", "seqlen": 256, "batch": 1, "nhq": 2, "hd": 64, "dtype": "fp16"}),
    ("fused", {"subject": "bigbird", "seqlen": 512, "batch": 2, "nhq": 1, "hd": 64, "dtype": "fp32"}),
    ("unfused", {"subject": "flash2", "seqlen": 192, "batch": 1, "nhq": 1, "hd": 64, "dtype": "fp16"}),
    ("unfused", {"subject": "bigbird", "seqlen": 256, "batch": 1, "nhq": 1, "hd": 512, "dtype": "fp32"}),
]


@contextmanager
def counted(itemsize: int) -> Iterator[dict[str, float]]:
    """Bytes asked for so far, by kernel."""
    asked: dict[str, float] = {}
    running = [""]
    load, store, run = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store, launch.Launch.run

    def count(ptrs, mask) -> None:
        if ptrs.get_element_ty().primitive_bitwidth == 8 * itemsize and not ptrs.get_element_ty().is_int():
            asked[running[0]] = asked.get(running[0], 0.0) + float(mask.data.sum()) * itemsize

    def counting_load(self, ptrs, mask, *rest):
        count(ptrs, mask)
        return load(self, ptrs, mask, *rest)

    def counting_store(self, ptrs, value, mask, *rest):
        count(ptrs, mask)
        return store(self, ptrs, value, mask, *rest)

    def naming_run(self, device) -> None:
        running[0] = self.kernel.fn.__name__
        run(self, device)

    with (
        mock.patch.object(InterpreterBuilder, "create_masked_load", counting_load),
        mock.patch.object(InterpreterBuilder, "create_masked_store", counting_store),
        mock.patch.object(launch.Launch, "run", naming_run),
    ):
        yield asked


def main() -> int:
    if not triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET=1 is not set")
    module = workload("memory_traffic", str(FOLDER / "memory_traffic.py"))
    failed = 0
    for variant, case in CASES:
        inputs = module.inputs(case, "cpu", 1)
        op = module.prepare(memtraffic, variant, case, inputs)
        with counted(inputs["q"].element_size()) as asked:
            out = op.call()
        expected = {name: traffic.l1 for name, traffic in module.least(case, variant).items()}
        checked = module.check(case, out, module.reference(case, inputs))
        right = asked == expected and checked.ok and isinstance(out, torch.Tensor)
        failed += not right
        print(
            f"{variant} {case['subject']}: {'right' if right else f'{asked}, expected {expected}; {checked}'}",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
