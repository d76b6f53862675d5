"""How a call is timed. All times are nanoseconds.

On a CPU by the host's clock. On a GPU by an event pair around each call, with the L2 cache flushed and the launch cost hidden
before it; by CUPTI's activity records; by replays of a captured graph; with the mean clock of a turn.
"""
# ruff: noqa: ARG002

from __future__ import annotations

import ctypes
import gc
import os
import platform
import random
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abprof.worker.api import Op, Unsupported


class NotCaptured(Unsupported):
    """A call that cannot be captured. `why`: one word. `spoiled`: a capture had begun, and torch's allocator and generators
    may be left in any state (CUDAGraph::reset): this process must not measure any more."""

    def __init__(self, why: str, reason: str, *, spoiled: bool = False) -> None:
        super().__init__(reason)
        self.why, self.spoiled = why, spoiled


class Clock:
    """Times calls on the host."""

    kind = "cpu"
    enqueued = 0.0  # host time to enqueue the last call of `wall`; 0 where the host is the device
    profiled = False  # whether torch's profiler ran on the device in this process

    def __init__(self) -> None:
        """Limits this process to 90 % of the free memory: a greedy workload gets a MemoryError, and the machine does not swap."""
        self.device = torch.device("cpu")
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":") for line in file)
        wanted = int(int(rows["MemAvailable"].split()[0]) * 1024 * 0.9)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft == -1 else min(soft, wanted), hard))

    def sync(self) -> None:
        """Return when the device is idle."""

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean of `calls` calls, each after `op.reset()`. On a CPU caches stay warm, also if `cold` (docs/MEASUREMENT.md)."""
        readings = []
        for _ in range(calls):
            if op.reset:
                op.reset()
            start = time.perf_counter_ns()
            op.call()
            readings.append(time.perf_counter_ns() - start)
        return mean(readings)

    def wall(self, op: Op) -> float:
        """One call by the host's clock, from an idle device to an idle device."""
        return self.turn(op, 1, cold=False)

    def empty(self, times: int, *, cold: bool) -> float:
        """What `turn` reads of an empty operation: the median of `times` readings, or 0 without launch cost."""
        return 0.0

    def mhz(self) -> float:
        """The device's mean clock over the last `turn`, MHz; 0 if unknown."""
        return 0.0

    def pad(self, placement: int) -> object:
        """A buffer of random size (up to 4 MiB in 64-byte steps) that moves the next allocation; fixed by `placement`."""
        return torch.empty(64 * random.Random(placement).randrange(1, 1 << 16), dtype=torch.uint8)

    def peak_bytes(self) -> int | None:
        """Peak memory since the last `reset_peak`; None if unknown."""
        return None

    def reset_peak(self) -> None:
        """Reset the peak and release cached memory."""

    def identity(self) -> tuple[str, str, int, dict[str, str]]:
        """(name, uuid, bytes of memory, further facts)."""
        facts = {"threads": str(torch.get_num_threads()), "capability": torch.backends.cpu.get_cpu_capability()}
        with open("/proc/cpuinfo") as file:
            models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        name = models[0] if models else platform.processor() or platform.machine()
        return name, "", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), facts


def clock(device: str) -> Clock:
    """The clock for "cpu", "cuda" or "cuda:UUID". Raises RuntimeError when the device is not there."""
    return Clock() if device == "cpu" else CudaClock()


def mean(readings: Sequence[float]) -> float:
    """Mean of a turn's calls, or the smallest if that is not positive: then the parent drops the round."""
    least = min(readings)
    return sum(readings) / len(readings) if least > 0 else float(least)


def shortest(readings: Sequence[float]) -> float:
    """The smallest positive reading, or 0."""
    return float(min((reading for reading in readings if reading > 0), default=0.0))


# ---------------------------------------------------------------- NVIDIA GPUs

