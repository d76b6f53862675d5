"""The workload API: workloads write `from abprof.kit import Op, compare`. It is defined in abprof/worker/api.py."""

from abprof.worker.api import *  # noqa: F403
from abprof.worker.api import __all__  # noqa: F401
