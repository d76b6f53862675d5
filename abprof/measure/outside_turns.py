"""Find work outside turns (--untrusted): CPU time that a side uses while its worker has no request to answer.

A side that works before or after its turn hides time from the timer, or takes time from the other side's turns. The
parent process reads the CPU time from the system. What base uses is known to be honest: only more counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from abprof.records import STANDING_IN
from abprof.system.processes import CpuUse, Worker

# Of a bundled kernel's worker on two cores (2026-11-26): at most 0.9 % of its CPU time, and 0.12 ms after one turn, where
# idle OpenMP threads spin before they sleep.
_SHARE = 0.02
_SPIN = 100_000  # ns after a request, for each core
_LIKE_BASE = 2  # times what base's worker uses after as many requests: where its libraries spin, so may the target's
_CHILDREN = 20_000_000  # ns: the kernel counts the time of ended children in steps of 10 ms
_SETTLE = 5.0  # most seconds to wait for child processes that start up, such as Inductor's compile workers
_LOOK, _QUIET = 0.02, 1_000_000  # seconds between looks, and ns of CPU time between looks if they are idle


class OutsideTurns:
    """The CPU time that workers use from now on."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._workers = dict(workers)
        self._before = {id: worker.cpu_use() for id, worker in workers.items()}
        end, busy = time.monotonic() + _SETTLE, any(worker.has_others for worker in workers.values())
        while busy and time.monotonic() < end:
            before = sum(use.children for use in self._before.values())
            time.sleep(_LOOK)
            self._before = {id: worker.cpu_use() for id, worker in workers.items()}
            busy = sum(use.children for use in self._before.values()) - before > _QUIET

    def fault(self, id: str) -> str:
        """Return how much CPU time the worker used outside its turns; "" if not more than an honest worker uses."""
        used, base = self._used(id), self._used("base") or CpuUse(1, 0, 0, 0)
        if used is None or id == "base" or id in STANDING_IN:
            return ""
        allowed = _SHARE * used.busy + _SPIN * used.requests * (os.cpu_count() or 1)
        like = _LIKE_BASE * used.requests / max(1, base.requests)
        few = used.idle <= allowed + like * base.idle
        few_below = used.children <= allowed + like * base.children + _CHILDREN
        uses = {"its process": 0 if few else used.idle, "its child processes": 0 if few_below else used.children}
        found = " and ".join(f"{ns / 1e6:.1f} ms by {who}" for who, ns in uses.items() if ns)
        return f"CPU time outside its turns: {found}; in its turns: {used.busy / 1e6:.1f} ms" if found else ""

    def _used(self, id: str) -> CpuUse | None:
        """Return what the worker has used since the beginning; None if it has ended."""
        worker = self._workers.get(id)
        if worker is None or not worker.alive:
            return None
        return CpuUse(*(now - then for now, then in zip(worker.cpu_use(), self._before[id], strict=True)))
