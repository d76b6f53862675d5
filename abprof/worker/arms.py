"""The arms of the cell that is open: made, warmed, moved to other addresses, and timed."""

from __future__ import annotations

import gc
import random
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from abprof import wire
from abprof.kit import Op
from abprof.worker.clocks import Clock, mean, shortest
from abprof.worker.faults import MissingPackage


@dataclass
class OpenArm:
    """One arm of the open cell. `inputs` and `pad` keep its memory alive and in its place."""

    request: wire.Open
    op: Op
    inputs: Any
    pad: object
    wall: float = 0.0


class Arms:
    """Those that are open, by id. `workload` gives a workload's module by name, `kernel` the package under test."""

    def __init__(
        self, clock: Clock, workload: Callable[[str], types.ModuleType], kernel: Callable[[], types.ModuleType]
    ) -> None:
        self._clock, self._workload, self._kernel = clock, workload, kernel
        self._open: dict[str, OpenArm] = {}

    def __getitem__(self, id: str) -> OpenArm:
        return self._open[id]

    def __setitem__(self, id: str, arm: OpenArm) -> None:
        self._open[id] = arm

    def taken(self, id: str) -> OpenArm:
        """The arm, which is open no longer: should what follows raise, nothing is left that could be timed."""
        return self._open.pop(id)

    def clear(self) -> None:
        """Forget all of them."""
        self._open.clear()

    def open(self, request: wire.Open) -> wire.Opened:
        """Make inputs and operation, call it until it is warm. Raises what those raise."""
        if self._open.pop(request.arm, None):
            gc.collect()
        self._clock.reset_peak()
        began = time.perf_counter_ns()
        arm = self.make(request, request.placement)
        opened = time.perf_counter_ns() - began
        first = self._clock.wall(arm.op)  # compiles what was not compiled
        peak = self._clock.peak_bytes()
        if peak is not None:
            peak -= getattr(arm.pad, "nbytes", 0)  # not the kernel's doing
        self._open[request.arm] = arm
        return wire.Opened("ok", "", self._warm(arm, first), float(opened), peak)

    def _warm(self, arm: OpenArm, first: float) -> float:
        """How long a warm call takes, ns; 0 where the clock does not say. A long one, the `first` call's time says so
        too, is made once more and no oftener; not even that where an earlier epoch told its time."""
        if arm.request.usual_ns >= wire.LONG_CALL:
            arm.wall = first
            return arm.request.usual_ns
        arm.wall = self._clock.wall(arm.op)
        if min(first, arm.wall) >= wire.LONG_CALL:
            return arm.wall
        arm.wall = shortest([arm.wall, self._clock.wall(arm.op)])
        return shortest([self._clock.turn(arm.op, 1, cold=False, arm=arm.request.arm) for _ in range(2)])

    def make(self, request: wire.Open, placement: int) -> OpenArm:
        """Inputs and operation of an arm; nothing of it was called yet."""
        pad = self._clock.pad(placement)
        inputs = self.inputs(request)
        return OpenArm(request, self.prepared(request, inputs), inputs, pad)

    def prepared(self, request: wire.Open, inputs: Any) -> Op:
        """The operation on these inputs."""
        module, case = self._workload(request.workload), types.MappingProxyType(request.case)
        op: Op
        if request.peer:
            op = module.PEERS[request.peer](case, inputs)
        else:
            kernel = self._kernel()
            if request.variant and request.variant not in getattr(kernel, "VARIANTS", ()):
                raise MissingPackage(f"this side has no variant {request.variant}")
            op = module.prepare(kernel, request.variant or None, case, inputs)
        self._clock.sync()
        return op

    def inputs(self, request: wire.Open) -> Any:
        """Inputs that nothing was called on yet: the same bytes each time."""
        torch.manual_seed(request.seed)
        random.seed(request.seed)
        return self._workload(request.workload).inputs(
            types.MappingProxyType(request.case), self._clock.device, request.seed
        )

    def reopened(self, of: wire.Open, wall: float) -> None:
        """Open an arm as it was before, with one untimed call; `wall` is that of its last, which a long one keeps."""
        arm = self.make(of, of.placement)
        arm.wall = wall if wall >= wire.LONG_CALL else self._clock.wall(arm.op)
        self._open[of.arm] = arm

    def turn(self, request: wire.Turn) -> wire.Turned:
        """Some calls of one arm, ended by a device synchronise."""
        arm, clock = self._open[request.arm], self._clock
        if request.placement is not None:
            self._replace(arm, request.placement)
        start, mhz = time.monotonic_ns(), 0.0
        if request.timer == "do_bench":
            value = clock.do_bench(arm.op)
        elif request.timer == "sustained":
            value = clock.sustained(arm.op, request.calls)
        elif request.timer == "wall_clock":
            value = mean([clock.wall(arm.op) for _ in range(request.calls)])
        else:
            value = clock.turn(arm.op, request.calls, cold=request.cold, arm=request.arm)
            mhz = clock.mhz()
        end = time.monotonic_ns()
        host = clock.kind == "cpu" or request.timer == "wall_clock"
        empty = clock.empty(request.empties, cold=request.cold) if request.empties else 0.0
        return wire.Turned(value, value if host else arm.wall, start, end, empty, mhz)

    def _replace(self, arm: OpenArm, placement: int) -> None:
        """Fresh inputs of the same values at other addresses, and one untimed call, whose wall time is kept."""
        arm.inputs = arm.pad = None
        arm.op = Op(lambda: None)
        fresh = self.make(arm.request, placement)
        arm.op, arm.inputs, arm.pad = fresh.op, fresh.inputs, fresh.pad
        arm.wall = self._clock.wall(arm.op)
