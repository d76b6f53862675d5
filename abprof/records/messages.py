"""The worker's messages: a JSON line each, on two descriptors of their own. It needs the standard library alone, because the
worker runs in the interpreter under test.

The parent sends one request and reads one reply, in turns:
    {"id": 7, "do": "turn", "args": {...}}      ->  {"id": 7, "reply": {...}}  |  {"id": 7, "fault": {...}}
`args` and `reply` are records, named in VERBS. docs/schemas/wire.schema.json is made from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

CALL_RANGE = "abprof_call"  # the range around each profiled call
LONG_CALL = 5e7  # ns: a call that takes so long is made no more often than needed
MIDDLE_CALL = 1e7  # ns: on a GPU such a call needs few others to be warm, and to be timed
WRAPPED = "_repository"  # in a copy of the workloads: the repository's benchmarks that they wrap
# In abprof.records too: parts of a run's records.
__all__ = ["Artefact", "Band", "Ceilings", "Census", "CheckResult", "Judge", "Launch", "Phase", "Range"]
__all__ += ["Sweep", "Value", "Workload"]
Value = str | int | float | bool
# Whose clock is judged: the device's, by events, by graphs or by kernels; the host's; that of the command under test.
Judge = Literal["gpu", "graph", "kernels", "wall", "reported"]
Failed = Literal["unsupported", "missing", "oom", "crash"]  # how a request may fail


def cell_id(workload: str, case: Mapping[str, Value]) -> str:
    """A cell's id in the parent and the worker: WORKLOAD/axis=value,..."""
    return f"{workload}/" + ",".join(f"{axis}={shown(value)}" for axis, value in case.items())


def shown(value: Value) -> str:
    """An axis's value as a cell's id has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------- records that a run keeps as its workers send them


@dataclass(frozen=True)
class Phase:
    """A named part of a call: the profiler range that marks it, and what it is."""

    name: str
    range: str
    text: str


@dataclass(frozen=True)
class Band:
    """The expected (lowest, highest) speed-up where the density is between two values (0 to 1, both included)."""

    density: tuple[float, float]
    speedup: tuple[float, float]


@dataclass(frozen=True)
class Sweep:
    """A workload's SWEEP: cases that differ in density alone."""

    axes: tuple[str, ...]  # they determine the density; cases that agree in all others form one curve
    bands: tuple[Band, ...] = ()
    density: str = "density"  # the fact or axis that holds it
    against: str = ""  # the variant that the speed-up is counted from; "": the densest case of the same arm


@dataclass(frozen=True)
class Workload:
    """What a run keeps of a workload module's declarations."""

    name: str
    kernel: str
    suite: str
    axes: tuple[str, ...]
    judge: Judge = "wall"  # the parent's choice
    variants: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    seed_columns: tuple[str, ...] = ()  # axes that are columns of profile_SUITE_BRANCH.csv, in order; () for no file
    scaled: str = ""  # the axis along which reports show how time grows
    ladder: tuple[str, ...] = ()  # variants that are steps of one optimisation, in order; the first is the baseline
    sweep: Sweep | None = None
    checked: Literal["reference", "sides"] = "reference"  # `sides`: outputs are compared with base's only
    sha256: str = ""
    text: str = ""


@dataclass(frozen=True)
class Ceilings:
    """The highest rates that plain torch reached on the device in this run; None: not measured."""

    tflops: float | None = None
    tflops_by: str = ""  # the operation: "bfloat16 matrix products of 8192 x 8192 x 8192, the best of 3 readings"
    gbps: float | None = None  # 1e9 bytes a second, read and written
    gbps_by: str = ""
    why_not: str = ""  # why a rate is missing


@dataclass(frozen=True)
class CheckResult:
    """An arm's outputs against the reference, and against the base's outputs."""

    ok: bool
    reason: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    digest: str = ""  # equal digests mean bit-equal outputs
    base_max_abs: float | None = None  # largest difference from the base's outputs on the sampled elements
    compared: bool = True  # False: there is no reference, and the call returned nothing that could be compared


@dataclass(frozen=True)
class Launch:
    """One kernel within a call (on a CPU one of torch's operations) with one grid. None or empty: unknown."""

    name: str
    count: int
    ns: float  # of all `count` launches together, the median over calls
    compiled: str = ""  # Compiled.key: which of the kernels that Triton compiled
    choice: str = ""  # the configuration that its autotuner chose for this call
    offered: str = ""  # hash of the configurations that its autotuner chose from
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class Range:
    """One range of a profiler's that the package marks, within a call."""

    name: str
    count: int
    ns: float  # without ranges inside it: of the kernels launched from it on a GPU, else the host's


@dataclass(frozen=True)
class Census:
    """What one call of an arm launched, from a profiled pass. All calls of the pass launched the same."""

    launches: tuple[Launch, ...] = ()
    hidden_ns: float | None = None  # of the kernels' time, that during which another kernel ran
    missing: str = ""  # why the launches are unknown; `launches` is then empty
    on_device: bool = False  # of a device's kernels; False: of torch's operations on a CPU
    ranges: tuple[Range, ...] | None = None  # None: unknown, or calls of the pass differ


