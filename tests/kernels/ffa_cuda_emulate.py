"""Runs the Gluon kernels in the emulator: TRITON_INTERPRET=1 python -m tests.kernels.ffa_cuda_emulate [case ...].

With FFA_BACKWARD=FILE the backward kernel comes from that file: how a test plants mistakes. SEED=N orders the events of
the emulator in another way.

The choice of kernels is made as on a Hopper GPU; those slices that go to the plain Triton kernels run in Triton's
interpreter. Prints one line per case, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import torch
import triton

from kernels.ffa import cuda
from kernels.ffa.cuda import dispatch, launch, plan
from tests.kernels import ffa_cuda_cases as cases
from tests.kernels.gluon_emulator import emulate

interpret = launch.run


def run(made: Any, device: torch.device) -> None:
    if made is not None and made.kernel in (launch.ffa_fwd, launch.ffa_bwd):
        emulate(made, int(os.environ.get("SEED", "0")))
    else:
        interpret(made, device)


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("kernels.ffa.cuda.planted", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(wanted: list[str]) -> int:
    if not triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET=1 is not set")
    torch.set_num_threads(1)
    dispatch.is_hopper = lambda device: True
    plan.processors = lambda device: 4  # few enough for pieces
    launch.run = run
    if "FFA_BACKWARD" in os.environ:
        launch.ffa_bwd = load(os.environ["FFA_BACKWARD"]).ffa_bwd
    device, failed, dtype = torch.device("cpu"), 0, torch.bfloat16
    for case in [*cases.slice_cases(128), *cases.block_cases()]:
        data, schedule, scale = cases.draw(case, dtype, device, seed=len(case.name)), case.schedule(device), 0.1
        chosen = [dispatch.choose(direction, data["q"], schedule, scale).kernel for direction in ("fwd", "bwd")]
        if chosen == ["triton", "triton"] or (wanted and case.name not in wanted):
            continue
        with cases.poisoned():
            out, lse = cuda.forward(data["q"], data["k"], data["v"], schedule, scale)
            grads = cuda.backward(data["dout"], data["q"], data["k"], data["v"], out, lse, schedule, scale)
        problem = cases.wrong((out, lse, grads), data, case, scale)
        failed += bool(problem)
        print(f"{case.name} {'+'.join(chosen)}: {problem or 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
