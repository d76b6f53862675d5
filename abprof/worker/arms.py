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

from abprof.records import messages as wire
from abprof.worker import declared
from abprof.worker.api import Op
from abprof.worker.clocks import Clock, mean, shortest
from abprof.worker.clocks.graphs import Graph, NotCaptured
from abprof.worker.faults import MissingPackage, judging

# Of a call's own time: the first of long ones takes no longer, unless something was loaded or compiled in it.
_LOADED = 1.5


@dataclass
class OpenArm:
    """One arm of the open cell. `inputs` and `pad` keep its memory alive and in its place."""

    request: wire.Open
    op: Op
    inputs: Any
    pad: object
    wall: float = 0.0
    graph: Graph | None = None


class Arms:
    """Those that are open, by id. `workload` gives a workload's module by name, `kernel` the package under test,
    `compiled` how often a kernel was compiled so far."""

    def __init__(
        self,
        clock: Clock,
        workload: Callable[[str], types.ModuleType],
        kernel: Callable[[], types.ModuleType],
        compiled: Callable[[], int],
    ) -> None:
        self._clock, self._workload, self._kernel, self._compiled = clock, workload, kernel, compiled
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
        call, host = self._warm(arm, first)
        return wire.Opened("ok", "", call, float(opened), peak, host)

    def _warm(self, arm: OpenArm, first: float) -> tuple[float, float]:
        """How long a warm call takes, and the host to enqueue it, ns; 0 where the clock does not say. A long one, the
        `first` call's time says so too, is made once more and no oftener; not even that where an earlier epoch told its
        time, and the first took hardly longer. On a GPU one that took 10 ms there is made once more, too."""
        if arm.request.usual_ns >= wire.LONG_CALL:  # what it had to load first is no part of a call
            arm.wall = first if first < _LOADED * arm.request.usual_ns else self._clock.wall(arm.op)
            return arm.request.usual_ns, 0.0
        arm.wall, host = self._clock.wall(arm.op), self._clock.enqueued
        if self._clock.kind == "cuda" and arm.request.usual_ns >= wire.MIDDLE_CALL:
            return arm.request.usual_ns, host
        if min(first, arm.wall) >= wire.LONG_CALL:
            return arm.wall, host
        arm.wall = shortest([arm.wall, self._clock.wall(arm.op)])
        host = shortest([host, self._clock.enqueued])
        return shortest([self._clock.turn(arm.op, 1, cold=False, arm=arm.request.arm) for _ in range(2)]), host

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
            op = declared.returned("prepare", module.prepare(kernel, request.variant or None, case, inputs), Op)
        self._clock.sync()
        return op

    def inputs(self, request: wire.Open) -> Any:
        """Inputs that nothing was called on yet: the same bytes each time."""
        torch.manual_seed(request.seed)
        random.seed(request.seed)
        module = self._workload(request.workload)
        with judging(module, "inputs"):
            return module.inputs(types.MappingProxyType(request.case), self._clock.device, request.seed)

    def reopened(self, of: wire.Open, wall: float) -> None:
        """Open an arm as it was before, with one untimed call; `wall` is that of its last, which a long one keeps."""
        arm = self.make(of, of.placement)
        arm.wall = wall if wall >= wire.LONG_CALL else self._clock.wall(arm.op)
        self._open[of.arm] = arm

    def capture(self, request: wire.Capture) -> wire.Captured:
        """The arm's call in a CUDA graph, and how long a replay takes."""
        arm, began = self._open[request.arm], time.perf_counter_ns()
        try:
            arm.graph = self._clock.graph(arm.op, self._compiled)
        except NotCaptured as error:
            return wire.Captured(error.why, str(error), spoiled=error.spoiled)
        took = float(time.perf_counter_ns() - began)
        replay = shortest([self._clock.replays(arm.graph, arm.op, 4, arm=request.arm) for _ in range(2)])
        return wire.Captured("", "", replay, took, arm.graph.nodes)

    def turn(self, request: wire.Turn) -> wire.Turned:
        """Some calls of one arm, ended by a device synchronise."""
        arm, clock = self._open[request.arm], self._clock
        if request.placement is not None:
            self._replace(arm, request.placement)
        if request.timer == "cuda_graph" and arm.graph is None:  # that of other inputs is gone
            arm.graph = clock.graph(arm.op, self._compiled)
        start, mhz = time.monotonic_ns(), 0.0
        if request.timer == "do_bench":
            value = clock.do_bench(arm.op)
        elif request.timer == "sustained":
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

    def _replace(self, arm: OpenArm, placement: int) -> None:
        """Fresh inputs of the same values at other addresses, and one untimed call, whose wall time is kept."""
        arm.inputs = arm.pad = arm.graph = None
        arm.op = Op(lambda: None)
        fresh = self.make(arm.request, placement)
        arm.op, arm.inputs, arm.pad = fresh.op, fresh.inputs, fresh.pad
        arm.wall = self._clock.wall(arm.op)
