"""Nsight Compute: `capture` runs ncu on arms, `recording` reads ncu's CSV files, `traffic` sums the bytes of kernels."""
