"""The arms of a cell: make inputs and operations, warm up, and time calls."""

from __future__ import annotations

import gc
import random
import time
import types
from dataclasses import dataclass
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker import package, workload
from abprof.worker.api import Op, Unsupported
from abprof.worker.clocks import CudaClock, NotCaptured, clock, mean, shortest
from abprof.worker.compiles import Watch
from abprof.worker.faults import MissingPackage, running

_WARM_AT_ONCE = 1e6  # ns of a call on a CPU whose time is known, and that one call warms up
_LOADED = 1.5  # a first call that takes more usual times than this has loaded or compiled code


@dataclass
class Arm:
    """An arm that is ready to be called, with its inputs and operation."""

    request: wire.Open
    module: types.ModuleType
    op: Op
    inputs: Any
    pad: object  # a buffer that shifts the inputs' addresses
    wall: float = 0.0  # ns of the last untimed call, by the host's clock
    graph: Any = None  # a clocks.Graph, once captured
    outputs: tuple[str, ...] = ()  # digests of the outputs in the first check
    kept: Any = None  # drawn.Kept, once a turn's inputs were drawn
    mixing: Any = None  # drawn.mixer's function for these inputs
    mixtures: list[Any] | None = None  # of the inputs of two seeds (wire.Turn.draw): drawn.Mixture or None

    def facts(self) -> dict[str, wire.Value]:
        """Return what facts() of the workload and of this arm's operation return for the report."""
        return workload.facts(self.module, types.MappingProxyType(self.request.case), self.inputs, self.op)


