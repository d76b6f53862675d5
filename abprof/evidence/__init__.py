"""Why a row changed: machine code, phases, Nsight Compute, torch.profiler and perf.

In: a judged run, and for probes the plan with its workers. Out: kernels with their code (`read_kernels`), records of the
probes (`probed`), and the run with causes on its changed rows (`explained`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.evidence.causes import explained
    from abprof.evidence.machine_code import read_kernels
    from abprof.evidence.probes import probed, subjects

__all__ = ["explained", "probed", "read_kernels", "subjects"]


def __getattr__(name: str) -> Any:
    """Load on first use: a short command needs none of it."""
    if name in __all__:
        from abprof.evidence import causes, machine_code, probes

        return next(vars(module)[name] for module in (causes, machine_code, probes) if name in vars(module))
    raise AttributeError(name)
