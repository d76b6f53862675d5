"""The one doorway to child processes: workers, builders, and nothing else starts one.

Every child leads its own process group (one in the foreground shares its parent's terminal) and bears a mark in its
environment, so that whatever it forks dies with it, also what has left the group. That it dies with its parent, also
when that one is killed with -9, it sees to itself (abprof/worker/main.py).
"""

from abprof.system.processes.children import (
    LOG_LIMIT,
    WorkerDied,
    WorkerFault,
    WorkerHung,
    dies_with,
    how_ended,
    no_orphans,
)
from abprof.system.processes.forks import ForkServer
from abprof.system.processes.tools import Program, foreground, logged, output, printing, tried, watching
from abprof.system.processes.worker import Worker, end_all

__all__ = [
    "LOG_LIMIT", "ForkServer", "Program", "Worker", "WorkerDied", "WorkerFault", "WorkerHung", "dies_with", "end_all",
    "foreground", "how_ended", "logged", "no_orphans", "output", "printing", "tried", "watching",
]  # fmt: skip
