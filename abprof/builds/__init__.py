"""Builds: each kernel package of each side, compiled in a process of its own and cached by content; and what code under test gets.

In: checkouts of the sides, packages and the cells to call at build time (`Job`), and a `WorkerFactory`. Out: `Build` records. Code
under test runs with an environment without secrets (`builds.environment`), in bubblewrap if asked for (`builds.sandbox`), and
`Watch` reports files that it should not touch.
"""

from abprof.builds.build import Job, build_packages, differences, identical, in_use, missing, sweep
from abprof.builds.keys import folders
from abprof.builds.tampering import Watch
from abprof.builds.worker_factory import WorkerFactory, interpreter

__all__ = [
    "Job", "Watch", "WorkerFactory", "build_packages", "differences", "folders", "identical", "in_use", "interpreter",
    "missing", "sweep",
]  # fmt: skip
