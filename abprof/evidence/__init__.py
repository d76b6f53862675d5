"""Find why a cell became slower or faster: from machine code, Nsight Compute, torch.profiler, perf and timed phases.

For a judged run, `read_kernels` returns the kernels with their machine code, `subjects` chooses the comparisons to
probe, `probed` returns the records of the probes, and `explained` the run with causes of the changes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.evidence.causes import explained
    from abprof.evidence.machine_code import read_kernels
    from abprof.evidence.probes import probed, subjects

__all__ = ["explained", "probed", "read_kernels", "subjects"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because some callers need only `evidence.ncu`."""
    homes = {"explained": "causes", "read_kernels": "machine_code"}
    if name in __all__:
        return getattr(importlib.import_module(f"abprof.evidence.{homes.get(name, 'probes')}"), name)
    raise AttributeError(name)
