"""Runs kernels/memtraffic in Triton's interpreter: TRITON_INTERPRET=1 python -m tests.kernels.memtraffic_interpret [case ...].

A process of its own, because the variable is read when Triton is imported. Prints one line per case, and exits with 1
if one is wrong.
"""

from __future__ import annotations

import sys

import triton

from tests.kernels import memtraffic_cases as cases


def main(wanted: list[str]) -> int:
    if not triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET=1 is not set")
    failed = 0
    for case in cases.CASES:
        if wanted and str(case) not in wanted:
            continue
        tensors, visited = cases.draw(case, "cpu", seed=3), cases.lists(case, "cpu")
        problem = cases.wrong(case, cases.attend(case, tensors, visited), tensors, visited)
        failed += bool(problem)
        print(f"{case}: {problem or 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
