"""Time calls, in nanoseconds: on a CPU by the host's clock, on a GPU by CUDA events, CUPTI or replays of a CUDA graph.

Before each call timed by events, the L2 cache may be flushed, and a spin kernel runs that hides the launch cost, unless
the device waits once before all calls of a turn.
`Stamps` measures the GPU's mean clock rate over a turn.
"""
# ruff: noqa: ARG002

from __future__ import annotations

import ctypes
import gc
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
    """Raised if a call cannot be captured in a CUDA graph. `why`: the kind of cause, like "host_sync". `spoiled`: the
    capture failed halfway and may have broken torch's state, so this process must not measure again."""

    def __init__(self, why: str, reason: str, *, spoiled: bool = False) -> None:
        super().__init__(reason)
        self.why, self.spoiled = why, spoiled


class Clock:
    """Times calls on a CPU, by the host's clock."""

    kind = "cpu"
    enqueued = 0.0  # host ns to enqueue the last call of `wall`; 0 on a CPU
    profiled = False  # whether torch's profiler ran on the device in this process
    lead = 0.0  # ns of lead that the last turn needed; 0 on a CPU

    def __init__(self) -> None:
        """Limit this process to 90 % of the free memory, so that allocations fail before the system swaps."""
        self.device = torch.device("cpu")
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":") for line in file)
        wanted = int(int(rows["MemAvailable"].split()[0]) * 1024 * 0.9)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted if soft == -1 else min(soft, wanted), hard))

    def sync(self) -> None:
        """Wait until the device is idle."""

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "", lead: float = 0.0) -> float:
        """Return the mean ns of `calls` calls, each after `op.reset()`. `cold`: flush the GPU's cache before each.
        `lead`: ns for which a GPU is kept busy before the first."""
        readings = []
        for _ in range(calls):
            op.restore()
            start = time.perf_counter_ns()
            op.call()
            readings.append(time.perf_counter_ns() - start)
        return mean(readings)

    def wall(self, op: Op) -> float:
        """Return the ns of a call by the host's clock, including the wait until the device has finished."""
        return self.turn(op, 1, cold=False)

    def empty(self, times: int, *, cold: bool) -> float:
        """Return the median ns of `times` launches of an empty kernel, timed like `turn`; 0 on a CPU."""
        return 0.0

    def mhz(self) -> float:
        """Return the device's mean clock rate in MHz during the last `turn`; 0 if unknown."""
        return 0.0

    def pad(self, placement: int) -> object:
        """Return a buffer of random size (seed `placement`), which shifts the addresses of later buffers."""
        step, most = (512, 1 << 17) if self.kind == "cuda" else (64, 1 << 16)
        size = step * random.Random(placement).randrange(1, most)
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def peak_bytes(self) -> int | None:
        """Return the peak memory in bytes since the last `reset_peak`; None if unknown."""
        return None

    def reset_peak(self) -> None:
        """Release cached memory, and measure peak memory from now on."""

    def capability(self) -> str:
        """Return a GPU's compute capability, like "9.0", or a CPU's instruction set."""
        return str(torch.backends.cpu.get_cpu_capability())


def clock(device: str) -> Clock:
    """Return the clock for "cpu", "cuda" or "cuda:UUID". Raises RuntimeError if torch sees no such device."""
    return Clock() if device == "cpu" else CudaClock()


def mean(readings: Sequence[float]) -> float:
    """Return the mean of a turn's readings; if one is not positive, the smallest, so that the round is dropped."""
    least = min(readings)
    return sum(readings) / len(readings) if least > 0 else float(least)


def shortest(readings: Sequence[float]) -> float:
    """Return the smallest positive reading; 0 if no reading is positive."""
    return float(min((reading for reading in readings if reading > 0), default=0.0))


# ---------------------------------------------------------------- NVIDIA GPUs

