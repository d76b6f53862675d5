"""A worker in the foreground, for profilers: the calls of one arm of one cell, and nothing around them."""

from __future__ import annotations

import contextlib
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

import torch

from abprof import wire
from abprof.worker import declared, mount
from abprof.worker.bench import Bench, OpenArm
from abprof.worker.clocks import Clock
from abprof.worker.faults import classify


def run(file: Path) -> int:
    """Do what the file, a wire.Foreground, says. The exit code; what became of it is told in the file that it names."""
    job: wire.Foreground = wire.unpack(wire.Foreground, wire.load(file.read_bytes()))
    bench = Bench(job.start)
    try:
        told = _called(bench, job)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a workload raises is an outcome, exit() included
        fault = classify(error, bench.mounted)
        if fault.status != "unsupported":
            traceback.print_exception(error)
        told = wire.Told(fault.status, fault.reason)
    Path(job.told).write_bytes(wire.dump(wire.pack(told)))
    return 0 if told.status == "ok" else 1


def _called(bench: Bench, job: wire.Foreground) -> wire.Told:
    """One call that is no part of it (it compiles, loads and tunes), then the warm-ups and the runs, all alike."""
    arm = bench.make(job.open, job.open.placement)
    _call(arm, bench.clock, contextlib.nullcontext())
    for _ in range(job.warmup + job.runs):
        _call(arm, bench.clock, _range(bench.clock))
    return wire.Told("ok", facts=_facts(bench, arm) if job.facts else {})


def _call(arm: OpenArm, clock: Clock, around: contextlib.AbstractContextManager[None]) -> None:
    """A call from an idle device to an idle device; what puts its inputs back stays outside the range."""
    if arm.op.reset:
        arm.op.reset()
    clock.sync()
    with around:
        arm.op.call()
        clock.sync()


@contextlib.contextmanager
def _range(clock: Clock) -> Iterator[None]:
    """An NVTX range of the process, and not of the thread: autograd launches a backward from a thread of its own."""
    if clock.kind != "cuda":
        yield
        return
    opened = torch.cuda.nvtx.range_start(wire.CALL_RANGE)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_end(opened)


def _facts(bench: Bench, arm: OpenArm) -> dict[str, wire.Value]:
    request = arm.request
    module = mount.workload(request.workload, bench.start.workloads[request.workload])
    return declared.facts(module, types.MappingProxyType(request.case), arm.inputs, arm.op)
