"""The CPU backend: blocked attention in C++ (csrc/), AVX-512 or AVX2 by run-time check, threads by OpenMP."""

from __future__ import annotations

import ctypes
import os

import torch
from torch.profiler import record_function

from ..schedule import Schedule, Slices, UnsupportedOption
from ..transpose import use_extension
from . import extension, library
from .library import load
from .problem import Problem, problem_of

__all__ = ["backward", "build", "forward", "instruction_set"]


def build(*, verbose: bool) -> None:
    """Build the library, and with FFA_TORCH_EXTENSION=1 the torch extension; see library.py and extension/."""
    library.build()
    if use_extension():
        extension.build(verbose=verbose)


ISA = {"avx2": 1, "avx512": 2}


def instruction_set() -> int:
    """1 for AVX2, 2 for AVX-512: the processor's best, or the one that FFA_CPU_ISA names.

    Raises UnsupportedOption when the processor lacks it, ValueError on an unknown name.
    """
    best = int(load().ffa_isa())
    named = os.environ.get("FFA_CPU_ISA", "")
    if named and named not in ISA:
        raise ValueError(f"FFA_CPU_ISA must be one of {', '.join(ISA)}, not {named!r}")
    wanted = ISA.get(named, max(best, 1))
    if wanted > best:
        lacks = "AVX-512 (F, BW, DQ, VL)" if wanted == ISA["avx512"] else "AVX2 with FMA"
        raise UnsupportedOption(f"this processor does not have {lacks}, which the CPU backend was to use")
    return wanted


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: Schedule, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse); see schedule.py. Every score is computed in float32, whatever the inputs' dtype."""
    isa, lib = instruction_set(), load()
    with record_function("ffa_fwd_prepare"):
        problem = problem_of(q, k, v, schedule, scale)
        out, lse = _outputs(q, schedule)
        problem.tensor("out", out)
        problem.pointer("lse", lse)
        _add_workspace(problem, lib.ffa_forward_workspace(problem.c, isa))
        lib.ffa_forward_prepare(problem.c, isa)
    with record_function("ffa_fwd_run"):
        lib.ffa_forward_run(problem.c, isa)
    return out, lse


def backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    schedule: Schedule,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dq, dk, dv), accumulated in float32, bit-equal from call to call with the same number of threads."""
    isa, lib = instruction_set(), load()
    with record_function("ffa_bwd_prepare"):
        problem = problem_of(q, k, v, schedule, scale, transposed=True)
        problem.tensor("dout", dout)
        problem.tensor("out", out)
        problem.pointer("lse", lse)
        grads = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for name, grad in zip(("dq", "dk", "dv"), grads, strict=True):
            problem.tensor(name, grad)
        _add_workspace(problem, lib.ffa_backward_workspace(problem.c, isa))
        lib.ffa_backward_prepare(problem.c, isa)
    with record_function("ffa_bwd_preprocess"):
        lib.ffa_backward_preprocess(problem.c, isa)
    with record_function("ffa_bwd_run"):
        lib.ffa_backward_run(problem.c, isa)
    with record_function("ffa_bwd_postprocess"):
        lib.ffa_backward_postprocess(problem.c, isa)
    return grads[0], grads[1], grads[2]


def _outputs(q: torch.Tensor, schedule: Schedule) -> tuple[torch.Tensor, torch.Tensor]:
    """Contiguous out and lse. Rows outside all slices are filled here; the library writes every other one."""
    shape, heads = q.shape, (q.shape[1], q.shape[0])
    if isinstance(schedule, Slices) and not schedule.covers_all:
        return q.new_zeros(shape), q.new_full(heads, -torch.inf, dtype=torch.float32)
    return torch.empty(shape, dtype=q.dtype, device="cpu"), torch.empty(heads, dtype=torch.float32, device="cpu")


def _add_workspace(problem: Problem, floats: int) -> None:
    problem.pointer("workspace", torch.empty(floats + 16, dtype=torch.float32, device="cpu"))
    problem.c.workspace = -(-ctypes.cast(problem.c.workspace, ctypes.c_void_p).value // 64) * 64  # type: ignore[operator]