@dataclass(frozen=True)
class Artefact:
    """A file that a worker loaded, or a kernel that it compiled, by content."""

    kind: Literal["module", "object", "kernel"]
    name: str
    path: str
    sha256: str


# ---------------------------------------------------------------- requests and replies


@dataclass(frozen=True)
class Mount:
    name: str
    root: str  # folder put in front of the import path
    module: str  # import name; "abprof_side.NAME" for a private mount, whose root is the folder that holds NAME/
    build_dir: str  # $ABPROF_BUILD_DIR
    allowed: list[str]  # folders that the package's modules and shared objects may come from
    forbidden: list[str] = field(default_factory=list)  # folders that nothing else may come from
    sources: list[str] = field(default_factory=list)  # nor what was installed from one of these
    whole: bool = False  # everything under `root` is the side's, as in an installed release


@dataclass(frozen=True)
class Start:
    device: str  # "cpu", "cuda", "cuda:UUID"
    side: str
    mount: Mount | None = None
    workloads: dict[str, str] = field(default_factory=dict)  # name -> file
    scratch: str = ""  # folder for expected values, shared by a run's workers; each side writes to its own folder in it
    epoch: int = 0  # 0 outside measuring (describe, build, profile)


@dataclass(frozen=True)
class Ready:
    versions: dict[str, str]  # of the interpreter, torch, Triton and CUDA
    facts: dict[str, str]  # what else decides a build: prefix, base_prefix, soabi, capability


@dataclass(frozen=True)
class Describe:
    workload: str


@dataclass(frozen=True)
class Described(Workload):
    """All declarations of a workload module. `presets[NAME]` is a list of (axis or zipped axes, values) in file order."""

    presets: dict[str, list[tuple[list[str], list[Any]]]] = field(default_factory=dict)
    declared_judge: str = ""  # JUDGE; "": left to the device
    default_peers: list[str] | None = None  # peers measured without --peer; None: all


@dataclass(frozen=True)
class Screen:
    workload: str
    cases: list[dict[str, Value]]


@dataclass(frozen=True)
class Screened:
    """For each case: why it is skipped ("" when it is not) and its work."""

    skips: list[str]
    flops: list[float | None]
    bytes: list[float | None]
    conventions: list[str]


@dataclass(frozen=True)
class Reach:
    """Measure what the device does at its best by plain torch."""


@dataclass(frozen=True)
class Inventory:
    """List the packages installed for this interpreter."""


@dataclass(frozen=True)
class Listed:
    packages: dict[str, str]  # distribution -> version


@dataclass(frozen=True)
class Build:
    """Import the kernel package and call its `build(verbose=True)`, if it has one. Its output is the build log."""

    recipe: list[str] = field(default_factory=list)  # argv of the repository's own build recipe, run first
    recipe_cwd: str = ""


@dataclass(frozen=True)
class Built:
    has_build: bool  # False: the parent opens every distinct case once instead, so that the JIT compiles it now
    seconds: float
    variants: list[str] = field(default_factory=list)  # the package's VARIANTS


@dataclass(frozen=True)
class Stop:
    """The last request: the worker answers and exits."""


@dataclass(frozen=True)
class Done:
    """The request is done."""


@dataclass(frozen=True)
class Fault:
    status: Failed
    reason: str  # the exception's class and last line
    at: str = ""  # the workload's own function that raised it, `check() of FILE, line N`; "": other code


@dataclass(frozen=True)
class Open:
    """Make inputs and the operation of one cell on one arm, and call it until it is warm."""

    workload: str
    case: dict[str, Value]
    arm: str
    variant: str = ""
    peer: str = ""
    seed: int = 0
    usual_ns: float = 0.0  # a warm call in an earlier epoch: a long one is then made once, and not timed again
    placement: int = 0  # seeds the random offset at which inputs are allocated; re-drawn by Turn.placement


@dataclass(frozen=True)
class Opened:
    call_ns: float  # a warm call, by the device's events, or the host's clock
    open_ns: float = 0.0  # what a re-allocation costs
    peak_mem_bytes: int | None = None
    host_ns: float = 0.0  # what the host needs to enqueue a warm call on an idle device; 0: unknown


@dataclass(frozen=True)
class Capture:
    """Capture a call of the open arm in a CUDA graph. The graph is kept for turns until inputs are made again."""

    arm: str


@dataclass(frozen=True)
class Captured:
    why: str = ""  # one word for the reason it failed
    reason: str = ""
    replay_ns: float = 0.0  # one replay, warm
    capture_ns: float = 0.0  # what capturing costs, at every placement anew
    spoiled: bool = False  # a capture began and failed: this process must not measure any more


@dataclass(frozen=True)
class Check:
    """Compare the open arm's outputs with the reference. The first caller makes `expected`, others read it."""

    arm: str
    expected: str  # file name in scratch
    sample: str  # file in scratch for this arm's sampled outputs: SIDE/NAME
    against: str = ""  # file of the base's sampled outputs
    again: bool = False  # the open arm as the turns left it, not fresh inputs; no sample is written


