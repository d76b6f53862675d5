"""Fleet: one queue of whole cells, spread over the devices of this host, a Ray cluster or Slurm.

In: a plan whose packages are built, and an executor. Out: blocks, proofs and kernels, as shard workers report them (`coordinate`).
"""

from abprof.fleet.bundle import sweep
from abprof.fleet.coordinator import coordinate
from abprof.fleet.executors import cluster_of, executor_options, pool_of
from abprof.fleet.messages import Executor

__all__ = ["Executor", "cluster_of", "coordinate", "executor_options", "pool_of", "sweep"]
