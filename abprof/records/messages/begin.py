"""What a worker is, what it is asked before anything is timed, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from abprof.records.messages.base import Failed, Value


@dataclass(frozen=True)
class Mount:
    """A kernel package as one worker sees it."""

    name: str
    root: str  # folder put in front of the import path
    module: str  # import name; "abprof_side.NAME" for a private mount, whose root is the folder that holds NAME/
    build_dir: str  # $ABPROF_BUILD_DIR
    allowed: list[str]  # folders that the package's modules and shared objects may come from
    forbidden: list[str] = field(default_factory=list)  # folders that nothing else may come from
    sources: list[str] = field(default_factory=list)  # nor what was installed from one of these
    whole: bool = False  # all that lies under `root` is the side's, as an installed release is, whatever it is called


@dataclass(frozen=True)
class Start:
    """First request. Fixes what this worker is."""

    device: str  # "cpu", "cuda", "cuda:UUID"
    side: str
    mount: Mount | None = None
    workloads: dict[str, str] = field(default_factory=dict)  # name -> file
    scratch: str = ""  # folder for expected values, shared by a run's workers; each side writes to its own folder in it
    epoch: int = 0  # 0 outside measuring (describe, build, profile)


@dataclass(frozen=True)
class Ready:
    protocol: int
    pid: int
    kind: str  # cpu, cuda
    device: str  # the device's name
    uuid: str = ""
    memory_bytes: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Describe:
    workload: str


@dataclass(frozen=True)
class Sweep:
    """A workload's SWEEP; a band is (density from, to, speed-up from, to)."""

    axes: list[str]
    density: str
    against: str
    bands: list[tuple[float, float, float, float]]


@dataclass(frozen=True)
class Described:
    """A workload module's declarations. `presets[NAME]` is a list of (axis or zipped axes, values) in file order."""

    api: int
    kernel: str
    suite: str
    text: str
    judge: str  # "" when the workload leaves it to the device
    presets: dict[str, list[tuple[list[str], list[Any]]]]
    variants: list[str]
    peers: list[str]
    phases: list[tuple[str, str, str]]
    seed_columns: list[str]
    scaled: str = ""
    ladder: list[str] = field(default_factory=list)
    sweep: Sweep | None = None
    default_peers: list[str] | None = None  # those measured without being asked for; None: all
    checked: str = "reference"  # what outputs are compared with: reference, or only the other sides' (`sides`)


@dataclass(frozen=True)
class Screen:
    workload: str
    cases: list[dict[str, Value]]


@dataclass(frozen=True)
class Screened:
    """For each case: why it is left out ("" when it is not) and its work."""

    skips: list[str]
    flops: list[float | None]
    bytes: list[float | None]
    conventions: list[str]


@dataclass(frozen=True)
class Reach:
    """Measure what the device does at its best, by plain torch, in about so many seconds (abprof/worker/ceilings.py)."""

    seconds: float


@dataclass(frozen=True)
class Reached:
    """The highest rates read, and of what in words; None where nothing could be measured."""

    tflops: float | None
    gbps: float | None
    tflops_by: str = ""
    gbps_by: str = ""


@dataclass(frozen=True)
class Inventory:
    """List the packages installed where this interpreter finds them."""


@dataclass(frozen=True)
class Listed:
    """Distribution -> version."""

    packages: dict[str, str]


@dataclass(frozen=True)
class Build:
    """Import the kernel package and call its `build(verbose=...)`, if it has one. What it prints is the build log."""

    verbose: bool = True
    recipe: list[str] = field(default_factory=list)  # argv of the repository's own build recipe, run first
    recipe_cwd: str = ""


@dataclass(frozen=True)
class Built:
    has_build: bool  # False: the parent opens every distinct case once instead, so that the JIT compiles it now
    seconds: float
    variants: list[str] = field(default_factory=list)  # the package's VARIANTS


@dataclass(frozen=True)
class Stop:
    """Last request; the worker answers with Closed and exits."""


@dataclass(frozen=True)
class Closed:
    peak_mem_bytes: int | None = None


@dataclass(frozen=True)
class Fault:
    """A request that could not be answered: the exception's class and last line. The worker lives on."""

    status: Failed
    reason: str
    at: str = ""  # the workload's own function that raised it, `check() of FILE, line N`; "": not the workload's doing


def no_module(reason: str) -> bool:
    """Whether a fault's reason tells of a module that is not installed."""
    return reason.startswith(("ModuleNotFoundError: No module named ", "ImportError: No module named "))
