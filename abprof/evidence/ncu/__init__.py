"""Nsight Compute: `capture` runs ncu on arms, `recording` reads ncu's CSV files, `traffic` sums the bytes of kernels.

Import `capture` only where ncu is run: it loads the code that starts processes.
"""

from abprof.evidence.ncu import recording, traffic
from abprof.evidence.ncu.traffic import measured

__all__ = ["measured", "recording", "traffic"]
