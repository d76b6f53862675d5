"""Nsight Compute: the one doorway to ncu, what is asked of it, and what an arm of a cell is under it.

The CSV that it writes is read by abprof/evidence/memory/, which knows nothing of this room.
"""
