"""The workload API, as workloads import it: `from abprof.kit import Op, compare`. Defined in abprof/worker/api.py."""

from abprof.worker.api import *  # noqa: F403
from abprof.worker.api import __all__  # noqa: F401
