"""Results of probes (profilers) for one arm of one cell. Probes run after all timing, or in runs that time nothing."""

from __future__ import annotations

from typing import Literal

from abprof.records.base import Record
from abprof.records.messages import Census


class Trace(Record, frozen=True, kw_only=True):
    """A profile of an arm by torch's profiler or Triton's proton (abprof/evidence/probes.py)."""

    cell: str
    arm: str
    by: Literal["torch", "proton"] = "torch"
    file: str = ""  # Chrome trace or proton tree, relative to the run folder; "": no file
    bytes: int = 0
    left_out: int = 0  # events dropped from the file for want of room
    calls: int = 0  # calls that the census covers; the file also has the calls before
    census: Census | None = None  # launches of one of these calls
    missing: str = ""  # why there is no file


class KernelProfile(Record, frozen=True, kw_only=True):
    """Nsight Compute's metrics of one kernel with one grid and block."""

    name: str
    grid: str
    block: str
    kind: Literal["compute", "other"]  # guessed from the name; `other`: copies, casts, fills and the like
    launches: int  # in all calls, warm-ups included
    launches_a_call: int
    metrics: dict[str, float] = {}  # ncu's name -> mean per launch, base units; rates and ratios weighted by time


class Profile(Record, frozen=True, kw_only=True):
    """Nsight Compute's profile of an arm: of `runs` calls, made after `warmup` calls that do not count."""

    cell: str
    arm: str
    purpose: Literal["memory", "profile"]  # the set of metrics
    warmup: int
    runs: int
    kernels: tuple[KernelProfile, ...] = ()
    notes: tuple[str, ...] = ()  # how launches were counted
    minimum: dict[str, float] = {}  # dram, l2, l1 -> lower bound of bytes per call, by the workload
    file: str = ""  # .ncu-rep file, relative to the run folder; "": no file
    csv: str = ""  # CSV of ncu's raw page, relative to the run folder
    source: str = ""  # CSV of ncu's source page, likewise
    bytes: int = 0  # of `file`
    ncu: str = ""  # version of ncu
    status: str = "ok"  # ok, another Status of the calls, or `error` (ncu's output is unusable)
    reason: str = ""

    @property
    def missing(self) -> str:
        """Return why there are no metrics; "" if there are metrics."""
        return "" if self.status == "ok" else f"{self.status}: {self.reason}"


class SampledFunction(Record, frozen=True, kw_only=True):
    """A function of machine code, and how many samples perf took in the function."""

    name: str  # demangled; "[unknown]" without a symbol
    object: str  # file name of the shared object or program; [kernel.kallsyms] for the system's kernel
    samples: int
    own: bool = False  # whether `object` is of the side's build or worktree
    offsets: dict[str, int] = {}  # offset in an own function, hexadecimal -> samples; {} in older runs


class Sampled(Record, frozen=True, kw_only=True):
    """A perf profile of `calls` calls of an arm, with `hz` samples per second of processor time."""

    cell: str
    arm: str
    calls: int = 0
    hz: int = 0
    event: str = ""  # perf event: cycles, or cpu-clock without hardware counters
    samples: int = 0  # number of samples, of all threads
    functions: tuple[SampledFunction, ...] = ()  # most samples first
    left_out: int = 0  # samples of functions that `functions` omits
    missing: str = ""  # why there are no samples
