"""What is asked around the turns: profiled passes, what was compiled, what is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

from abprof.records.messages.base import Value


@dataclass(frozen=True)
class Phases:
    """A profiled pass of `calls` calls, after `discarded` more that are not read."""

    arm: str
    calls: int
    discarded: int = 2


@dataclass(frozen=True)
class Launch:
    """One kernel within a call (on a CPU one of torch's operations), as often as it ran with this grid.

    `ns` is the median over calls of all its launches together. What is None, or empty, was not told.
    """

    name: str
    count: int
    ns: float
    compiled: str = ""  # Compiled.key: which of the kernels that Triton compiled
    choice: str = ""  # what its autotuner chose for this call
    offered: str = ""  # hash of what its autotuner chose from
    grid: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    registers: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class Range:
    """One range of a profiler's within a call. `ns` is its own time, without that of ranges inside it."""

    name: str
    count: int
    ns: float


@dataclass(frozen=True)
class Census:
    """What one call launched. `missing`: why that is not known; then there are no launches here."""

    launches: list[Launch] = field(default_factory=list)
    hidden_ns: float | None = None  # of the kernels' time that which ran beside another kernel
    missing: str = ""
    on_device: bool = False  # of a device's kernels; False: of torch's operations on a CPU
    ranges: list[Range] | None = None  # that the package marks; None: not told, or calls differ


@dataclass(frozen=True)
class Phased:
    """Median ns per call of each declared phase in a separate profiled pass; None: the range never ran."""

    phases: dict[str, float | None]
    total: float
    census: Census = field(default_factory=lambda: Census(missing="not told"))


@dataclass(frozen=True)
class Trace:
    """A profiled pass as `Phases`, kept in scratch under this file name, of at most so many bytes: torch's profile as a Chrome
    trace, or the tree of Triton's proton."""

    arm: str
    name: str
    calls: int
    discarded: int
    most_bytes: int
    by: str = "torch"  # or "proton"


@dataclass(frozen=True)
class Traced:
    """What the calls launched. `missing`: why there is no file; `left_out`: events that it had no room for."""

    census: Census
    left_out: int = 0
    missing: str = ""


@dataclass(frozen=True)
class Load:
    """List the kernels that were compiled for this worker."""


@dataclass(frozen=True)
class Compiled:
    """One kernel that Triton compiled, or found compiled in its cache."""

    key: str  # its name and the first digits of its compile hash
    name: str
    path: str  # its machine code's file, "" when there is none
    sha256: str
    seconds: float | None  # to compile; None: it came from the cache
    warps: int | None = None
    stages: int | None = None
    ctas: int | None = None
    shared_bytes: int | None = None
    constants: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    kernels: list[Compiled]


@dataclass(frozen=True)
class Prove:
    """List what is loaded. Raised by nothing: `reason` names the first that is neither from `Mount.allowed` nor of the
    environment that the worker had when it started (abprof/worker/proof.py)."""


@dataclass(frozen=True)
class Proved:
    ok: bool
    reason: str
    artefacts: list[dict[str, str]]  # kind, name, path, sha256
    compiles: int = 0  # kernels compiled since Start
    facts: dict[str, str] = field(default_factory=dict)  # compiled kernel -> compile time and resources, in words
