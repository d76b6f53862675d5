"""Builds: each kernel package of each side, compiled in a process of its own and cached by content; and what code under test gets.

In: checkouts of the sides, packages and the cells to call at build time (`Job`), and a `WorkerFactory`. Out: `Build` records. Code
under test runs with a scrubbed environment, behind a sandbox if asked for, and `Watch` reports files that it should not touch.
"""

from abprof.builds.build import Job, build_packages, differences, exists, identical, in_use, sweep
from abprof.builds.tampering import Watch
from abprof.builds.worker_factory import WorkerFactory

__all__ = ["Job", "Watch", "WorkerFactory", "build_packages", "differences", "exists", "identical", "in_use", "sweep"]