class Arms:
    """The arms of a worker that are ready to be called, with the worker's workloads, kernel package and clock."""

    def __init__(self, start: wire.Start) -> None:
        self.start, self.clock, self.compiles = start, clock(start.device), Watch()
        self.opened: dict[str, Arm] = {}
        self.types: dict[str, list[list[str]]] = {}  # in the judge: cell -> data types of outputs of base's variants
        # In the judge: case -> seed of changed inputs, and digests of the reference on them.
        self.references: dict[Any, tuple[int, tuple[str, ...]]] = {}
        self.mixed: tuple[Any, list[Any]] | None = None  # in the judge: a request's case and seeds, and its mixtures
        self.expected: dict[str, Any] = {}  # in the judge: the last reference for a first call, which sides share
        self.memory: torch.Tensor | None = None  # the judge's, for outputs of timed calls
        self.snapshot: torch.Tensor | None = None  # in the judge: what was in such memory at a reply
        self.unread: torch.Tensor | None = None  # in the judge: the same of turns that it does not check
        self.imported: types.ModuleType | None = None  # the kernel package, or an empty module during its import
        self._package: types.ModuleType | None = None

    def module(self, name: str) -> types.ModuleType:
        """Return the workload `name`: the imported module or, if it wraps a benchmark, its object WORKLOAD."""
        module = workload.load(name, self.start.workloads[name])
        wrapped: types.ModuleType = getattr(module, "WORKLOAD", module)  # an adapter, used like a module
        return wrapped

    def kernel(self) -> types.ModuleType:
        """Return the package under test; the first call imports the package."""
        if self._package is None:
            assert self.start.mount is not None, "this worker has no kernel package"
            # Set the name before the import, so that a failing import is attributed to the package.
            self.imported = types.ModuleType(self.start.mount.module)
            self.compiles.install()
            self.imported = self._package = package.kernel_package(self.start.mount)
        return self._package

    def inputs(self, request: wire.Open) -> Any:
        """Make the inputs of a cell; equal requests give equal inputs."""
        torch.manual_seed(request.seed)
        random.seed(request.seed)
        module = self.module(request.workload)
        with running(module, "inputs"):
            return module.inputs(types.MappingProxyType(request.case), self.clock.device, request.seed)

    def prepared(self, request: wire.Open, inputs: Any) -> Op:
        """Return the arm's operation on `inputs`. Raises MissingPackage if the side has no such package or variant."""
        module, case = self.module(request.workload), types.MappingProxyType(request.case)
        op: Op
        if request.peer:
            op = module.PEERS[request.peer](case, inputs)
        else:
            kernel = self.kernel()
            if request.variant and request.variant not in getattr(kernel, "VARIANTS", ()):
                raise MissingPackage(f"this side has no variant {request.variant}")
            op = workload.returned("prepare", module.prepare(kernel, request.variant or None, case, inputs), Op)
        return op

    def make(self, request: wire.Open, placement: int) -> Arm:
        """Make an arm without calling its operation. The seed `placement` determines the addresses of the inputs."""
        pad = self.clock.pad(placement)
        inputs = self.inputs(request)
        arm = Arm(request, self.module(request.workload), self.prepared(request, inputs), inputs, pad)
        self.clock.sync()
        return arm

    def open(self, request: wire.Open) -> wire.Opened:
        """Make an arm and warm it up. Does not catch exceptions of the workload and the package."""
        self.drop(request.arm)
        arm, took = self.timed(request)
        return self.warmed(arm, took, self.clock.wall(arm.op), self.clock.peak_bytes())

    def drop(self, arm: str) -> None:
        """Free the arm's memory, if it is open."""
        if self.opened.pop(arm, None):
            gc.collect()

    def timed(self, request: wire.Open) -> tuple[Arm, float]:
        """Return a new arm, whose operation was not called, and the ns that it took to make it."""
        self.clock.reset_peak()
        began = time.perf_counter_ns()
        arm = self.make(request, request.placement)
        return arm, float(time.perf_counter_ns() - began)

    def warmed(self, arm: Arm, took: float, first: float, peak: int | None) -> wire.Opened:
        """Warm up a new arm, which took `took` ns to make, after its first call, which took `first` ns and compiled the
        kernels, and keep it. `peak`: bytes of peak memory until then."""
        if peak is not None:
            peak -= getattr(arm.pad, "nbytes", 0)
        self.opened[arm.request.arm] = arm
        call, host = self._warm(arm, first)
        return wire.Opened(call, took, peak, host)

    def _warm(self, arm: Arm, first: float) -> tuple[float, float]:
        """Warm up an arm, whose first call took `first` ns. Repeat long calls, and known ones, at most once. Return the
        ns of a warm call, and the ns that the host needs to enqueue a call (0: unknown)."""
        clock, usual = self.clock, arm.request.usual_ns
        if usual >= (wire.MIDDLE_CALL if clock.kind == "cuda" else _WARM_AT_ONCE):
            loaded = first >= _LOADED * usual  # else the host cannot have taken twice as long as the device
            arm.wall = clock.wall(arm.op) if loaded else first
            return usual, clock.enqueued if loaded and usual < wire.LONG_CALL else 0.0
        arm.wall, host = clock.wall(arm.op), clock.enqueued
        if min(first, arm.wall) >= wire.LONG_CALL:
            return arm.wall, host
        arm.wall = shortest([arm.wall, clock.wall(arm.op)])
        host = shortest([host, clock.enqueued])
        return shortest([clock.turn(arm.op, 1, cold=False, arm=arm.request.arm) for _ in range(2)]), host

    def reopen(self, request: wire.Open, wall: float, arm: Arm | None = None) -> None:
        """Store `arm`, or if None a new arm, after a check. Call it once, unless its last call (`wall` ns) was long."""
        arm = arm or self.make(request, request.placement)
        arm.wall = wall if wall >= wire.LONG_CALL else self.clock.wall(arm.op)
        self.opened[request.arm] = arm

    def capture(self, request: wire.Capture) -> wire.Captured:
        """Capture the arm's call in a CUDA graph, and time the graph's replay."""
        arm, clock, began = self.opened[request.arm], self.gpu("a CUDA graph"), time.perf_counter_ns()
        try:
            arm.graph = clock.graph(arm.op, lambda: self.compiles.count)
        except NotCaptured as error:
            return wire.Captured(error.why, str(error), spoiled=error.spoiled)
        took = float(time.perf_counter_ns() - began)
        replay = shortest([clock.replays(arm.graph, arm.op, 4, arm=request.arm) for _ in range(2)])
        return wire.Captured("", "", replay, took)

    def gpu(self, what: str) -> CudaClock:
        """Return the GPU's clock. On a CPU raise Unsupported: "{what} needs a GPU"."""
        if not isinstance(self.clock, CudaClock):
            raise Unsupported(f"{what} needs a GPU")
        return self.clock

    def turn(self, request: wire.Turn) -> wire.Turned:
        """Time a turn: a number of calls of one arm. The device is idle before and after the turn."""
        arm, clock, timer, compiles = self.opened[request.arm], self.clock, request.timer, self.compiles.count
        if request.placement is not None:
            self.move(arm, request.placement)
        if timer == "cuda_graph" and arm.graph is None:
            arm.graph = self.gpu("a CUDA graph").graph(arm.op, lambda: self.compiles.count)
        start, mhz, lead = time.monotonic_ns(), 0.0, 0.0
        if timer == "sustained":
            value = self.gpu(timer).sustained(arm.op, request.calls)
        elif timer == "cupti":
            value = self.gpu(timer).kernels(arm.op, request.calls, cold=request.cold)
        elif timer == "cuda_graph":
            value, mhz = self.gpu(timer).replays(arm.graph, arm.op, request.calls, arm=request.arm), clock.mhz()
        elif timer == "wall_clock":
            value = mean([clock.wall(arm.op) for _ in range(request.calls)])
        else:
            value = clock.turn(arm.op, request.calls, cold=request.cold, arm=request.arm, lead=request.lead)
            mhz, lead = clock.mhz(), clock.lead
        end = time.monotonic_ns()
        host = clock.kind == "cpu" or timer == "wall_clock"
        empty = clock.empty(request.empties, cold=request.cold) if request.empties else 0.0
        return wire.Turned(value, value if host else arm.wall, start, end, empty, mhz, lead=lead, compiles=compiles)

    def move(self, arm: Arm, placement: int) -> None:
        """Make the arm's inputs anew at other addresses, given by the seed `placement`, and call the operation once."""
        arm.inputs = arm.pad = arm.graph = arm.mixing = None
        arm.op = Op(lambda: None)
        fresh = self.make(arm.request, placement)
        arm.op, arm.inputs, arm.pad = fresh.op, fresh.inputs, fresh.pad
        arm.wall = self.clock.wall(arm.op)
