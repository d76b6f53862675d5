"""Nsight Compute: `capture` runs ncu on arms, `recording` reads ncu's CSV files, `traffic` counts bytes.

Import `capture` only to run ncu, because that module imports the code that starts processes.
"""

from abprof.evidence.ncu import recording, traffic
from abprof.evidence.ncu.traffic import measured

__all__ = ["measured", "recording", "traffic"]
