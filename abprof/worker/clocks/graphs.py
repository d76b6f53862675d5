"""A call captured in a CUDA graph (`--timer graph`): replays run without the host's launches, on warm caches."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from abprof.worker.api import Op, Unsupported


class NotCaptured(Unsupported):
    """A call that cannot be captured. `spoiled`: a capture had begun, and torch's allocator and generators may be left in
    any state (CUDAGraph::reset): this process must not measure any more."""

    def __init__(self, why: str, reason: str, *, spoiled: bool = False) -> None:
        super().__init__(reason)
        self.why, self.spoiled = why, spoiled  # why: one word


class Graph:
    """One captured call, with the memory it works in. `compiled` gives the number of compilations so far. Raises
    NotCaptured."""

    def __init__(self, op: Op, compiled: Callable[[], int]) -> None:
        stream = torch.cuda.Stream()
        _warm(op, stream, compiled)
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._kept = _captured(self._graph, op, stream)
        self.nodes = _nodes(self._graph.raw_cuda_graph())
        if not self.nodes:
            raise NotCaptured("empty", "nothing of the call reaches the captured stream")
        self._graph.instantiate()

    def replay(self) -> None:
        """Enqueue it once."""
        self._graph.replay()

    def repeated(self, times: int) -> Callable[[], None]:
        """A function that enqueues it so many times."""

        def replay() -> None:
            for _ in range(times):
                self._graph.replay()

        return replay


def _warm(op: Op, stream: torch.cuda.Stream, compiled: Callable[[], int]) -> None:
    """Two calls on the stream that will capture, so that what is made once per stream (a workspace) exists. Raises
    NotCaptured if the second one waits or compiles, while nothing is spoiled yet."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for last in (False, True):
            if op.reset:
                op.reset()
            before = compiled()
            with _waits() as waits:
                op.call()
            if last and waits:
                raise NotCaptured("host_sync", "the call waits for the device")
            if last and compiled() > before:
                raise NotCaptured("compiles", "the call compiles or tunes anew each time")
        if op.reset:
            op.reset()
    torch.cuda.synchronize()


@contextlib.contextmanager
def _waits() -> Iterator[list[str]]:
    """Torch's warnings about waiting for the device (.item(), .cpu(), nonzero)."""
    found: list[str] = []
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    found += [str(one.message) for one in caught if "synchronizing CUDA operation" in str(one.message)]


def _captured(graph: torch.cuda.CUDAGraph, op: Op, stream: torch.cuda.Stream) -> Any:
    """Capture a call and return its result. Not torch.cuda.graph(): it empties torch's memory, 50 ms and more."""
    current, collecting = torch.cuda.current_stream(), gc.isenabled()
    stopped: Exception | None = None
    gc.disable()  # what it would free in the middle may be of another graph
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                return op.call()
            except Exception as error:
                stopped = error
                raise
            finally:
                graph.capture_end()
    except Exception as error:
        first = stopped or error  # capture_end() fails too, and says less
        why = f"{type(first).__name__}: {' '.join(str(first).split())[:160]}"
        raise NotCaptured("error", f"the call fails while it is captured ({why})", spoiled=True) from error
    finally:
        torch.cuda.set_stream(current)
        if collecting:
            gc.enable()


def _nodes(graph: int) -> int:
    """The number of nodes of a cudaGraph_t. Raises OSError, RuntimeError."""
    count = ctypes.c_size_t(0)
    code = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count))
    if code:
        raise RuntimeError(f"cuGraphGetNodes failed with CUDA error {code}")
    return int(count.value)
