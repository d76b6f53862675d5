"""What Nsight Compute counted of one arm of a cell, after all timing or without any (abprof/evidence/ncu/)."""

from __future__ import annotations

from typing import Literal

from abprof.records.base import Record


class KernelProfile(Record, frozen=True, kw_only=True):
    """A kernel of a call, by name, grid and block."""

    name: str
    grid: str
    block: str
    kind: Literal["compute", "other"]  # by its name: copies, casts, fills and the like are `other`
    launches: int  # with warm-ups
    launches_a_call: int
    metrics: dict[str, float] = {}  # of a launch, ncu's name -> base units: mean; rates and ratios weighted by time


class Profile(Record, frozen=True, kw_only=True):
    """One arm under Nsight Compute: `warmup + runs` calls alike, of which the first `warmup` are dropped."""

    cell: str
    arm: str
    purpose: Literal["memory", "profile"]  # the set of metrics
    warmup: int
    runs: int
    kernels: tuple[KernelProfile, ...] = ()
    notes: tuple[str, ...] = ()  # how launches were counted
    minimum: dict[str, float] = {}  # bytes of a call that the workload predicts at least: dram, l2, l1
    file: str = ""  # .ncu-rep, from the run folder; "" when there is none
    csv: str = ""  # its raw page, from the run folder
    bytes: int = 0  # of `file`
    ncu: str = ""  # its version
    status: str = "ok"  # or how the calls ended (a Status), or `error`: launches that are no whole number of calls, ...
    reason: str = ""

    @property
    def missing(self) -> str:
        """Why there is nothing to show; "" when there is."""
        return "" if self.status == "ok" else f"{self.status}: {self.reason}"