_LONGEST_SPIN = 5_000_000.0  # ns
_NOTHING = Op(lambda: torch.cuda._sleep(0))
_KNOWN = Op(lambda: torch.cuda._sleep(200_000))  # about 0.1 ms, so that the launch cost is negligible


class CudaClock(Clock):
    """Times calls on a GPU: by CUDA events (`turn`), CUPTI (`kernels`) or a CUDA graph (`replays`)."""

    kind = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device")
        self.device = torch.device("cuda", 0)  # CUDA_VISIBLE_DEVICES shows the leased device only
        self._properties = torch.cuda.get_device_properties(self.device)
        self._flush: torch.Tensor | None = None
        self._held = 0
        self._late = False  # whether a call of the last turn was repeated
        self._spins: dict[str, float] = {}  # ns, by arm
        self._cycles_per_ns = max(float(getattr(self._properties, "clock_rate", 0) or 2_000_000) / 1e6, 0.5)
        self._stamps: Stamps | None = None
        torch.cuda.synchronize(self.device)  # creates the CUDA context
        try:
            self._stamps = Stamps(self.device)
        except (OSError, RuntimeError, AttributeError) as error:  # MIG, an emulator
            print(f"cannot read the device's clocks: {error}", flush=True)
        self._records: Records | None = None

    def sync(self) -> None:
        torch.cuda.synchronize(self.device)

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "", lead: float = 0.0) -> float:
        """Return the mean ns of `calls` calls, measured by CUDA events before and after each call.

        Before each call, `cold` flushes the L2 cache, and a spin kernel keeps the device busy while the host enqueues
        the call, so that launch cost is not timed. If the spin was too short, the call is repeated with a longer spin.
        With a `lead` the device waits once, for so many ns, and the host enqueues all calls meanwhile: the turn's length does
        not depend on the host. If the host falls behind, the device waits before each call that is left.
        """
        free, ahead = torch.cuda.Event(enable_timing=True), bool(lead) and self._stamps is not None
        if ahead and self._stamps is not None:
            self._stamps.hold(int(lead))
        free.record()
        pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        began, enqueued, self._late = time.perf_counter_ns(), list[int](), False
        for number in range(calls):
            pairs.append(self._one(op, arm, cold=cold, stamp=number == 0, ahead=ahead and not self._late))
            enqueued.append(time.perf_counter_ns() - began)
        if self._stamps is not None:
            self._stamps.stamp(1)
        self.sync()
        waits = zip(enqueued, pairs, strict=True) if ahead else ()
        needed = max([0.0, *(at - 1e6 * free.elapsed_time(first) for at, (first, _) in waits)])
        self.lead = 2 * lead if ahead and self._late else needed
        return 1e6 * mean([first.elapsed_time(last) for first, last in pairs])

    def _one(
        self, op: Op, arm: str, *, cold: bool, stamp: bool = False, ahead: bool = False
    ) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        # Estimate the first spin from the warm-up: too short a spin costs another call, which may take a second.
        spin = 0.0 if ahead else self._spins.get(arm, 100_000.0 + 1.5 * self.enqueued)
        while True:
            op.restore()
            if cold:
                self._flush_l2()
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if spin:
                torch.cuda._sleep(int(min(spin, _LONGEST_SPIN) * self._cycles_per_ns))
            began = time.perf_counter_ns()
            if stamp and self._stamps is not None:
                self._stamps.stamp(0)
            first.record()
            op.call()
            last.record()
            needed = time.perf_counter_ns() - began
            hidden = not first.query()
            # Shrink the spin slowly and grow it at once: host delays are rare, but repeated calls are expensive.
            self._spins[arm] = max(1.25 * needed + 10_000, 0.9 * spin) if hidden else 2.0 * max(spin, needed)
            if hidden or spin > _LONGEST_SPIN:  # the launch cost cannot be hidden if the operation waits for the device
                return first, last
            spin, self._late = self._spins[arm], True

    def empty(self, times: int, *, cold: bool) -> float:
        pairs = [self._one(_NOTHING, "an empty launch", cold=cold) for _ in range(times)]
        self.sync()
        return 1e6 * statistics.median(first.elapsed_time(last) for first, last in pairs)

    def mhz(self) -> float:
        return self._stamps.mhz() if self._stamps is not None else 0.0

    def wall(self, op: Op) -> float:
        op.restore()
        self.sync()
        start = time.perf_counter_ns()
        op.call()
        self.enqueued = float(time.perf_counter_ns() - start)
        self.sync()
        return float(time.perf_counter_ns() - start)

    def busy(self, ns: int) -> int:
        """Return for how many of the next `ns` nanoseconds other processes have the device. Raises Unsupported."""
        if self._stamps is None:
            raise Unsupported("the driver refuses the kernel that watches the device")
        return self._stamps.busy(ns)

    def graph(self, op: Op, compiled: Callable[[], int]) -> Graph:
        """Return a CUDA graph of a call, after one replay. Raises NotCaptured."""
        graph = Graph(op, compiled)
        op.restore()
        graph.replay()
        self.sync()
        return graph

    def replays(self, graph: Graph, op: Op, times: int, *, arm: str = "") -> float:
        """Return the mean ns of `times` replays of the graph, with warm caches. `op.reset()` runs untimed before each
        replay."""
        key = f"{arm} in a graph"
        if op.reset:
            return self.turn(Op(graph.replay, reset=op.reset), times, cold=False, arm=key)
        return self.turn(Op(lambda: graph.replay(times)), 1, cold=False, arm=key) / times

    def kernels(self, op: Op, calls: int, *, cold: bool) -> float:
        """Return the mean ns of `calls` calls, each the sum over its kernels, copies and fills, by CUPTI. Raises
        Unsupported without cupti-python, or if CUPTI's times are not nanoseconds."""
        if self.profiled:
            what = "torch's profiler ran in this process: CUPTI's times are now ticks of the processor's counter"
            raise Unsupported(what)
        if self._records is None:
            records = Records()
            recorded = self._recorded(records, _KNOWN, 1, cold=False)
            timed = self.turn(_KNOWN, 1, cold=False, arm="CUPTI's try")
            if not 0.5 * timed < recorded < 1.5 * timed:  # ticks would read at least twice as long
                raise Unsupported(f"CUPTI is wrong: {recorded / 1e3:.1f} us for a kernel of {timed / 1e3:.1f} us")
            self._records = records
        return self._recorded(self._records, op, calls, cold=cold)

    def _recorded(self, records: Records, op: Op, calls: int, *, cold: bool) -> float:
        readings = []
        with records:
            for _ in range(calls):
                op.restore()
                if cold:
                    self._flush_l2()
                self.sync()
                records.drained()
                op.call()
                self.sync()
                readings.append(records.drained())
        return mean(readings)

    def sustained(self, op: Op, calls: int) -> float:
        """Make `calls` calls and resets without pauses. Return their mean ns (the first third is not counted)."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        lead = calls // 3
        for number in range(calls):
            if number == lead:
                first.record()
            op.restore()
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

    def peak_bytes(self) -> int | None:
        """Return the peak memory of torch's allocator since `reset_peak`, in bytes beyond those in use then."""
        return int(torch.cuda.max_memory_allocated(self.device)) - self._held

    def reset_peak(self) -> None:
        self._spins.clear()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        self._held = int(torch.cuda.memory_allocated(self.device))

    def capability(self) -> str:
        return f"{self._properties.major}.{self._properties.minor}"


