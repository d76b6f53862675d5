"""Find why a cell became slower or faster: from machine code, Nsight Compute, torch.profiler, perf and timed phases.

For a judged run, `read_kernels` returns the kernels with their machine code, `subjects` chooses the comparisons to
probe, `probed` returns the records of the probes, `keep_listings` writes what compilers made of the kernels of changed
rows, and `explained` returns the run with causes of the changes. `Ncu` records
arms under Nsight Compute, as in PROFILE or otherwise, or is Refused; `measured` reads a file that ncu wrote.
"""

from abprof.evidence.causes import explained
from abprof.evidence.listing import keep_listings
from abprof.evidence.machine_code import read_kernels
from abprof.evidence.ncu.capture import PROFILE, Ncu, Refused
from abprof.evidence.ncu.traffic import measured
from abprof.evidence.probes import probed, subjects

__all__ = ["PROFILE", "Ncu", "Refused", "explained", "keep_listings", "measured", "probed", "read_kernels", "subjects"]
