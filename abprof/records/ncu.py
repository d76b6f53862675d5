"""Hardware counters of Nsight Compute: names of its metrics, and tables of the bytes that each kernel moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from abprof.records.probes import Profile

Name = tuple[str, str, str]  # kernel, grid, block; grid and block are "" if the file does not have them
Bytes = Mapping[str, float | None]  # level -> bytes; None: not recorded
LEVELS = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
METRICS = {"dram": "dram__bytes.sum", "l2": "lts__t_bytes.sum", "l1": "l1tex__t_bytes.sum"}
DRAM_PARTS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
BYTES = (*METRICS.values(), *DRAM_PARTS)
TIME = "gpu__time_duration.sum"
L1_BYTES, L2_BYTES = (METRICS["l1"],), (METRICS["l2"],)
DRAM_BYTES = ((METRICS["dram"],), DRAM_PARTS)  # either: not every device has both
# Reasons for which a warp waits: ncu's warp states without `selected`. The state `gmma` exists on Hopper only.
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard",
    "sleeping", "tex_throttle", "wait", "gmma",
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A line of the table of metrics in reports."""

    label: str
    names: tuple[str, ...]  # of ncu's metrics, whose sum is shown
    unit: Literal["ns", "bytes", "bytes/s", "%", "count", ""]
    per_call: bool = False  # a sum over the call's launches; else per launch


def stall(reason: str) -> str:
    """Return the name of ncu's metric for warps that wait for `reason`."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


_PEAK = "pct_of_peak_sustained"
DRAM_BUSY = f"gpu__dram_throughput.avg.{_PEAK}_elapsed"
L2_HITS = "lts__t_sector_hit_rate.pct"
LOAD_EFFICIENCY = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
STORE_EFFICIENCY = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"
TABLE = (
    Shown("time under ncu", (TIME,), "ns", per_call=True),
    *(Shown("DRAM bytes", names, "bytes", per_call=True) for names in DRAM_BYTES),
    Shown("L2 bytes", L2_BYTES, "bytes", per_call=True),
    Shown("L1 bytes", L1_BYTES, "bytes", per_call=True),
    *(Shown("DRAM rate", tuple(f"{name}.per_second" for name in names), "bytes/s") for names in DRAM_BYTES),
    Shown("L2 rate", (f"{METRICS['l2']}.per_second",), "bytes/s"),
    Shown("L1 rate", (f"{METRICS['l1']}.per_second",), "bytes/s"),
    Shown("DRAM busy", (DRAM_BUSY,), "%"),
    Shown("L2 hit rate", (L2_HITS,), "%"),
    Shown("L1 hit rate", ("l1tex__t_sector_hit_rate.pct",), "%"),
    Shown("tensor cores busy", (f"sm__pipe_tensor_cycles_active.avg.{_PEAK}_active",), "%"),
    Shown("issue slots busy", (f"smsp__issue_active.avg.{_PEAK}_active",), "%"),
    Shown("SM busy", (f"sm__throughput.avg.{_PEAK}_elapsed",), "%"),
    Shown("occupancy", (f"sm__warps_active.avg.{_PEAK}_active",), "%"),
    Shown("registers a thread", ("launch__registers_per_thread",), "count"),
    Shown("shared bank conflicts", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",), "count", per_call=True),
    Shown("global load efficiency", (LOAD_EFFICIENCY,), "%"),
    Shown("global store efficiency", (STORE_EFFICIENCY,), "%"),
)


def moved(values: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """Yield (level, metric, bytes) for each memory level. Without a total, DRAM bytes are reads plus writes."""
    for level, name in METRICS.items():
        if name in values:
            yield level, name, values[name]
        elif level == "dram" and all(part in values for part in DRAM_PARTS):
            yield level, " + ".join(DRAM_PARTS), sum(values[part] for part in DRAM_PARTS)


@dataclass(frozen=True)
class Row:
    """A row of the table: a kernel, or a sum over kernels, which has no name, grid, block or metrics."""

    kernel: str
    grid: str
    block: str
    kind: str  # compute or other; a sum may be of all
    launches: int  # with warm-ups
    a_call: int
    metrics: Mapping[str, float]  # of a launch
    per_call: Bytes

    @property
    def per_launch(self) -> Bytes:
        return dict.fromkeys(LEVELS) | {level: number for level, _, number in moved(self.metrics)}


@dataclass(frozen=True)
class Table:
    """The memory traffic in a file or of a profiled arm: one row per kernel, and sums over groups of kernels."""

    of: Profile  # for a file `csv` is its path, and `cell` and `arm` are ""
    rows: tuple[Row, ...]
    sums: tuple[Row, ...]
    sources: Mapping[str, str]  # level -> ncu's metrics
    outside: Mapping[Name, int]  # number of launches that belong to no call

    @property
    def label(self) -> str:
        """Return "CELL ARM" for a profiled arm, else the path of the file."""
        return f"{self.of.cell} {self.of.arm}" if self.of.cell else self.of.csv


@dataclass(frozen=True)
class Pair:
    """A row of one table and the matching row of another. `base` or `target` is None if that table has no such row."""

    base: Row | None
    target: Row | None

    @property
    def either(self) -> Row:
        row = self.target or self.base
        assert row is not None
        return row

    def pct(self, level: str) -> float | None:
        """Return the change of bytes per call in per cent; None if a side's bytes are unknown or base has 0 bytes."""
        before, after = (row.per_call[level] if row else None for row in (self.base, self.target))
        return None if not before or after is None else 100 * (after / before - 1)


def table(of: Profile, outside: Mapping[Name, int] | None = None) -> Table:
    """Return the memory traffic of a profile. `outside`: kernel -> number of its launches that belong to no call."""
    rows, sums = [], []
    sources = {level: name for kernel in of.kernels for level, name, _ in moved(kernel.metrics)}
    for kernel in of.kernels:
        call = {level: number * kernel.launches_a_call for level, _, number in moved(kernel.metrics)}
        where, per_call = (kernel.name, kernel.grid, kernel.block, kernel.kind), dict.fromkeys(LEVELS) | call
        rows.append(Row(*where, kernel.launches, kernel.launches_a_call, kernel.metrics, per_call))
    for kind in dict.fromkeys([*sorted(row.kind for row in rows), "all"]):
        own = [row for row in rows if kind in (row.kind, "all")]
        known = {level: [row.per_call[level] for row in own] for level in LEVELS}
        per_call = {level: None if None in all_ else sum(filter(None, all_)) for level, all_ in known.items()}
        launches, a_call = sum(row.launches for row in own), sum(row.a_call for row in own)
        sums.append(Row("", "", "", kind, launches, a_call, {}, per_call))
    return Table(of, tuple(rows), tuple(sums), sources, outside or {})


def beside(base: Table, target: Table | None = None) -> list[Pair]:
    """Return the rows of both tables in pairs of equal name, and of equal grid and block if possible; the sums last."""
    partner: dict[int, Row] = {}  # index in base -> target's row
    left, right = [*base.rows, *base.sums], [*target.rows, *target.sums] if target else []
    for names in (("kernel", "grid", "block", "kind"), ("kernel", "kind")):
        key = attrgetter(*names)
        for place, row in enumerate(left):
            found = next((other for other in right if key(other) == key(row)), None) if place not in partner else None
            if found:
                partner[place] = found
                right.remove(found)
    pairs = [Pair(row, partner.get(place)) for place, row in enumerate(left)] + [Pair(None, row) for row in right]
    order = ("compute", "other", "all")
    return sorted(pairs, key=lambda pair: -1 if pair.either.kernel else order.index(pair.either.kind))