# ---------------------------------------------------------------- CUPTI's activity records (cupti-python)


class Records:
    """Adds up the durations of kernels, copies and fills in a `with` block. Raises Unsupported if CUPTI does not work.

    The first block must come before any use of torch's profiler: afterwards CUPTI no longer counts in nanoseconds. Each
    block registers with CUPTI anew, because CUPTI serves only the last to register, which may be torch's profiler.
    """

    def __init__(self) -> None:
        try:
            from cupti import cupti
        except Exception as error:  # cupti has its own exception for a missing library
            raise Unsupported(f"cannot import cupti ({error}): install cupti-python for this interpreter") from error
        self._cupti = cupti
        kind = cupti.ActivityKind
        self._kinds = (kind.CONCURRENT_KERNEL, kind.MEMCPY, kind.MEMSET)
        self._ns = 0

    def __enter__(self) -> Records:
        try:  # a buffer of 8 MiB: CUPTI's documentation advises 1 to 10 MB
            self._cupti.activity_register_callbacks(lambda: (8 << 20, 0), self._completed)
            for kind in self._kinds:
                self._cupti.activity_enable(kind)
        except Exception as error:  # CUPTI's errors have their own class
            what = f"CUPTI does not start ({type(error).__name__}: {error}): another profiler may hold it"
            raise Unsupported(what) from error
        return self

    def __exit__(self, *exc: object) -> None:
        for kind in self._kinds:
            self._cupti.activity_disable(kind)
        self.drained()

    def _completed(self, activities: Sequence[Any]) -> None:
        """Called by CUPTI: add the durations of these records to the sum."""
        known = [int(kind) for kind in self._kinds]
        self._ns += sum(int(one.end) - int(one.start) for one in activities if int(one.kind) in known)

    def drained(self) -> float:
        """Return the total duration (ns) of kernels, copies and fills since the last call. The device must be idle."""
        self._cupti.activity_flush_all(1)  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: flush buffers that are not full, too
        ns, self._ns = self._ns, 0
        return float(ns)


