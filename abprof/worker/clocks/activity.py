"""What the device ran and for how long, by CUPTI's activity records. The only place of cupti-python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abprof.kit import Unsupported

_BUFFER = 8 << 20  # bytes: within what CUPTI's documentation advises (1 to 10 MB)
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED: buffers that are not full, too


class Records:
    """Durations of kernels, copies and fills while it is entered. Raises Unsupported where cupti-python is not there.

    torch's profiler registers with CUPTI too, and whoever comes last is told: so this registers each time. Where CUPTI times,
    that profiler's pass is left out (abprof/measure.py): after it these durations would be ticks of the processor's counter.
    """

    def __init__(self) -> None:
        try:
            from cupti import cupti
        except ImportError as error:
            what = f"cupti-python cannot be imported ({error}): pip install cupti-python into this interpreter"
            raise Unsupported(what) from error
        self._cupti = cupti
        kind = cupti.ActivityKind
        self._kinds = (kind.CONCURRENT_KERNEL, kind.MEMCPY, kind.MEMSET)
        self._durations: list[float] = []

    def __enter__(self) -> Records:
        self._cupti.activity_register_callbacks(lambda: (_BUFFER, 0), self._completed)
        for kind in self._kinds:
            self._cupti.activity_enable(kind)
        return self

    def __exit__(self, *exc: object) -> None:
        for kind in self._kinds:
            self._cupti.activity_disable(kind)
        self.drained()

    def _completed(self, activities: Sequence[Any]) -> None:
        """CUPTI's own callback: the records' memory is gone when it returns."""
        known = [int(kind) for kind in self._kinds]
        self._durations += [float(one.end - one.start) for one in activities if int(one.kind) in known]

    def drained(self) -> float:
        """Durations of all that ran since it was last asked, added up, ns. The device must be idle."""
        self._cupti.activity_flush_all(_FORCED)
        total = sum(self._durations)
        self._durations.clear()
        return total
