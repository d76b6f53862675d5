"""Fleet: measures the cells of one run on several devices of this host, of a Ray cluster or of Slurm.

`coordinate` sends cells to shard workers through an executor, and yields the results that come back.
"""

from abprof.fleet.coordinator import coordinate
from abprof.fleet.executors import Executor, executor_of, read_options

__all__ = ["Executor", "coordinate", "executor_of", "read_options"]