# ---------------------------------------------------------------- a call captured in a CUDA graph


class Graph:
    """A call captured in a CUDA graph. `compiled` returns the number of compilations so far. Raises NotCaptured."""

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
            raise NotCaptured("empty", "the call launches nothing on the captured stream")
        self._graph.instantiate()

    def replay(self, times: int = 1) -> None:
        """Enqueue the graph `times` times."""
        for _ in range(times):
            self._graph.replay()


def _warm(op: Op, stream: torch.cuda.Stream, compiled: Callable[[], int]) -> None:
    """Call the operation twice on `stream`, before the capture. Raises NotCaptured if the second call waits for the
    device or compiles a kernel."""
    mode = torch.cuda.get_sync_debug_mode()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for last in (False, True):
            op.restore()
            before = compiled()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")  # torch then warns about .item(), .cpu(), nonzero()
                try:
                    op.call()
                finally:
                    torch.cuda.set_sync_debug_mode(mode)
            if last and any("synchronizing CUDA operation" in str(one.message) for one in caught):
                raise NotCaptured("host_sync", "the call waits for the device")
            if last and compiled() > before:
                raise NotCaptured("compiles", "the call compiles or tunes anew each time")
        op.restore()
    torch.cuda.synchronize()


def _captured(graph: torch.cuda.CUDAGraph, op: Op, stream: torch.cuda.Stream) -> Any:
    """Capture a call in `graph`, and return what the call returned. Raises NotCaptured."""
    current, collecting, stopped = torch.cuda.current_stream(), gc.isenabled(), list[Exception]()
    gc.disable()  # freeing another graph's memory would break the capture
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
        first = [*stopped, error][0]  # capture_end() fails too, with a less useful error
        why = f"{type(first).__name__}: {' '.join(str(first).split())[:160]}"
        raise NotCaptured("error", f"the call fails while it is captured ({why})", spoiled=True) from error
    finally:
        torch.cuda.set_stream(current)
        if collecting:
            gc.enable()


# ---------------------------------------------------------------- the multiprocessors' mean clock rate, and other work

