"""Fleet: one queue of whole cells, spread over the devices of this host, a Ray cluster or Slurm.

In: a plan whose packages are built, and an executor. Out: blocks, proofs and kernels, as shard workers report them (`coordinate`).
"""

from abprof.fleet.coordinator import coordinate
from abprof.fleet.executors import Executor, executor_of, read_options

__all__ = ["Executor", "coordinate", "executor_of", "read_options"]
