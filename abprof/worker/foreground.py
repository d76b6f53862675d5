"""A worker in the foreground, for profilers: the calls of one arm of one cell, and nothing around them."""

from __future__ import annotations

import traceback
import types
from pathlib import Path

import torch

from abprof.records import messages as wire
from abprof.worker import declared, mount
from abprof.worker.arms import OpenArm
from abprof.worker.bench import Bench
from abprof.worker.clocks import Clock
from abprof.worker.faults import begun_outside, classify


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
            traceback.print_exception(begun_outside(error))
        told = wire.Told(fault.status, fault.reason)
    Path(job.told).write_bytes(wire.dump(wire.pack(told)))
    return 0 if told.status == "ok" else 1


def _called(bench: Bench, job: wire.Foreground) -> wire.Told:
    """One call that is no part of it (it compiles, loads and tunes), then the warm-ups and the runs, all alike."""
    arm = bench.arms.make(job.open, job.open.placement)
    _call(arm, bench.clock)
    with bench.marked(job.open):
        for _ in range(job.warmup + job.runs):
            _call(arm, bench.clock)
    return wire.Told("ok", facts=_facts(bench, arm) if job.facts else {})


def _call(arm: OpenArm, clock: Clock) -> None:
    """A call from an idle device to an idle device; what puts its inputs back stays outside the range."""
    if arm.op.reset:
        arm.op.reset()
    clock.sync()
    with torch.profiler.record_function(wire.CALL_RANGE):
        arm.op.call()
        clock.sync()


def _facts(bench: Bench, arm: OpenArm) -> dict[str, wire.Value]:
    request = arm.request
    module = mount.workload(request.workload, bench.start.workloads[request.workload])
    return declared.facts(module, types.MappingProxyType(request.case), arm.inputs, arm.op)
