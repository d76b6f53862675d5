"""The CUDA backend: Gluon kernels for Hopper, plain Triton for the rest, and a little CUDA C++. See docs/KERNELS.md.

`forward` and `backward` are the backend interface of ../schedule.py. Phases are profiler ranges, on every call: prepare
(checks, work lists, allocations), preprocess, run (the matrix kernels), postprocess, cast. A phase with nothing to do
is there and empty: the forward writes the inputs' dtype and the natural-log LSE itself.
"""

from __future__ import annotations

import torch
from torch.profiler import record_function

from ..schedule import Schedule
from . import launch, plan, prepost
from .dispatch import check_supported, choose
from .plan import Part
from .warmup import build

__all__ = ["backward", "build", "forward"]


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, schedule: Schedule, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [Sq, Hq, D] in q's dtype, lse float32 [Hq, Sq]). Raises UnsupportedOption for what is not implemented."""
    with record_function("ffa_fwd_prepare"):
        check_supported(q, k, v, schedule)
        long, rest = _split("fwd", q, schedule, scale)
        q, k, v = map(launch.packed if rest else launch.readable, (q, k, v))
        out = _empty_like(q)
        lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
        launches = [
            long and launch.gluon_forward(q, k, v, out, lse, long),
            rest and launch.triton_forward(q, k, v, out, lse, rest),
        ]
    with record_function("ffa_fwd_run"):
        for prepared in launches:
            launch.run(prepared, q.device)
    with record_function("ffa_fwd_postprocess"):
        pass
    with record_function("ffa_fwd_cast"):
        pass
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
    """(dq, dk, dv) in the inputs' dtype. The Gluon kernel's dq may differ in its last bits between runs (atomics), so it is not
    taken under torch.use_deterministic_algorithms."""
    with record_function("ffa_bwd_prepare"):
        check_supported(q, k, v, schedule)
        long, rest = _split("bwd", q, schedule, scale)
        q, k, v = map(launch.packed if rest else launch.readable, (q, k, v))
        dout, out = launch.packed(dout), launch.packed(out)
        dk, dv = _empty_like(k), _empty_like(v)
        # The Gluon kernel adds to dQ in float32, head by head; Triton alone writes it once.
        sq, heads, dim = q.shape
        dq = torch.zeros(heads, sq, dim, dtype=torch.float32, device=q.device) if long else _empty_like(q)
    with record_function("ffa_bwd_preprocess"):
        stats = prepost.preprocess(out, dout, lse.contiguous())
    with record_function("ffa_bwd_run"):
        if long:
            processors = plan.processors(q.device)
            for prepared in launch.gluon_backward(dout, q, k, v, stats, dq, dk, dv, long, processors):
                launch.run(prepared, q.device)
        if rest:
            launch.run(launch.triton_dkdv(dout, q, k, v, stats, dk, dv, rest), q.device)
            launch.run(launch.triton_dq(dout, q, k, v, stats, dq, 1.0 if long else scale, rest), q.device)
    with record_function("ffa_bwd_postprocess"):
        pass
    with record_function("ffa_bwd_cast"):
        if long:
            dq = prepost.postprocess(dq, scale, q.dtype)
    return dq, dk, dv


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, whatever the tensor's strides."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _split(
    direction: str, q: torch.Tensor, schedule: Schedule, scale: float
) -> tuple[launch.Work | None, launch.Work | None]:
    """(what the Gluon kernels take, what the Triton kernels take), by the rule in dispatch.py."""
    kernel = choose(direction, q, schedule, scale).kernel
    if kernel == "both":
        parts = (Part(direction, "long"), Part(direction, "rest"))
        return launch.Work(schedule, parts[0], scale), launch.Work(schedule, parts[1], scale)
    work = launch.Work(schedule, Part(direction), scale)
    return (work, None) if kernel == "gluon" else (None, work)