_LONGEST_SPIN = 5_000_000.0  # ns
_NOTHING = Op(lambda: torch.cuda._sleep(0))
_KNOWN = Op(lambda: torch.cuda._sleep(200_000))  # some 0.1 ms: launches hardly count
_LIKE = (0.5, 1.5)  # of what events read; CUPTI's ticks are at least twice as many as nanoseconds


class CudaClock(Clock):
    """Device time from CUDA events (`turn`), CUPTI (`kernels`) and graphs (`replays`)."""

    kind = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device")
        self.device = torch.device("cuda", 0)  # CUDA_VISIBLE_DEVICES leaves just the one that is leased
        self._properties = torch.cuda.get_device_properties(self.device)
        self._flush: torch.Tensor | None = None
        self._held = 0
        self._spins: dict[str, float] = {}  # ns, by arm: those of one worker need different times
        self._cycles_per_ns = max(float(getattr(self._properties, "clock_rate", 0) or 2_000_000) / 1e6, 0.5)
        self._stamps: Stamps | None = None
        torch.cuda.synchronize(self.device)  # makes the context that the driver's calls need
        try:
            self._stamps = Stamps(self.device)
        except (OSError, RuntimeError, AttributeError) as error:  # MIG, an emulator: then the clock is unknown
            print(f"cannot read the device's clocks: {error}", flush=True)
        self._records: Records | None = None

    def sync(self) -> None:
        torch.cuda.synchronize(self.device)

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean over calls of the event pair (`gpu_span`).

        Before each call the L2 cache is flushed by writing twice its size, and a spin kernel keeps the stream busy for
        as long as the host needs to enqueue this operation, so that launch cost lies before the first event. If the
        device has passed the first event before the host was done, the call is made again with a longer spin.
        """
        pairs = [self._one(op, arm, cold=cold, stamp=i == 0) for i in range(calls)]
        if self._stamps is not None:
            self._stamps.stamp(1)
        self.sync()
        return 1e6 * mean([first.elapsed_time(last) for first, last in pairs])

    def _one(self, op: Op, arm: str, *, cold: bool, stamp: bool = False) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        # The first turn goes by the warm-up: a spin that is too short costs a call more, and some take a second.
        spin = self._spins.get(arm, 100_000.0 + 1.5 * self.enqueued)
        while True:
            if op.reset:
                op.reset()
            if cold:
                self._flush_l2()
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(min(spin, _LONGEST_SPIN) * self._cycles_per_ns))
            began = time.perf_counter_ns()
            if stamp and self._stamps is not None:
                self._stamps.stamp(0)
            first.record()
            op.call()
            last.record()
            needed = time.perf_counter_ns() - began
            hidden = not first.query()
            # Shrinks slowly and grows at once: the host's hiccups are rare, and a spin that is too short costs a call.
            self._spins[arm] = max(1.25 * needed + 10_000, 0.9 * spin) if hidden else 2.0 * max(spin, needed)
            if hidden or spin > _LONGEST_SPIN:  # an operation that waits for the device cannot be hidden
                return first, last
            spin = self._spins[arm]

    def empty(self, times: int, *, cold: bool) -> float:
        """Median event pair around a kernel that ends at once, as cold as the calls are."""
        pairs = [self._one(_NOTHING, "an empty launch", cold=cold) for _ in range(times)]
        self.sync()
        return 1e6 * statistics.median(first.elapsed_time(last) for first, last in pairs)

    def mhz(self) -> float:
        """Mean clock of the multiprocessors from before the first call of the last turn to after its last."""
        return self._stamps.mhz() if self._stamps is not None else 0.0

    def wall(self, op: Op) -> float:
        if op.reset:
            op.reset()
        self.sync()
        start = time.perf_counter_ns()
        op.call()
        self.enqueued = float(time.perf_counter_ns() - start)
        self.sync()
        return float(time.perf_counter_ns() - start)

    def graph(self, op: Op, compiled: Callable[[], int]) -> Graph:
        """A call captured in a CUDA graph, and replayed once. Raises NotCaptured."""
        graph = Graph(op, compiled)
        if op.reset:
            op.reset()
        graph.replay()
        self.sync()
        return graph

    def replays(self, graph: Graph, op: Op, times: int, *, arm: str = "") -> float:
        """Mean of `times` replays with warm caches, by one event pair around all of them, enqueued behind a spin kernel; by
        one pair around each if the operation has a reset, which is not timed."""
        key = f"{arm} in a graph"
        if op.reset:
            return self.turn(Op(graph.replay, reset=op.reset), times, cold=False, arm=key)
        return self.turn(Op(lambda: graph.replay(times)), 1, cold=False, arm=key) / times

    def kernels(self, op: Op, calls: int, *, cold: bool) -> float:
        """Mean sum of the durations of all kernels, copies and fills of a call. Records are read before and after each call,
        on an idle device: between them lies only the call. Raises Unsupported where CUPTI's times are not nanoseconds."""
        if self.profiled:
            raise Unsupported(_TICKS)
        if self._records is None:
            self._records = Records()
            recorded, timed = self._recorded(_KNOWN, 1, cold=False), self.turn(_KNOWN, 1, cold=False, arm="CUPTI's try")
            if not _LIKE[0] * timed < recorded < _LIKE[1] * timed:
                what = f"CUPTI records {recorded / 1e3:.1f} us for a kernel that spans {timed / 1e3:.1f} us"
                raise Unsupported(what)
        return self._recorded(op, calls, cold=cold)

    def _recorded(self, op: Op, calls: int, *, cold: bool) -> float:
        readings, records = [], self._records or Records()
        with records:
            for _ in range(calls):
                self._idle(op, records, cold=cold)
                op.call()
                self.sync()
                readings.append(float(sum(end - start for start, end in records.drained())))
        return mean(readings)

    def _idle(self, op: Op, records: Records, *, cold: bool) -> None:
        """Finish all that comes before a call and drop its records."""
        if op.reset:
            op.reset()
        if cold:
            self._flush_l2()
        self.sync()
        records.drained()

    def sustained(self, op: Op, calls: int) -> float:
        """Mean of the last two thirds of the calls by one event pair around them: warm caches, no pause, resets included."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        lead = calls // 3
        for number in range(calls):
            if number == lead:
                first.record()
            if op.reset:
                op.reset()
            op.call()
        last.record()
        self.sync()
        return 1e6 * first.elapsed_time(last) / (calls - lead)

    def _flush_l2(self) -> None:
        if self._flush is None:
            size = 2 * max(int(getattr(self._properties, "L2_cache_size", 0)), 32 << 20)
            self._flush = torch.empty(size, dtype=torch.uint8, device=self.device)
        with torch.profiler.record_function("abprof_flush"):
            self._flush.zero_()

    def pad(self, placement: int) -> object:
        """Padding that moves the next allocation: up to 64 MiB, in steps of 512 bytes."""
        return torch.empty(512 * random.Random(placement).randrange(1, 1 << 17), dtype=torch.uint8, device=self.device)

    def peak_bytes(self) -> int | None:
        """Peak of torch's allocator above what was held at `reset_peak` (the flush buffer, other arms)."""
        return int(torch.cuda.max_memory_allocated(self.device)) - self._held

    def reset_peak(self) -> None:
        """Also gives cached blocks back, so that the other side's worker can have them."""
        self._spins.clear()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self._held = int(torch.cuda.memory_allocated(self.device))

    def identity(self) -> tuple[str, str, int, dict[str, str]]:
        p = self._properties
        facts = {
            "capability": f"{p.major}.{p.minor}",
            "multiprocessors": str(p.multi_processor_count),
            "l2_bytes": str(getattr(p, "L2_cache_size", 0)),
        }
        return p.name, f"GPU-{p.uuid}", int(p.total_memory), facts


