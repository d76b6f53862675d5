"""Build each side's kernel packages, cached by content, and start the run's workers.

`build_packages` takes a `WorkerFactory` and a `Job` per package and side, and returns `Build` records. Code under test
gets an environment without secrets (`builds.environment`), and may run in bubblewrap (`builds.sandbox`). `Watch`
reports changes of files that code under test must not change.
"""

from abprof.builds.build import Job, build_packages, differences, identical, in_use, missing, sweep
from abprof.builds.tampering import Watch
from abprof.builds.worker_factory import WorkerFactory, WorkerSpec, interpreter

__all__ = [
    "Job", "Watch", "WorkerFactory", "WorkerSpec", "build_packages", "differences", "identical", "in_use",
    "interpreter", "missing", "sweep",
]  # fmt: skip
