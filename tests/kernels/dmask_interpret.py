"""Runs kernels/dmask in Triton's interpreter: TRITON_INTERPRET=1 python -m tests.kernels.dmask_interpret [case ...].

A process of its own, because the variable is read when Triton is imported. Prints one line per case and per question of
dmask_prepass, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import sys

import torch
import triton

from tests.kernels import dmask_cases as cases
from tests.kernels import dmask_prepass


def main(wanted: list[str]) -> int:
    if not triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET=1 is not set")
    failed = dmask_prepass.ask("cpu")
    for case in cases.named(*wanted) if wanted else cases.CASES:
        dtype = torch.bfloat16 if case.dim == 128 else torch.float16
        data = cases.draw(case, dtype, "cpu", seed=len(case.name))
        problem = cases.wrong(cases.attend(data, case.scale), data, case.scale)
        failed += bool(problem)
        print(f"{case.name} {dtype}: {problem or 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
