"""What the device ran and when, by CUPTI's activity records (cupti-python, imported here alone)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abprof.worker.api import Unsupported

_BUFFER = 8 << 20  # bytes: within what CUPTI's documentation advises (1 to 10 MB)
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full, too
TICKS = "torch's profiler ran in this process, after which CUPTI gives ticks of the processor's counter for nanoseconds"

Ran = Sequence[tuple[int, int]]  # start and end of each kernel, copy and fill, ns


def added(ran: Ran) -> float:
    """Sum of the durations, ns; 0 of nothing."""
    return float(sum(end - start for start, end in ran))


def span(ran: Ran) -> float:
    """From the first start to the last end, ns, gaps included; 0 of nothing."""
    return float(max(end for _, end in ran) - min(start for start, _ in ran)) if ran else 0.0


class Records:
    """Kernels, copies and fills that run while it is entered. Raises Unsupported without cupti-python or if CUPTI fails.

    torch's profiler registers with CUPTI too, and only the last to register gets records: so this registers each time.
    It must be read before that profiler's first pass in the process: after it the times would be ticks.
    """

    def __init__(self) -> None:
        try:
            from cupti import cupti
        except Exception as error:  # one of its own where the library that it loads is missing
            what = f"cupti-python cannot be imported ({error}): pip install cupti-python into this interpreter"
            raise Unsupported(what) from error
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

    def drained(self) -> Ran:
        """All that ran since the last call. The device must be idle."""
        self._cupti.activity_flush_all(_FORCED)
        ran, self._ran = self._ran, []
        return ran
