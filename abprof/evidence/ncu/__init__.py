"""Nsight Compute: find and run ncu (`tool`), profile arms (`capture`), read its CSV files (`recording`, `traffic`)."""
