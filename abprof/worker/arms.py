"""The open arms of one cell: set up, warmed up, moved to other addresses, and timed."""

from __future__ import annotations

import gc
import random
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker import workload
from abprof.worker.api import Op
from abprof.worker.clocks import Clock, NotCaptured, mean, shortest
from abprof.worker.faults import MissingPackage, running

# A first call that takes longer than this times its usual time loaded or compiled something.
_LOADED = 1.5


@dataclass
class Arm:
    """An open arm. `inputs` and `pad` keep its memory alive and in its place; `wall` is its last untimed call, ns."""

    request: wire.Open
    op: Op
    inputs: Any
    pad: object
    wall: float = 0.0
    graph: Any = None  # of the clock, once captured


class Arms(dict[str, Arm]):
    """The open arms by id. `module` loads a workload by name, `kernel` the package under test, `compiled` counts the
    kernels compiled so far."""

    def __init__(
        self,
        clock: Clock,
        module: Callable[[str], types.ModuleType],
        kernel: Callable[[], types.ModuleType],
        compiled: Callable[[], int],
    ) -> None:
        super().__init__()
        self.clock, self.module, self._kernel, self._compiled = clock, module, kernel, compiled

    def inputs(self, request: wire.Open) -> Any:
        """Fresh inputs: the same bytes each time."""
        torch.manual_seed(request.seed)
        random.seed(request.seed)
        module = self.module(request.workload)
        with running(module, "inputs"):
            return module.inputs(types.MappingProxyType(request.case), self.clock.device, request.seed)

    def prepared(self, request: wire.Open, inputs: Any) -> Op:
        """The operation on these inputs. Raises MissingPackage if the side lacks the variant."""
        module, case = self.module(request.workload), types.MappingProxyType(request.case)
        op: Op
        if request.peer:
            op = module.PEERS[request.peer](case, inputs)
        else:
            kernel = self._kernel()
            if request.variant and request.variant not in getattr(kernel, "VARIANTS", ()):
                raise MissingPackage(f"this side has no variant {request.variant}")
            op = workload.returned("prepare", module.prepare(kernel, request.variant or None, case, inputs), Op)
        self.clock.sync()
        return op

    def make(self, request: wire.Open, placement: int) -> Arm:
        """Inputs and operation of an arm, not called yet."""
        pad = self.clock.pad(placement)
        inputs = self.inputs(request)
        return Arm(request, self.prepared(request, inputs), inputs, pad)

    def open(self, request: wire.Open) -> wire.Opened:
        """Make inputs and operation, and call it until it is warm. Raises what those raise."""
        if self.pop(request.arm, None):
            gc.collect()
        self.clock.reset_peak()
        began = time.perf_counter_ns()
        arm = self.make(request, request.placement)
        opened = time.perf_counter_ns() - began
        first = self.clock.wall(arm.op)  # compiles what was not compiled
        peak = self.clock.peak_bytes()
        if peak is not None:
            peak -= getattr(arm.pad, "nbytes", 0)  # not the kernel's doing
        self[request.arm] = arm
        call, host = self._warm(arm, first)
        return wire.Opened("ok", "", call, float(opened), peak, host)

    def _warm(self, arm: Arm, first: float) -> tuple[float, float]:
        """Time of a warm call (ns) and ns the host needs to enqueue it; 0 if unknown. `first` is the time of the first call.

        A call of 50 ms or more is made only once more, and not even that if an earlier epoch gave its usual time and
        the first call took hardly longer. On a GPU a call of 10 ms or more with a usual time is made once more.
        """
        clock, usual = self.clock, arm.request.usual_ns
        if usual >= wire.LONG_CALL:
            arm.wall = first if first < _LOADED * usual else clock.wall(arm.op)
            return usual, 0.0
        arm.wall, host = clock.wall(arm.op), clock.enqueued
        if clock.kind == "cuda" and usual >= wire.MIDDLE_CALL:
            return usual, host
        if min(first, arm.wall) >= wire.LONG_CALL:
            return arm.wall, host
        arm.wall = shortest([arm.wall, clock.wall(arm.op)])
        host = shortest([host, clock.enqueued])
        return shortest([clock.turn(arm.op, 1, cold=False, arm=arm.request.arm) for _ in range(2)]), host

    def reopen(self, request: wire.Open, wall: float, arm: Arm | None = None) -> None:
        """Put `arm`, or a new one, in place after a check. One untimed call, unless the last one (`wall`) was long."""
        arm = arm or self.make(request, request.placement)
        arm.wall = wall if wall >= wire.LONG_CALL else self.clock.wall(arm.op)
        self[request.arm] = arm

    def capture(self, request: wire.Capture) -> wire.Captured:
        """Capture the arm's call in a CUDA graph, and time a replay."""
        arm, began = self[request.arm], time.perf_counter_ns()
        try:
            arm.graph = self.clock.graph(arm.op, self._compiled)
        except NotCaptured as error:
            return wire.Captured(error.why, str(error), spoiled=error.spoiled)
        took = float(time.perf_counter_ns() - began)
        replay = shortest([self.clock.replays(arm.graph, arm.op, 4, arm=request.arm) for _ in range(2)])
        return wire.Captured("", "", replay, took)

    def turn(self, request: wire.Turn) -> wire.Turned:
        """Time some calls of one arm; ends with an idle device."""
        arm, clock = self[request.arm], self.clock
        if request.placement is not None:
            self._replace(arm, request.placement)
        if request.timer == "cuda_graph" and arm.graph is None:
            arm.graph = clock.graph(arm.op, self._compiled)
        start, mhz = time.monotonic_ns(), 0.0
        if request.timer == "sustained":
            value = clock.sustained(arm.op, request.calls)
        elif request.timer == "cupti" and request.added:
            value = clock.kernels(arm.op, request.calls, cold=request.cold)
        elif request.timer == "cupti":
            value = clock.span(arm.op, request.calls, cold=request.cold, arm=request.arm)
        elif arm.graph is not None and request.timer == "cuda_graph":
            value, mhz = clock.replays(arm.graph, arm.op, request.calls, arm=request.arm), clock.mhz()
        elif request.timer == "wall_clock":
            value = mean([clock.wall(arm.op) for _ in range(request.calls)])
        else:
            value = clock.turn(arm.op, request.calls, cold=request.cold, arm=request.arm)
            mhz = clock.mhz()
        end = time.monotonic_ns()
        host = clock.kind == "cpu" or request.timer == "wall_clock"
        empty = clock.empty(request.empties, cold=request.cold) if request.empties else 0.0
        return wire.Turned(value, value if host else arm.wall, start, end, empty, mhz)

    def _replace(self, arm: Arm, placement: int) -> None:
        """Make inputs of the same values at other addresses, free the old ones first, and call once."""
        arm.inputs = arm.pad = arm.graph = None
        arm.op = Op(lambda: None)
        fresh = self.make(arm.request, placement)
        arm.op, arm.inputs, arm.pad = fresh.op, fresh.inputs, fresh.pad
        arm.wall = self.clock.wall(arm.op)
