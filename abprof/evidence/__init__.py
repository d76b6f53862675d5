"""Why a row changed: machine code, phases, Nsight Compute (`evidence.ncu`), torch.profiler and perf.

In: a judged run, and for probes the plan with its workers. Out: kernels with their code (`read_kernels`), records of the
probes (`probed`) of some rows (`subjects`), and the run with causes on its changed rows (`explained`).
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
    """Import on first use: reports and the bot read `ncu` without what starts processes."""
    homes = {"explained": "causes", "read_kernels": "machine_code"}
    if name in __all__:
        return getattr(importlib.import_module(f"abprof.evidence.{homes.get(name, 'probes')}"), name)
    raise AttributeError(name)
