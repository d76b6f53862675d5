"""Builds: each kernel package of each side, compiled in a process of its own and cached by content; and what code under test gets.

In: checkouts of the sides, packages and the cells to call at build time (`Job`), and a `WorkerFactory`. Out: `Build` records. Code
under test runs with a scrubbed `environment`, in a `sandbox` if asked for, and `Watch` reports files that it should not touch.
"""

from abprof.builds import environment, sandbox
from abprof.builds.build import Job, build_packages, differences, exists, identical, in_use, missing, sweep
from abprof.builds.keys import folders
from abprof.builds.tampering import Watch, elsewhere
from abprof.builds.worker_factory import (
    ForkServers,
    WorkerFactory,
    alone,
    base_environment,
    command,
    interpreter,
    sandbox_for,
)

__all__ = [
    "ForkServers", "Job", "Watch", "WorkerFactory", "alone", "base_environment", "build_packages", "command",
    "differences", "elsewhere", "environment", "exists", "folders", "identical", "in_use", "interpreter",
    "missing", "sandbox", "sandbox_for", "sweep",
]  # fmt: skip
