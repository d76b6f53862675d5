"""Fleet: one queue of whole cells, spread over the devices of this host, a Ray cluster or Slurm.

In: a plan whose packages are built, and an executor. Out: blocks, proofs and kernels as shards report them (`coordinate`).
"""

from __future__ import annotations

from pathlib import Path


def sweep(cache: Path, *, everything: bool) -> list[str]:
    """Remove bundles of other machines' runs that no process uses; a line for each."""
    from abprof.fleet import bundle

    return bundle.sweep(cache, everything=everything)
