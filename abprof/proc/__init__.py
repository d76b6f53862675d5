"""The one doorway to child processes: workers, builders, and nothing else starts one.

Every child leads its own process group (one in the foreground shares its parent's terminal) and bears a mark in its
environment, so that whatever it forks dies with it, also what has left the group. That it dies with its parent, also
when that one is killed with -9, it sees to itself (abprof/worker/main.py).
"""

from __future__ import annotations

from abprof.proc.faults import WorkerDied, WorkerFault, WorkerHung
from abprof.proc.log import LOG_LIMIT, Log
from abprof.proc.printing import printing
from abprof.proc.program import Program
from abprof.proc.strays import MARK, dies_with, no_orphans
from abprof.proc.tools import Watching, foreground, logged, output, tried
from abprof.proc.worker import ALIVE_EVERY, Worker, to_start

__all__ = [
    "ALIVE_EVERY",
    "LOG_LIMIT",
    "MARK",
    "Log",
    "Program",
    "Watching",
    "Worker",
    "WorkerDied",
    "WorkerFault",
    "WorkerHung",
    "dies_with",
    "foreground",
    "logged",
    "no_orphans",
    "output",
    "printing",
    "to_start",
    "tried",
]