# A kernel with a thread per multiprocessor writes %clock64 (cycles) and %globaltimer (ns) to the row of its %smid. Two
# launches give each multiprocessor's mean clock between them; NVML has samples only every 100 ms. The CUDA driver loads
# the kernels as PTX, without a compiler or code of a side.
#
# Kernels of two processes take turns on a GPU, in slices of milliseconds. The second kernel reads %globaltimer in one thread,
# and adds up the pauses between two readings: then another process had the GPU.
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
.visible .entry abprof_watch(.param .u64 out, .param .u64 span, .param .u64 pause)
{
    .reg .pred %more;
    .reg .b64 %at, %end, %pause, %last, %now, %gap, %sum;
    ld.param.u64 %at, [out];
    ld.param.u64 %end, [span];
    ld.param.u64 %pause, [pause];
    cvta.to.global.u64 %at, %at;
    mov.u64 %sum, 0;
    mov.u64 %last, %globaltimer;
    add.u64 %end, %end, %last;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %gap, %now, %last;
    mov.u64 %last, %now;
    setp.gt.u64 %more, %gap, %pause;
    @%more add.u64 %sum, %sum, %gap;
    setp.lt.u64 %more, %now, %end;
    @%more bra again;
    st.global.u64 [%at], %sum;
    ret;
}
"""


_PAUSE = 50_000  # ns between two readings of a thread that has the GPU: far more than such readings take


class Stamps:
    """Measures the GPU's mean clock rate between two stamps, which are kernels that read the clock counters, and watches
    for other processes' kernels. Raises OSError or RuntimeError if the driver refuses the kernels."""

    def __init__(self, device: torch.device) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        module, self._stamp, self._watch = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._stamp), module, b"abprof_stamp")
        self._call("cuModuleGetFunction", ctypes.byref(self._watch), module, b"abprof_watch")
        self._blocks = torch.cuda.get_device_properties(device).multi_processor_count
        # Axes: begin or end; multiprocessor (twice the count, as ids may have gaps); cycles, ns, number of the turn.
        self._written = torch.zeros((2, 2 * self._blocks, 3), dtype=torch.int64, device=device)
        self._turn = 0

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} failed with CUDA error {code}")

    def stamp(self, which: int) -> None:
        """Enqueue the stamp that starts (`which` is 0) or ends (1) a turn, in the current stream."""
        self._turn += not which
        values = (
            ctypes.c_uint64(self._written[which].data_ptr()),
            ctypes.c_uint32(self._written.shape[1]),
            ctypes.c_uint64(self._turn),
        )
        self._launch(self._stamp, self._blocks, values)

    def busy(self, ns: int) -> int:
        """Occupy one thread for `ns` nanoseconds. Return for how many of them other processes had the GPU."""
        return int(self.hold(ns).item())

    def hold(self, ns: int) -> torch.Tensor:
        """Enqueue what `busy` does, in the current stream, and return its result before it has ended."""
        found = torch.zeros(1, dtype=torch.int64, device=self._written.device)
        self._launch(self._watch, 1, tuple(map(ctypes.c_uint64, (found.data_ptr(), ns, _PAUSE))))
        return found

    def _launch(self, kernel: ctypes.c_void_p, blocks: int, values: tuple[Any, ...]) -> None:
        arguments = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, one, none = ctypes.c_uint(blocks), ctypes.c_uint(1), ctypes.c_uint(0)
        self._call("cuLaunchKernel", kernel, grid, one, one, one, one, one, none, stream, arguments, None)

    def mhz(self) -> float:
        """Return the mean clock rate in MHz over the last turn; 0 without stamps. The device must be idle."""
        begun, ended = self._written.tolist()
        clocks = [
            1e3 * (cycles - first_cycles) / (ns - first_ns)
            for (first_cycles, first_ns, first_turn), (cycles, ns, last_turn) in zip(begun, ended, strict=True)
            if first_turn == last_turn == self._turn and ns > first_ns and cycles > first_cycles
        ]
        return statistics.fmean(clocks or [0.0])
