"""What probes found out about one arm of one cell after all timing, or without any."""

from __future__ import annotations

from typing import Literal

from abprof.records.base import Record
from abprof.records.messages import Census


class Trace(Record, frozen=True, kw_only=True):
    """An arm under torch's profiler or Triton's (abprof/evidence/probes.py)."""

    cell: str
    arm: str
    by: Literal["torch", "proton"] = "torch"
    file: str = ""  # Chrome trace, or proton's tree, from the run folder; "" when there is none
    bytes: int = 0
    left_out: int = 0  # events that the file had no room for
    calls: int = 0  # read for the census; the file holds those before them too
    census: Census | None = None  # what one of these calls launched
    missing: str = ""  # why there is no file


class KernelProfile(Record, frozen=True, kw_only=True):
    """A kernel of a call under Nsight Compute, by name, grid and block."""

    name: str
    grid: str
    block: str
    kind: Literal["compute", "other"]  # by its name: copies, casts, fills and the like are `other`
    launches: int  # with warm-ups
    launches_a_call: int
    metrics: dict[str, float] = {}  # of a launch, ncu's name -> base units: mean; rates and ratios weighted by time


class Profile(Record, frozen=True, kw_only=True):
    """An arm under Nsight Compute: `warmup + runs` equal calls, of which the first `warmup` are dropped."""

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


class SampledFunction(Record, frozen=True, kw_only=True):
    """A function of machine code that perf found running."""

    name: str  # demangled; "[unknown]" without a symbol
    object: str  # file name of the shared object or program; [kernel.kallsyms] for the system's kernel
    samples: int
    own: bool = False  # of the side's own build or worktree


class Sampled(Record, frozen=True, kw_only=True):
    """An arm under perf: its worker made `calls` calls, and perf took `hz` samples a second of processor time."""

    cell: str
    arm: str
    calls: int = 0
    hz: int = 0
    event: str = ""  # what perf counted: cycles, or cpu-clock where a processor's counters are not there
    samples: int = 0  # all of them, of all threads
    functions: tuple[SampledFunction, ...] = ()  # most samples first
    left_out: int = 0  # samples in functions that the list has no room for
    missing: str = ""  # why there are none
