"""NVTX ranges, by which Nsight Systems and Nsight Compute find what a call belongs to. Never within a timed turn.

Each is there in both of NVTX's kinds. Push and pop nest and are of one thread (`NAME/` in ncu's filter); start and end
hold for all threads (`NAME`): autograd launches a backward kernel from a thread of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abprof.records import messages as wire


@contextlib.contextmanager
def around(names: Sequence[str], calls: Sequence[str] = ()) -> Iterator[None]:
    """The block within ranges of these names, the first outermost, and each `record_function` range of the block, which
    is how packages mark their phases and abprof its calls, as an NVTX range of its name. `calls`: a call's other names.

    Does nothing where torch was built without NVTX.
    """
    if not _there():
        yield
        return
    with _spans(names), _followed({wire.CALL_RANGE: calls}):
        yield


@contextlib.contextmanager
def nothing(names: Sequence[str], calls: Sequence[str] = ()) -> Iterator[None]:  # noqa: ARG001 - as `around`
    """No ranges."""
    yield


def _there() -> bool:
    try:
        torch.cuda.nvtx.mark("abprof")
    except (RuntimeError, AttributeError):  # torch's stub for builds without CUDA
        return False
    return True


@contextlib.contextmanager
def _spans(names: Sequence[str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in names:
            text = name.encode("ascii", "backslashreplace").decode()
            stack.callback(torch.cuda.nvtx.range_end, torch.cuda.nvtx.range_start(text))
            torch.cuda.nvtx.range_push(text)
            stack.callback(torch.cuda.nvtx.range_pop)
        yield


@contextlib.contextmanager
def _followed(further: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Torch's own way (`emit_nvtx`) is none under its profiler, marks every operation, and puts numbers behind names."""
    record_function = torch.profiler.record_function
    enter, leave = record_function.__enter__, record_function.__exit__

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        spans = _spans([self.name, *further.get(self.name, ())])  # outside of the range: they do not lengthen it
        spans.__enter__()
        vars(self).setdefault("abprof_spans", []).append(spans)  # a decorator's is entered again by what it calls
        return enter(self)

    @functools.wraps(leave)
    def left(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            if spans := vars(self).get("abprof_spans"):  # none: it was entered before the block began
                spans.pop().__exit__(None, None, None)

    record_function.__enter__, record_function.__exit__ = entered, left
    try:
        yield
    finally:
        record_function.__enter__, record_function.__exit__ = enter, leave
