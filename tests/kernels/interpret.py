"""Runs the CHECKS of a module in Triton's interpreter: TRITON_INTERPRET=1 python -m tests.kernels.interpret MODULE [NAME ...].

A process of its own, because the variable is read when Triton is imported. Prints one line per check, all or those
that are named, and exits with 1 if one is wrong.
"""

import sys
from importlib import import_module

import triton


def main(module: str, *wanted: str) -> int:
    if not triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET=1 is not set")
    checks, failed = import_module(f"tests.kernels.{module}").CHECKS, 0
    for name in wanted or checks:
        problem = checks[name]()
        failed += bool(problem)
        print(f"{name}: {problem or 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
