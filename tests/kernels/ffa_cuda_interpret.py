"""Runs the Triton kernels in the interpreter: TRITON_INTERPRET=1 python -m tests.kernels.ffa_cuda_interpret [case ...].

A process of its own, because the variable is read when Triton is imported. Prints one line per case, and exits with 1
if one is wrong.
"""

from __future__ import annotations

import sys

import torch
import triton

from kernels.ffa import cuda
from tests.kernels import ffa_cuda_cases as cases


def main(wanted: list[str]) -> int:
    if not triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET=1 is not set")
    device, failed = torch.device("cpu"), 0
    for case in [*cases.slice_cases(96), *cases.block_cases()]:
        if wanted and case.name not in wanted:
            continue
        for dtype in (torch.bfloat16,) if case.dim == 128 else (torch.float16,):
            data = cases.draw(case, dtype, device, seed=len(case.name))
            schedule, scale = case.schedule(device), case.dim**-0.5
            with cases.poisoned():
                out, lse = cuda.forward(data["q"], data["k"], data["v"], schedule, scale)
                inputs = (data["dout"], data["q"], data["k"], data["v"], out, lse)
                grads = cuda.backward(*inputs, schedule, scale)
            problem = cases.wrong((out, lse, grads), data, case, scale)
            failed += bool(problem)
            print(f"{case.name} {dtype}: {problem or 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
