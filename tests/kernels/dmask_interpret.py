"""Runs kernels/dmask in Triton's interpreter: TRITON_INTERPRET=1 python -m tests.kernels.dmask_interpret [name ...].

A process of its own, because the variable is read when Triton is imported. A name is a case's or a question's of
dmask_prepass, or `workload`; without any it is all of them. Prints one line for each, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
import triton

from abprof.worker.workload import load as workload
from kernels import dmask
from tests.kernels import dmask_cases as cases
from tests.kernels import dmask_prepass
from tests.workloads.conftest import FOLDER


def case_problem(case: cases.Case) -> str:
    dtype = torch.bfloat16 if case.dim == 128 else torch.float16
    data = cases.draw(case, dtype, "cpu", seed=len(case.name))
    return cases.wrong(cases.attend(data, case.scale), data, case.scale)


def workload_problem() -> str:
    """Of workloads/dynamic_mask.py with the package: inputs, call, reference, check, both directions."""
    module = workload("dynamic_mask", str(FOLDER / "dynamic_mask.py"))
    shape = {"seqlen": 130, "batch": 2, "nhq": 1, "nhk": 1, "mask_heads": 1, "hd": 64, "dtype": "fp16"}
    reasons = []
    for direction in ("fwd", "bwd"):
        one = {**shape, "pattern": "structured", "sparsity": 0.7, "direction": direction}
        inputs = module.inputs(one, "cpu", 3)
        found = module.check(one, module.prepare(dmask, None, one, inputs).call(), module.reference(one, inputs))
        reasons.append(found.reason)
    return "; ".join(filter(None, reasons))


CHECKS: dict[str, Callable[[], str]] = {
    **{question.__name__: partial(question, "cpu") for question in dmask_prepass.QUESTIONS},
    "workload": workload_problem,
    **{case.name: partial(case_problem, case) for case in cases.CASES},
}


def main(wanted: list[str]) -> int:
    if not triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET=1 is not set")
    failed = 0
    for name in wanted or CHECKS:
        problem = CHECKS[name]()
        failed += bool(problem)
        print(f"{name}: {problem or 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