@dataclass(frozen=True)
class Checked(CheckResult):
    """A check's result, and the facts of the workload and the operation."""

    facts: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Hand:
    """Call the open arm on inputs of this seed and write its outputs to scratch, for an out-of-process check."""

    arm: str
    seed: int
    outputs: str  # file in scratch: SIDE/NAME
    again: int | None = None  # after a first call, put this seed's values into the inputs in place
    anew: bool = False  # and prepare the operation once more on them


@dataclass(frozen=True)
class Examine:
    """To a worker without a package: check outputs that another worker wrote."""

    workload: str
    case: dict[str, Value]
    seed: int
    outputs: str
    again: int | None = None


@dataclass(frozen=True)
class Turn:
    arm: str
    calls: int
    timer: str  # cpu_clock, cuda_event, cuda_graph, cupti, wall_clock, sustained
    cold: bool = True  # flush the cache before each call
    placement: int | None = None  # re-allocate the inputs first, untimed
    empties: int = 0  # empty launches to time after the calls


@dataclass(frozen=True)
class Turned:
    """ns per call: `value` by the turn's timer, `wall` by the host's clock."""

    value: float
    wall: float
    start: int  # time.monotonic_ns()
    end: int
    empty: float = 0.0  # what the same timer reads of an empty launch; 0: not timed
    mhz: float = 0.0  # the device's mean clock over the calls; 0: unknown


@dataclass(frozen=True)
class Close:
    """Forget every open arm of the cell."""


@dataclass(frozen=True)
class Phases:
    """A profiled pass of `calls` calls, after `discarded` more that are not read."""

    arm: str
    calls: int
    discarded: int = 2
    keep: str = ""  # file name in scratch for torch's profile, a Chrome trace
    most_bytes: int = 0  # of that file


@dataclass(frozen=True)
class Phased:
    """Median ns per call of each declared phase in a separate profiled pass; None: the range never ran."""

    phases: dict[str, float | None]
    total: float
    census: Census = field(default_factory=lambda: Census(missing="no census"))
    left_out: int = 0  # events that the kept file has no room for


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

    def summary(self) -> str:
        """Compile time and resources, in words."""
        shared, warps = ("?" if n is None else n for n in (self.shared_bytes, self.warps))
        return f"compiled in {self.seconds or 0.0:.2f} s, {shared} B shared, {warps} warps"


@dataclass(frozen=True)
class Prove:
    """List what is loaded."""


@dataclass(frozen=True)
class Proved:
    ok: bool
    reason: str  # the first file that is neither from `Mount.allowed` nor of the worker's environment at its start
    artefacts: list[Artefact]
    compiles: int = 0  # kernels compiled since Start
    kernels: list[Compiled] = field(default_factory=list)  # compiled, or found in the cache, since Start


VERBS: dict[str, tuple[type, type]] = {
    "start": (Start, Ready),
    "describe": (Describe, Described),
    "screen": (Screen, Screened),
    "reach": (Reach, Ceilings),
    "inventory": (Inventory, Listed),
    "build": (Build, Built),
    "open": (Open, Opened),
    "capture": (Capture, Captured),
    "check": (Check, Checked),
    "hand": (Hand, Done),
    "examine": (Examine, CheckResult),
    "turn": (Turn, Turned),
    "phases": (Phases, Phased),
    "close": (Close, Done),
    "prove": (Prove, Proved),
    "stop": (Stop, Done),
}
NAMES = {args: verb for verb, (args, _) in VERBS.items()}


@dataclass(frozen=True)
class Foreground:
    """The job of a worker in the foreground, read from a file in the place of requests."""

    start: Start
    open: Open
    warmup: int
    runs: int
    outcome: str  # file that it writes `Finished` to
    facts: bool = False  # collect the facts of the workload and the operation, after the calls


@dataclass(frozen=True)
class Finished:
    status: Literal["ok"] | Failed
    reason: str = ""
    facts: dict[str, Value] = field(default_factory=dict)


_NESTED: dict[str, type] = {"mount": Mount, "start": Start, "open": Open}  # a field that holds a record -> the record
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))  # json.dumps makes one a call

pack = asdict  # a record as plain JSON values


def dump(message: dict[str, Any]) -> bytes:
    """One line. Raises ValueError on NaN or infinity. A lone surrogate (of an undecodable file name) becomes `?`."""
    return _ENCODER.encode(message).encode(errors="replace") + b"\n"


def load(line: bytes) -> dict[str, Any]:
    """One line from the parent."""
    return dict(json.loads(line))


def unpack(kind: type, loose: dict[str, Any]) -> Any:
    """A request or job from the parent as a record. What a worker answers is read by msgspec (abprof.records.base)."""
    nested = {name: unpack(_NESTED[name], loose[name]) for name in _NESTED.keys() & loose.keys() if loose[name]}
    return kind(**{**loose, **nested})
