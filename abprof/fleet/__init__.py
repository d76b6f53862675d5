"""Fleet: spreads one queue of whole cells over the devices of this host, a Ray cluster or Slurm.

`coordinate` takes an executor and a plan with built packages, and yields the blocks, proofs and kernels that shard workers send.
"""

from abprof.fleet.coordinator import coordinate
from abprof.fleet.executors import Executor, executor_of, read_options

__all__ = ["Executor", "coordinate", "executor_of", "read_options"]
