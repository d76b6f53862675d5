"""Find work outside turns (--untrusted). The processes of a side's sandbox are stopped while its workers have no request.

So they can neither take time from another side's turns, nor finish work after a reply or begin it before a request. A side
that tries is broken: one that ran while it was stopped, or that works as soon as it may run without a request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from abprof.records import STANDING_IN
from abprof.system.processes import Worker, WorkerDied

_LOOK = 0.005  # seconds that a side may run without a request
# The same for a side that uses processors in such a look. To stop and continue costs each thread some 0.1 ms of CPU time: 5 ms
# for 34 sleeping threads on an H200's host. Libraries have a thread for each core.
_LONG_LOOK = max(0.05, 0.0015 * (os.cpu_count() or 1))
_LOOKS = 3  # on a loaded machine a thread that would work may get no processor in one
_STOPPED = 1_000_000  # ns of CPU time that a side may use while it is stopped: signals reach its processes one by one
_LEAST = 0.2  # processors that an honest side may use without a request: idle OpenMP threads spin before they sleep
_LIKE_BASE = 2  # times what base uses then: where its libraries spin, so may the target's
_SETTLE = 5.0  # most seconds to wait for child processes that start up, such as Inductor's compile workers


class OutsideTurns:
    """What each side's worker uses from now on while it has no request."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._workers, end = dict(workers), time.monotonic() + _SETTLE
        for worker in workers.values():
            while worker.alive and _observed(worker) > _LEAST and time.monotonic() < end:
                pass
        self._before = {id: worker.ran for id, worker in workers.items()}

    def faults(self) -> dict[str, str]:
        """Return worker id -> how much CPU time it used without a request, if that is more than an honest one uses."""
        found, base = dict[str, str](), self._workers.get("base")
        for id, worker in self._workers.items():
            if id == "base" or id in STANDING_IN or not worker.alive:
                continue
            used, stopped = _observed(worker), worker.ran - self._before[id]
            if stopped > _STOPPED:
                found[id] = f"CPU time outside its turns: {stopped / 1e6:.1f} ms while it was stopped"
            elif used > _LEAST + _LIKE_BASE * (_observed(base) if base and base.alive else 0):
                found[id] = f"CPU time outside its turns: {used:.1f} processors without a request"
        return found


def _observed(worker: Worker) -> float:
    """Return how many processors the side uses without a request: in a look in which it works and in a longer one, the lesser."""
    used = 0.0
    for _ in range(_LOOKS):
        used = max(used, _processors(worker, _LOOK))
        if used > _LEAST:
            return min(used, _processors(worker, _LONG_LOOK))
    return used


def _processors(worker: Worker, seconds: float) -> float:
    began = time.perf_counter_ns()
    try:
        return worker.observed(seconds) / (time.perf_counter_ns() - began)  # longer on a loaded machine
    except WorkerDied:  # a later request says why
        return 0.0
