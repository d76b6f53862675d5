"""The metrics that are recorded, by ncu's names. One that a device or version does not have is left out, with a note."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from abprof.evidence.ncu.recording import DRAM_PARTS, METRICS

TIME = "gpu__time_duration.sum"
L1_BYTES, L2_BYTES = (METRICS["l1"],), (METRICS["l2"],)
DRAM_BYTES = ((METRICS["dram"],), DRAM_PARTS)  # either: not every device has both
MEMORY = (*METRICS.values(), *DRAM_PARTS, TIME)
# What a warp waits for, as ncu's warp states have it, but `selected`. The last exists on Hopper only.
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
    per_call: bool = False  # a sum over the call's launches; else per launch


def stall(reason: str) -> str:
    """The metric of a stall reason: warps waiting per issued instruction."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def adds_up(name: str) -> bool:
    """Whether a metric is a sum over a launch, not a rate or a ratio."""
    return name.endswith(".sum")


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
    *(Shown("DRAM rate", tuple(f"{name}.per_second" for name in names), "bytes/s", "higher") for names in DRAM_BYTES),
    Shown("L2 rate", (f"{METRICS['l2']}.per_second",), "bytes/s", "higher"),
    Shown("L1 rate", (f"{METRICS['l1']}.per_second",), "bytes/s", "higher"),
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