# ---------------------------------------------------------------- CUPTI's activity records (cupti-python)

_BUFFER = 8 << 20  # bytes: within what CUPTI's documentation advises (1 to 10 MB)
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full, too
_TICKS = (
    "torch's profiler ran in this process, after which CUPTI gives ticks of the processor's counter for nanoseconds"
)


class Records:
    """Kernels, copies and fills that run while it is entered. Raises Unsupported without cupti-python or if CUPTI fails.

    torch's profiler registers with CUPTI too, and only the last to register gets records: so this registers each time.
    It must be read before that profiler's first pass in the process: after it the times would be ticks.
    """

    def __init__(self) -> None:
        try:
            from cupti import cupti
        except Exception as error:  # one of its own where the library that it loads is missing
            raise Unsupported(f"cupti-python cannot be imported ({error}): pip install it here") from error
        self._cupti = cupti
        kind = cupti.ActivityKind
        self._kinds = (kind.CONCURRENT_KERNEL, kind.MEMCPY, kind.MEMSET)
        self._ran: list[tuple[int, int]] = []

    def __enter__(self) -> Records:
        try:
            self._cupti.activity_register_callbacks(lambda: (_BUFFER, 0), self._completed)
            for kind in self._kinds:
                self._cupti.activity_enable(kind)
        except Exception as error:  # CUPTI's have a class of their own
            what = f"CUPTI does not start ({type(error).__name__}: {error}): another profiler may hold it"
            raise Unsupported(what) from error
        return self

    def __exit__(self, *exc: object) -> None:
        for kind in self._kinds:
            self._cupti.activity_disable(kind)
        self.drained()

    def _completed(self, activities: Sequence[Any]) -> None:
        """CUPTI's callback: the records' memory is gone when it returns."""
        known = [int(kind) for kind in self._kinds]
        self._ran += [(int(one.start), int(one.end)) for one in activities if int(one.kind) in known]

    def drained(self) -> list[tuple[int, int]]:
        """(start, end) of all that ran since the last call, ns. The device must be idle."""
        self._cupti.activity_flush_all(_FORCED)
        ran, self._ran = self._ran, []
        return ran


