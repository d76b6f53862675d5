"""Nsight Compute: `capture` runs ncu on arms, `recording` has its metrics and reads its CSV files, `traffic` counts bytes.

`capture` is imported where ncu runs: it starts processes, which a page or a comment does not need.
"""

from abprof.evidence.ncu import recording, traffic
from abprof.evidence.ncu.traffic import measured

__all__ = ["measured", "recording", "traffic"]
