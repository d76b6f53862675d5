"""CUDA's timers: an event pair around each call, with the L2 cache flushed and the launch cost hidden before it; CUPTI's
activity records; graph replays."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import torch

from abprof.worker.api import Op, Unsupported
from abprof.worker.clocks import cupti
from abprof.worker.clocks.base import Clock, mean
from abprof.worker.clocks.graphs import Graph
from abprof.worker.clocks.stamps import Stamps

_LONGEST_SPIN = 5_000_000.0  # ns
_NOTHING = Op(lambda: torch.cuda._sleep(0))
_KNOWN = Op(lambda: torch.cuda._sleep(200_000))  # some 0.1 ms: launches hardly count
_LIKE = (0.5, 1.5)  # of what events read; CUPTI's ticks are at least twice as many as nanoseconds


def _stamps(device: torch.device) -> Stamps | None:
    """None if the driver refuses the kernel (MIG, an emulator): then the clock is unknown."""
    torch.cuda.synchronize(device)  # makes the context that the driver's calls need
    try:
        return Stamps(device)
    except (OSError, RuntimeError, AttributeError) as error:
        print(f"cannot read the device's clocks: {error}", flush=True)
        return None


class CudaClock(Clock):
    """Device time from CUDA events (`turn`), CUPTI (`kernels`, `span`) and graphs (`replays`)."""

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
        self._stamps = _stamps(self.device)
        self._records: cupti.Records | None = None

    def sync(self) -> None:
        torch.cuda.synchronize(self.device)

    def turn(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Mean over calls of the event pair (`gpu_span`).

        Before each call the L2 cache is flushed by writing twice its size, and a spin kernel keeps the stream busy for
        as long as the host needs to enqueue this operation, so that launch cost lies before the first event (nvbench's
        blocking kernel, with a bounded wait instead of a host flag). If the device has passed the first event before
        the host was done, the call is made again with a longer spin.
        """
        pairs = [self._one(op, arm, cold=cold, stamp=i == 0) for i in range(calls)]
        if self._stamps is not None:
            self._stamps.end()
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
                self._stamps.begin()
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
        """A call captured, and replayed once."""
        graph = Graph(op, compiled)
        if op.reset:
            op.reset()
        graph.replay()
        self.sync()
        return graph

    def replays(self, graph: Graph, op: Op, times: int, *, arm: str = "") -> float:
        """By one event pair around all of them, enqueued behind a spin kernel; by one pair around each if the operation
        has a reset, which is not timed."""
        key = f"{arm} in a graph"
        if op.reset:
            return self.turn(Op(graph.replay, reset=op.reset), times, cold=False, arm=key)
        return self.turn(Op(graph.repeated(times)), 1, cold=False, arm=key) / times

    def kernels(self, op: Op, calls: int, *, cold: bool) -> float:
        """Records are read before and after each call, on an idle device: between them lies only the call."""
        readings = []
        with self._recording() as records:
            for _ in range(calls):
                self._idle(op, records, cold=cold)
                op.call()
                self.sync()
                readings.append(cupti.added(records.drained()))
        return mean(readings)

    def span(self, op: Op, calls: int, *, cold: bool, arm: str = "") -> float:
        """Each call is enqueued behind a spin kernel, as for events: else the host's launches would be gaps between its
        kernels. The spin is the first that ran since the device was idle, and not the call's."""
        readings, key = [], f"{arm} for CUPTI"
        with self._recording() as records:
            behind = Op(op.call, reset=lambda: self._idle(op, records, cold=cold))
            for _ in range(calls):
                self._one(behind, key, cold=False)
                self.sync()
                _, *ran = sorted(records.drained()) or [(0, 0)]
                readings.append(cupti.span(ran))
        return mean(readings)

    def _recording(self) -> cupti.Records:
        if self.profiled:
            raise Unsupported(cupti.TICKS)
        if self._records is None:
            self._records = cupti.Records()
        return self._records

    def _idle(self, op: Op, records: cupti.Records, *, cold: bool) -> None:
        """Finish all that comes before a call and drop its records."""
        if op.reset:
            op.reset()
        if cold:
            self._flush_l2()
        self.sync()
        records.drained()

    def unrecorded(self) -> str:
        """Tried on a kernel that events time, too: code under test may have run torch's profiler itself."""
        try:
            recorded = self.span(_KNOWN, 1, cold=False)
        except Unsupported as error:
            return str(error)
        timed = self.turn(_KNOWN, 1, cold=False, arm="a kernel to try CUPTI on")
        if _LIKE[0] * timed < recorded < _LIKE[1] * timed:
            return ""
        return f"CUPTI records {recorded / 1e3:.1f} us for a kernel that spans {timed / 1e3:.1f} us"

    def sustained(self, op: Op, calls: int) -> float:
        """By one event pair around the last two thirds of the calls, warm caches, nothing in between."""
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

    def do_bench(self, op: Op) -> float:
        """The median, with do_bench's own defaults."""
        from triton.testing import do_bench

        if op.reset:
            op.reset()
        return 1e6 * float(do_bench(op.call, return_mode="median"))

    def _flush_l2(self) -> None:
        if self._flush is None:
            size = 2 * max(int(getattr(self._properties, "L2_cache_size", 0)), 32 << 20)
            self._flush = torch.empty(size, dtype=torch.uint8, device=self.device)
        with torch.profiler.record_function("abprof_flush"):
            self._flush.zero_()

    def pad(self, placement: int) -> object:
        """Up to 64 MiB in 512-byte steps."""
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
