"""Nsight Compute: `capture` runs ncu on arms, `recording` has its metrics and reads its CSV files, `traffic` counts bytes."""

from abprof.evidence.ncu import capture, recording, traffic
from abprof.evidence.ncu.capture import PROFILE
from abprof.evidence.ncu.traffic import measured

__all__ = ["PROFILE", "capture", "measured", "recording", "traffic"]