# ---------------------------------------------------------------- a call captured in a CUDA graph


class Graph:
    """One captured call, with the memory it works in. `compiled` counts compilations so far. Raises NotCaptured."""

    def __init__(self, op: Op, compiled: Callable[[], int]) -> None:
        stream = torch.cuda.Stream()
        _warm(op, stream, compiled)
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._kept = _captured(self._graph, op, stream)
        nodes, graph = ctypes.c_size_t(0), ctypes.c_void_p(self._graph.raw_cuda_graph())
        if code := ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(graph, None, ctypes.byref(nodes)):
            raise RuntimeError(f"cuGraphGetNodes failed with CUDA error {code}")
        self.nodes = int(nodes.value)
        if not self.nodes:
            raise NotCaptured("empty", "nothing of the call reaches the captured stream")
        self._graph.instantiate()

    def replay(self, times: int = 1) -> None:
        """Enqueue it so many times."""
        for _ in range(times):
            self._graph.replay()


def _warm(op: Op, stream: torch.cuda.Stream, compiled: Callable[[], int]) -> None:
    """Two calls on the stream that will capture, which make its workspaces. Raises NotCaptured if the second one waits or
    compiles, while nothing is spoiled yet."""
    mode = torch.cuda.get_sync_debug_mode()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for last in (False, True):
            if op.reset:
                op.reset()
            before = compiled()
            torch.cuda.set_sync_debug_mode("warn")  # torch then warns about .item(), .cpu(), nonzero()
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    op.call()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
            if last and any("synchronizing CUDA operation" in str(one.message) for one in caught):
                raise NotCaptured("host_sync", "the call waits for the device")
            if last and compiled() > before:
                raise NotCaptured("compiles", "the call compiles or tunes anew each time")
        if op.reset:
            op.reset()
    torch.cuda.synchronize()


