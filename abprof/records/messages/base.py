"""What both ends name alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

PROTOCOL = 1
CALL_RANGE = "abprof_call"  # around each call that is not a turn (abprof/worker/nvtx.py)
LONG_CALL = 5e7  # ns: a call that takes so long is made no oftener than it must, and needs little to be warm
MIDDLE_CALL = 1e7  # ns: on a GPU a call that takes so long needs few others to be warm, and to be timed
WRAPPED = "_repository"  # in a copy of the workloads: benchmarks that they wrap, where those lie in the repository
Value = str | int | float | bool
Failed = Literal["unsupported", "missing", "oom", "crash"]  # what a request may meet


def cell_id(workload: str, case: Mapping[str, Value]) -> str:
    """WORKLOAD/axis=value,...: what a cell is called on both ends."""
    return f"{workload}/" + ",".join(f"{axis}={shown(value)}" for axis, value in case.items())


def shown(value: Value) -> str:
    """An axis's value as a cell's id has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
