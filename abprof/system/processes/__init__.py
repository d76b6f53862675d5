"""Start and end child processes. Apart from `sides.git`, no other package starts processes.

Every child has a mark: a unique value of an environment variable, which the child's own children inherit. abprof uses
the mark to kill every process that the child started. A worker ends when its parent is gone, also after kill -9.
"""

from abprof.system.processes.children import (
    LOG_LIMIT,
    WorkerDied,
    WorkerFault,
    WorkerHung,
    dies_with,
    how_ended,
    no_orphans,
    signals,
)
from abprof.system.processes.forks import ForkServer
from abprof.system.processes.tools import (
    Program,
    cuda_tool,
    foreground,
    guarded,
    logged,
    output,
    output_lines,
    tried,
    watching,
)
from abprof.system.processes.worker import Worker, end_all

__all__ = [
    "LOG_LIMIT", "ForkServer", "Program", "Worker", "WorkerDied", "WorkerFault", "WorkerHung", "cuda_tool", "dies_with",
    "end_all", "foreground", "guarded", "how_ended", "logged", "no_orphans", "output", "output_lines", "signals", "tried",
    "watching",
]  # fmt: skip
