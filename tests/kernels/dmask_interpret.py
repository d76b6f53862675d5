"""Runs kernels/dmask in Triton's interpreter: TRITON_INTERPRET=1 python -m tests.kernels.dmask_interpret [case ...].

A process of its own, because the variable is read when Triton is imported. Prints one line per case, per question of
dmask_prepass and per direction of the workload, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import sys

import torch
import triton

from abprof.worker.mount import workload
from kernels import dmask
from tests.kernels import dmask_cases as cases
from tests.kernels import dmask_prepass
from tests.workloads.conftest import FOLDER


def workload_is_right() -> int:
    """workloads/dynamic_mask.py with the package: inputs, call, reference, check. How many directions are wrong."""
    module = workload("dynamic_mask", str(FOLDER / "dynamic_mask.py"))
    shape = {"seqlen": 130, "batch": 2, "nhq": 1, "nhk": 1, "mask_heads": 1, "hd": 64, "dtype": "fp16"}
    failed = 0
    for direction in ("fwd", "bwd"):
        one = {**shape, "pattern": "structured", "sparsity": 0.7, "direction": direction}
        inputs = module.inputs(one, "cpu", 3)
        found = module.check(one, module.prepare(dmask, None, one, inputs).call(), module.reference(one, inputs))
        failed += not found.ok
        print(f"dynamic_mask {direction}: {'right' if found.ok else found.reason}", flush=True)
    return failed


def main(wanted: list[str]) -> int:
    if not triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET=1 is not set")
    failed = dmask_prepass.ask("cpu") + workload_is_right()
    for case in cases.named(*wanted) if wanted else cases.CASES:
        dtype = torch.bfloat16 if case.dim == 128 else torch.float16
        data = cases.draw(case, dtype, "cpu", seed=len(case.name))
        problem = cases.wrong(cases.attend(data, case.scale), data, case.scale)
        failed += bool(problem)
        print(f"{case.name} {dtype}: {problem or 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