def _captured(graph: torch.cuda.CUDAGraph, op: Op, stream: torch.cuda.Stream) -> Any:
    """Capture a call and return its result. Not torch.cuda.graph(): it empties torch's memory, 50 ms and more."""
    current, collecting, stopped = torch.cuda.current_stream(), gc.isenabled(), list[Exception]()
    gc.disable()  # what it would free in the middle may be of another graph
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                return op.call()
            except Exception as error:
                stopped.append(error)
                raise
            finally:
                graph.capture_end()
    except Exception as error:
        first = [*stopped, error][0]  # capture_end() fails too, and says less
        why = f"{type(first).__name__}: {' '.join(str(first).split())[:160]}"
        raise NotCaptured("error", f"the call fails while it is captured ({why})", spoiled=True) from error
    finally:
        torch.cuda.set_stream(current)
        if collecting:
            gc.enable()


# ---------------------------------------------------------------- how fast the multiprocessors ran, from the device's own clocks

# A kernel of one thread a multiprocessor writes %clock64 (cycles) and %globaltimer (ns) to the place of its %smid. Two of
# them give each one's mean clock in between; NVML's samples are 100 ms apart. It is PTX, loaded by the CUDA driver: no
# compiler is needed, and its machine code belongs to no side.
_PTX = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry abprof_stamp(.param .u64 out, .param .u32 room, .param .u64 turn)
{
    .reg .pred %outside;
    .reg .b32 %sm, %room;
    .reg .b64 %at, %offset, %cycles, %ns, %turn;
    mov.u32 %sm, %smid;
    ld.param.u32 %room, [room];
    setp.ge.u32 %outside, %sm, %room;
    @%outside ret;
    ld.param.u64 %at, [out];
    ld.param.u64 %turn, [turn];
    cvta.to.global.u64 %at, %at;
    mul.wide.u32 %offset, %sm, 24;
    add.u64 %at, %at, %offset;
    mov.u64 %cycles, %clock64;
    mov.u64 %ns, %globaltimer;
    st.global.u64 [%at], %cycles;
    st.global.u64 [%at+8], %ns;
    st.global.u64 [%at+16], %turn;
    ret;
}
"""
_WORDS = 3  # of 8 bytes, that a multiprocessor's stamp has: cycles, ns, number of the turn


class Stamps:
    """A stamp at the begin and one at the end of a turn, in the current stream. Raises OSError or RuntimeError if the
    driver refuses the kernel."""

    def __init__(self, device: torch.device) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"abprof_stamp")
        self._blocks = torch.cuda.get_device_properties(device).multi_processor_count
        # Twice as many places: ids may have gaps.
        self._written = torch.zeros((2, 2 * self._blocks, _WORDS), dtype=torch.int64, device=device)
        self._turn = 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with CUDA error {code}")

    def stamp(self, which: int) -> None:
        """Enqueue a turn's first stamp (0) or its last (1)."""
        self._turn += not which
        values = (
            ctypes.c_uint64(self._written[which].data_ptr()),
            ctypes.c_uint32(self._written.shape[1]),
            ctypes.c_uint64(self._turn),
        )
        arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        blocks, one, none = ctypes.c_uint(self._blocks), ctypes.c_uint(1), ctypes.c_uint(0)
        self._call("cuLaunchKernel", self._kernel, blocks, one, one, one, one, one, none, stream, arguments, None)

    def mhz(self) -> float:
        """Mean clock of the multiprocessors that have both stamps of the last turn, MHz; 0 if none has. The device must
        be idle."""
        begun, ended = self._written.tolist()
        clocks = [
            1e3 * (cycles - first_cycles) / (ns - first_ns)
            for (first_cycles, first_ns, first_turn), (cycles, ns, last_turn) in zip(begun, ended, strict=True)
            if first_turn == last_turn == self._turn and ns > first_ns and cycles > first_cycles
        ]
        return statistics.fmean(clocks or [0.0])
