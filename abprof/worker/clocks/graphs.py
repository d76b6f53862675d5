"""A call captured in a CUDA graph: replayed, the device does its work without the host's launches in between.

Replays read the same inputs from the same addresses, so caches are as warm as these let them be.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from abprof.worker.api import Op, Unsupported

# Why a call cannot be captured: a word for machines, and what it means.
WHY = {
    "host_sync": "the call waits for the device",
    "compiles": "the call compiles or tunes anew each time",
    "allocation": "there is no memory for it during capture",
    "forbidden": "the call does what capture forbids: it waits for the device, or takes memory that is not of torch's pool",
    "stream": "the call uses a stream that the captured one does not know of",
    "empty": "nothing of the call reaches the stream that is captured",
    "error": "the call fails while it is captured",
}
# Parts of CUDA's messages (cudaErrorStreamCapture...), which torch hands on.
_STREAM = ("legacy", "unjoined", "isolation", "unmatched", "merge", "wrong thread", "implicit")
_FORBIDDEN = ("is capturing", "during capture", "invalidated", "capture unsupported")


class NotCaptured(Unsupported):
    """A call that cannot be captured. `spoiled`: capture was begun, and torch's allocator and generators may be left in any
    state (its own words, in CUDAGraph::reset): nothing that this process measures from now on is to be relied on."""

    def __init__(self, why: str, said: str = "", *, spoiled: bool = False) -> None:
        super().__init__(f"{WHY[why]}{f' ({said})' if said else ''}")
        self.why, self.spoiled = why, spoiled


class Graph:
    """One captured call, with the memory it works in. Raises NotCaptured; `compiled` counts compilations so far."""

    def __init__(self, op: Op, compiled: Callable[[], int]) -> None:
        stream = torch.cuda.Stream()
        _warm(op, stream, compiled)
        self._graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._kept = _captured(self._graph, op, stream)
        self.nodes = _nodes(self._graph.raw_cuda_graph())
        if not self.nodes:
            raise NotCaptured("empty")
        self._graph.instantiate()

    def replay(self) -> None:
        """Enqueue it once."""
        self._graph.replay()

    def repeated(self, times: int) -> Callable[[], None]:
        """What enqueues it so often."""

        def replay() -> None:
            for _ in range(times):
                self._graph.replay()

        return replay


def _warm(op: Op, stream: torch.cuda.Stream, compiled: Callable[[], int]) -> None:
    """Two calls on the stream that will capture, so that what is made once per stream (a workspace) is there. Raises
    NotCaptured for what the second one shows, while nothing is spoiled yet."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for last in (False, True):
            if op.reset:
                op.reset()
            before = compiled()
            with _waits() as waits:
                op.call()
            if last and waits:
                raise NotCaptured("host_sync")
            if last and compiled() > before:
                raise NotCaptured("compiles")
        if op.reset:
            op.reset()
    torch.cuda.synchronize()


@contextlib.contextmanager
def _waits() -> Iterator[list[str]]:
    """Where torch itself makes the host wait for the device (.item(), .cpu(), nonzero), by its own warnings."""
    found: list[str] = []
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield found
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    found += [str(one.message) for one in told if "synchronizing CUDA operation" in str(one.message)]


def _captured(graph: torch.cuda.CUDAGraph, op: Op, stream: torch.cuda.Stream) -> Any:
    """What the captured call returned. Not torch.cuda.graph(): that walks and empties torch's memory, 50 ms and more."""
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
        raise NotCaptured(_why(first), _line(first), spoiled=True) from error
    finally:
        torch.cuda.set_stream(current)
        if collecting:
            gc.enable()


def _why(error: Exception) -> str:
    text = str(error).lower()
    if "out of memory" in text:
        return "allocation"
    if any(frame.name == "synchronize" for frame in traceback.extract_tb(error.__traceback__)):
        return "host_sync"
    if any(part in text for part in _STREAM):
        return "stream"
    return "forbidden" if any(part in text for part in _FORBIDDEN) else "error"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _nodes(graph: int) -> int:
    """How many nodes a cudaGraph_t has. Raises OSError, RuntimeError where the driver does not say."""
    count = ctypes.c_size_t(0)
    code = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count))
    if code:
        raise RuntimeError(f"cuGraphGetNodes failed with CUDA error {code}")
    return int(count.value)
