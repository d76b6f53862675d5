"""What is asked of ncu, by ncu's own names. One that a device or a version does not have is left out, and said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from abprof.evidence.memory.recording import DRAM_PARTS, METRICS

TIME = "gpu__time_duration.sum"
L1_BYTES, L2_BYTES = (METRICS["l1"],), (METRICS["l2"],)
DRAM_BYTES = ((METRICS["dram"],), DRAM_PARTS)  # either: not every device has both
MEMORY = (*METRICS.values(), *DRAM_PARTS, TIME)
# What a warp waits for, as ncu's warp states have it; `selected` is no wait. The last is of Hopper alone.
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard",
    "sleeping", "tex_throttle", "wait", "gmma",
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A row of the metric table."""

    label: str
    names: tuple[str, ...]  # ncu's; added up
    unit: Literal["ns", "bytes", "bytes/s", "%", "count", ""]
    better: Literal["lower", "higher", "none"] = "none"
    per_call: bool = False  # a sum over the call's launches; else of a launch


def stall(reason: str) -> str:
    """The metric of a reason: warps that wait for it, per instruction that is issued."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def _rate(name: str) -> str:
    return f"{name}.per_second"


_PEAK = "pct_of_peak_sustained"
DRAM_BUSY = f"gpu__dram_throughput.avg.{_PEAK}_elapsed"
L2_HITS = "lts__t_sector_hit_rate.pct"
LOAD_EFFICIENCY = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
STORE_EFFICIENCY = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"
TABLE = (
    Shown("time under ncu", (TIME,), "ns", "lower", per_call=True),
    *(Shown("DRAM bytes", names, "bytes", "lower", per_call=True) for names in DRAM_BYTES),
    Shown("L2 bytes", L2_BYTES, "bytes", "lower", per_call=True),
    Shown("L1 bytes", L1_BYTES, "bytes", "lower", per_call=True),
    Shown("DRAM rate", (_rate(METRICS["dram"]),), "bytes/s", "higher"),
    Shown("DRAM rate", tuple(map(_rate, DRAM_PARTS)), "bytes/s", "higher"),
    Shown("L2 rate", (_rate(METRICS["l2"]),), "bytes/s", "higher"),
    Shown("L1 rate", (_rate(METRICS["l1"]),), "bytes/s", "higher"),
    Shown("DRAM busy", (DRAM_BUSY,), "%"),
    Shown("L2 hit rate", (L2_HITS,), "%", "higher"),
    Shown("L1 hit rate", ("l1tex__t_sector_hit_rate.pct",), "%", "higher"),
    Shown("tensor cores busy", (f"sm__pipe_tensor_cycles_active.avg.{_PEAK}_active",), "%", "higher"),
    Shown("issue slots busy", (f"smsp__issue_active.avg.{_PEAK}_active",), "%", "higher"),
    Shown("SM busy", (f"sm__throughput.avg.{_PEAK}_elapsed",), "%"),
    Shown("occupancy", (f"sm__warps_active.avg.{_PEAK}_active",), "%", "higher"),
    Shown("registers a thread", ("launch__registers_per_thread",), "count"),
    Shown("shared bank conflicts", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",), "count", "lower", True),
    Shown("global load efficiency", (LOAD_EFFICIENCY,), "%", "higher"),
    Shown("global store efficiency", (STORE_EFFICIENCY,), "%", "higher"),
)
PROFILE = tuple(dict.fromkeys((*MEMORY, *(name for row in TABLE for name in row.names), *map(stall, STALLS))))


def adds_up(name: str) -> bool:
    """Whether a metric is a sum over what a launch did; a rate or a ratio is none."""
    return name.endswith(".sum")
