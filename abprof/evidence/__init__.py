"""Why a row changed: machine code, phases, Nsight Compute (`evidence.ncu`), torch.profiler and perf.

In: a judged run, and for probes the plan with its workers. Out: kernels with their code (`read_kernels`), records of the
probes (`probed`) of some rows (`subjects`), and the run with causes on its changed rows (`explained`).
"""

from abprof.evidence.causes import explained
from abprof.evidence.machine_code import read_kernels
from abprof.evidence.probes import probed, subjects

__all__ = ["explained", "probed", "read_kernels", "subjects"]
