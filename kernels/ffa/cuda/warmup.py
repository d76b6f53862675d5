"""Compile up front what the usual calls need, and print what the compilers made of it: that is the build log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

from ..schedule import CAUSAL, FULL, Blocks, Slices
from . import launch, native, prepost
from .dispatch import HEAD_DIMS, is_hopper
from .launch import Launch, Work
from .plan import Part

TOKENS, HEADS = 256, 2


def build(*, verbose: bool) -> None:
    """The CUDA C++ library by nvcc, unless the GPU is no Hopper GPU, and every Triton and Gluon kernel of `catalogue` for the present GPU.

    float16 and blocks other than 64 x 64 and 128 x 128 are compiled by the first call that needs them. Raises RuntimeError
    when a compiler that is there fails. verbose prints more; the flags and options are the same.
    """
    gpu = torch.cuda.is_available()
    if not gpu or is_hopper(torch.device("cuda")):
        native.compile_library(verbose=verbose)
    if not gpu:
        print("ffa cuda: no GPU, so no Triton kernel is compiled", flush=True)
        return
    device = torch.device("cuda", torch.cuda.current_device())
    print(f"ffa cuda: Triton {triton.__version__}, {torch.cuda.get_device_name(device)}", flush=True)
    begin = time.perf_counter()
    seconds: dict[str, tuple[float, bool]] = {}
    previous = triton.knobs.compilation.listener

    def listen(*, metadata: dict[str, Any], times: Any, cache_hit: bool, **rest: Any) -> None:
        seconds[metadata["hash"]] = (times.total / 1e6, cache_hit)
        if previous is not None:
            previous(metadata=metadata, times=times, cache_hit=cache_hit, **rest)

    triton.knobs.compilation.listener = listen
    try:
        with torch.cuda.device(device):
            compiled = compile_all(device)
    finally:
        triton.knobs.compilation.listener = previous
    for label, kernel in compiled:
        kernel._init_handles()  # loads the machine code: registers and spills are known only then
        took, cached = seconds.get(kernel.metadata.hash, (0.0, True))
        print(
            f"ffa cuda: {label}: {'cached' if cached else f'{took:.1f} s'}, {kernel.n_regs} registers, "
            f"{kernel.n_spills} spills, {kernel.metadata.shared} bytes shared, {kernel.metadata.num_warps} warps"
            + (f", {kernel.metadata.num_stages} stages, {kernel.metadata.hash}" if verbose else ""),
            flush=True,
        )
    print(f"ffa cuda: {len(compiled)} kernels in {time.perf_counter() - begin:.1f} s", flush=True)


def catalogue(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Iterator[tuple[str, Launch]]:
    """(label, launch) of every kernel of the usual calls on a Hopper GPU, on small uninitialised tensors. Nothing is
    launched, so the device may be the CPU."""
    for dim in HEAD_DIMS:
        q, k, v, out, dout, dk, dv = (torch.empty(TOKENS, HEADS, dim, dtype=dtype, device=device) for _ in range(7))
        total = torch.empty(HEADS, TOKENS, dim, dtype=torch.float32, device=device)
        lse, delta = (torch.empty(HEADS, TOKENS, dtype=torch.float32, device=device) for _ in range(2))
        for name, schedule in _schedules(device).items():
            work, back = Work(schedule, Part("fwd"), 1.0), Work(schedule, Part("bwd"), 1.0)
            if name in ("full", "causal", "blocks64", "blocks128"):
                yield f"gluon fwd {name} {dim}", _present(launch.gluon_forward(q, k, v, out, lse, work))
            if name in ("causal", "blocks128") and dim == 128:
                (made,) = launch.gluon_backward(dout, q, k, v, (lse, delta), total, dk, dv, back, 0)
                yield f"gluon bwd {name} {dim}", made
            if name == "long" and dim == 128:
                made, joined = launch.gluon_backward(dout, q, k, v, (lse, delta), total, dk, dv, back, 16)
                yield f"gluon bwd full in pieces {dim}", made
                yield f"triton join {dim}", joined
            if name in ("causal", "blocks64"):
                yield f"triton fwd {name} {dim}", _present(launch.triton_forward(q, k, v, out, lse, work))
                made = launch.triton_dkdv(dout, q, k, v, (lse, delta), dk, dv, back)
                yield f"triton dkdv {name} {dim}", _present(made)
                for into in (q, total) if name == "causal" and dim == 128 else (q,):
                    made = launch.triton_dq(dout, q, k, v, (lse, delta), into, 1.0, back)
                    yield f"triton dq {name} {dim} to {str(into.dtype).removeprefix('torch.')}", _present(made)
        if native.load() is None:
            yield f"triton preprocess {dim}", prepost.preprocess_launch(out, dout, lse, delta, lse)
            if dim == 128:
                yield "triton postprocess", prepost.postprocess_launch(total, q, 1.0)


def _schedules(device: torch.device) -> dict[str, Slices | Blocks]:
    everything = ((0, TOKENS),)
    found: dict[str, Slices | Blocks] = {
        "full": Slices(everything, everything, (FULL,), TOKENS, TOKENS),
        "causal": Slices(everything, everything, (CAUSAL,), TOKENS, TOKENS),
        "long": Slices(((0, 4 * TOKENS),), everything, (FULL,), 4 * TOKENS, TOKENS),  # enough rows for pieces
    }
    for block in (64, 128):
        n = TOKENS // block
        num = torch.full((HEADS, n), n, dtype=torch.int32, device=device)
        indices = torch.arange(n, dtype=torch.int32, device=device).expand(HEADS, n, n).contiguous()
        found[f"blocks{block}"] = Blocks(num, indices, block, block, TOKENS, TOKENS)
    return found


def compile_all(device: torch.device) -> list[tuple[str, Any]]:
    """(label, compiled kernel) of the catalogue, on several threads: the compiler's long steps drop Python's lock."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool, triton.AsyncCompileMode(pool):
        started = [
            (label, job.kernel.warmup(*job.args, grid=(job.programs,), **job.options))
            for label, job in catalogue(device)
            if is_hopper(device) or not label.startswith("gluon")
        ]
    return [(label, made.result() if hasattr(made, "result") else made) for label, made in started]


def _present(made: Launch | None) -> Launch:
    if made is None:
        raise AssertionError("an empty part")
    return made
