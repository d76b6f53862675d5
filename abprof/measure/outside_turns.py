"""Find work outside turns (--untrusted): CPU time that a worker uses while it has no request to answer.

A side that works before or after its turn hides time from the timer, or takes time from the other side's turns. The
parent process reads the CPU time from the system.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from abprof.system.processes import Worker

# Of a bundled kernel's worker on two cores (2026-11-26): at most 0.9 % of its CPU time, and 0.12 ms after one turn, where
# idle OpenMP threads spin before they sleep.
_SHARE = 0.02
_SPIN = 100_000  # ns after a request, for each core
_CHILDREN = 20_000_000  # ns: the kernel counts the time of ended children in steps of 10 ms


class OutsideTurns:
    """The CPU time that workers use from now on."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._before = {id: (worker, worker.cpu_use()) for id, worker in workers.items()}

    def fault(self, id: str) -> str:
        """Return how much CPU time the worker used outside its turns; "" if not more than an honest worker uses."""
        worker, before = self._before.get(id, (None, None))
        if worker is None or before is None or not worker.alive:
            return ""
        requests, inside, idle, children = (now - then for now, then in zip(worker.cpu_use(), before, strict=True))
        allowed = _SHARE * inside + _SPIN * requests * (os.cpu_count() or 1)
        used = {
            "its process": idle if idle > allowed else 0,
            "its child processes": children if children > allowed + _CHILDREN else 0,
        }
        found = " and ".join(f"{ns / 1e6:.1f} ms by {who}" for who, ns in used.items() if ns)
        return f"CPU time outside its turns: {found}; in its turns: {inside / 1e6:.1f} ms" if found else ""
