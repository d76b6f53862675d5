"""Nsight Compute: run ncu and profile arms (`capture`), read its CSV files (`recording`, `traffic`)."""
