"""Messages between the parent and a worker: lines of JSON, with one pipe for requests and one for replies.

This module imports only the standard library, because workers run in the interpreter under test. The parent sends
a request, then reads its reply:
    {"id": 7, "do": "turn", "args": {...}}      ->  {"id": 7, "reply": {...}}  |  {"id": 7, "fault": {...}}
VERBS maps each `do` to the classes of `args` and `reply`. docs/schemas/wire.schema.json is generated from VERBS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

CALL_RANGE = "abprof_call"  # the range around each profiled call
MARK = "ABPROF_CHILD"  # environment variable with the mark: ids of a process and its ancestors
LONG_CALL = 5e7  # ns: calls this long are made as rarely as possible
MIDDLE_CALL = 1e7  # ns: on a GPU calls this long need little warm-up, and few calls per turn
WRAPPED = "_repository"  # folder in the copy of the workloads, with the benchmarks that they wrap
# Exported by abprof.records too, because run.json stores them.
__all__ = ["Artefact", "Band", "Ceilings", "Census", "CheckResult", "Judge", "Launch", "Phase", "Range"]
__all__ += ["Sweep", "Value", "Workload"]
Value = str | int | float | bool
# The judged time: device time (by events, graphs or kernel records), host time, or the time that a command prints.
Judge = Literal["gpu", "graph", "kernels", "wall", "reported"]
Failed = Literal["unsupported", "missing", "oom", "crash"]  # statuses of a failed request


def cell_id(workload: str, case: Mapping[str, Value]) -> str:
    """Return a cell's id: WORKLOAD/axis=value,..."""
    return f"{workload}/" + ",".join(f"{axis}={shown(value)}" for axis, value in case.items())


def shown(value: Value) -> str:
    """Return the text of an axis's value in cell ids: `true` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------- records that run.json stores as workers send them


@dataclass(frozen=True)
class Phase:
    """A named part of a call: the profiler range that marks the part, and a description."""

    name: str
    range: str
    text: str


@dataclass(frozen=True)
class Band:
    """The range of speed-ups expected for a range of densities (0 to 1). Both ranges include their ends."""

    density: tuple[float, float]
    speedup: tuple[float, float]


@dataclass(frozen=True)
class Sweep:
    """A workload's SWEEP: how to compare cases that differ only in density (the computed fraction)."""

    axes: tuple[str, ...]  # axes that determine the density; cases with equal values on all other axes form one curve
    bands: tuple[Band, ...] = ()
    density: str = "density"  # name of the fact or axis that holds the density
    against: str = ""  # variant that is the baseline of the speed-up; "": the densest case of the same arm


@dataclass(frozen=True)
class Workload:
    """The declarations of a workload module, as far as run.json stores them."""

    name: str
    kernel: str
    suite: str
    axes: tuple[str, ...]
    judge: Judge = "wall"  # the parent's choice
    variants: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    seed_columns: tuple[str, ...] = ()  # axes that are columns of profile_SUITE_BRANCH.csv, in order; (): no such file
    scaled: str = ""  # the axis along which reports show how time grows
    ladder: tuple[str, ...] = ()  # variants that are successive optimisations; the first is the baseline
    sweep: Sweep | None = None
    checked: Literal["reference", "sides"] = "reference"  # `sides`: base's outputs replace the reference
    sha256: str = ""
    text: str = ""


@dataclass(frozen=True)
class Ceilings:
    """The device's peak rates, measured with plain torch in this run. None: not measured."""

    tflops: float | None = None
    tflops_by: str = ""  # the operation: "bfloat16 matrix products of 8192 x 8192 x 8192, the best of 3 readings"
    gbps: float | None = None  # 1e9 bytes a second, read and written
    gbps_by: str = ""
    why_not: str = ""  # why a rate is missing


@dataclass(frozen=True)
class CheckResult:
    """Result of comparing an arm's outputs with the reference and with base's outputs."""

    ok: bool
    reason: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    digest: str = ""  # equal digests mean bit-equal outputs
    base_max_abs: float | None = None  # largest difference from the base's outputs on the sampled elements
    compared: bool = True  # False: the workload has no reference, and the call returned no tensor


@dataclass(frozen=True)
class Launch:
    """All launches of one kernel with one grid in a call (on a CPU: of one torch operation). None or empty: unknown."""

    name: str
    count: int
    ns: float  # of all `count` launches together, the median over calls
    compiled: str = ""  # Compiled.key of the kernel, if Triton compiled it
    choice: str = ""  # configuration that the kernel's autotuner chose
    offered: str = ""  # in older runs: hash of all configurations that the autotuner chose from
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None
    phases: tuple[str, ...] | None = None  # of the workload, around these launches, the outermost first; (): outside


@dataclass(frozen=True)
class Range:
    """A profiler range that the kernel package opens during a call."""

    name: str
    count: int
    ns: float  # outside inner ranges: on a GPU the time of the kernels launched in the range, on a CPU host time


@dataclass(frozen=True)
class Census:
    """The launches of one call of an arm, as profiled. All profiled calls launched the same kernels."""

    launches: tuple[Launch, ...] = ()
    hidden_ns: float | None = None  # part of the kernels' time that overlaps another kernel
    missing: str = ""  # why the launches are unknown; `launches` is then empty
    on_device: bool = False  # True: launches are a GPU's kernels; False: torch operations on a CPU
    ranges: tuple[Range, ...] | None = None  # None: unknown, or calls of the pass differ


@dataclass(frozen=True)
class Artefact:
    """A file that a worker loaded, or a kernel that Triton compiled, identified by the hash of its content."""

    kind: Literal["module", "object", "kernel"]
    name: str
    path: str
    sha256: str


# ---------------------------------------------------------------- requests and replies


@dataclass(frozen=True)
class Mount:
    """How a worker imports a build of the kernel package, and which files the worker may load."""

    name: str
    root: str  # folder put in front of the import path
    module: str  # import name; "abprof_side.NAME" for a private import, with the parent folder of NAME/ as root
    build_dir: str  # $ABPROF_BUILD_DIR
    allowed: list[str]  # folders that the package's modules and shared objects may come from
    forbidden: list[str] = field(default_factory=list)  # folders from which no other file may be loaded
    sources: list[str] = field(default_factory=list)  # folders; packages installed from them may not be loaded
    whole: bool = False  # everything under `root` is the side's, as in an installed release


@dataclass(frozen=True)
class Start:
    """The first request to a worker: what to import, and on which device to run."""

    device: str  # "cpu", "cuda", "cuda:UUID"
    side: str
    mount: Mount | None = None
    workloads: dict[str, str] = field(default_factory=dict)  # name -> file
    scratch: str = ""  # folder for expected values, shared by the run's workers, with a subfolder per side
    epoch: int = 0  # 0 outside measuring (describe, build, profile)
    modules: list[str] = field(default_factory=list)  # for a fork server: modules of the package to import too
    room: int = 0  # bytes of the judge's GPU memory that the process may write to; 0: none


@dataclass(frozen=True)
class Ready:
    versions: dict[str, str]  # of the interpreter, torch, Triton and CUDA
    facts: dict[str, str]  # other parts of the build key: prefix, base_prefix, soabi, capability


@dataclass(frozen=True)
class Describe:
    workload: str


@dataclass(frozen=True)
class Described(Workload):
    """All declarations of a workload module. `presets`: preset name -> list of (axis names, rows of values)."""

    presets: dict[str, list[tuple[list[str], list[Any]]]] = field(default_factory=dict)
    declared_judge: str = ""  # the module's JUDGE; "": chosen by device
    default_peers: list[str] | None = None  # peers that a run without --peer measures; None: all peers


@dataclass(frozen=True)
class Screen:
    workload: str
    cases: list[dict[str, Value]]


@dataclass(frozen=True)
class Screened:
    """Reply to `Screen`, with an entry per case. `skips`: why to skip the case; "": measure it."""

    skips: list[str]
    flops: list[float | None]
    bytes: list[float | None]
    conventions: list[str]


@dataclass(frozen=True)
class Reach:
    """Request: measure the device's peak rates with plain torch."""


@dataclass(frozen=True)
class Inventory:
    """Request: list the packages installed for the worker's interpreter."""


@dataclass(frozen=True)
class Listed:
    packages: dict[str, str]  # distribution -> version


@dataclass(frozen=True)
class Build:
    """Request: import the kernel package and call its `build(verbose=True)`, if any. The output is the build log."""

    recipe: list[str] = field(default_factory=list)  # argv of the package's build command, run before the import


@dataclass(frozen=True)
class Built:
    has_build: bool  # False: the parent then calls every distinct case once, so that the JIT compiles now
    variants: list[str] = field(default_factory=list)  # the package's VARIANTS


@dataclass(frozen=True)
class Stop:
    """The last request: reply and exit."""


@dataclass(frozen=True)
class Done:
    """A reply without content."""


@dataclass(frozen=True)
class Fault:
    status: Failed
    reason: str  # the exception's class and last line
    at: str = ""  # the workload's function that raised, `check() of FILE, line N`; "": other code raised


@dataclass(frozen=True)
class Check:
    """Request: compare an arm's outputs with the reference. The first check of a cell computes the reference."""

    arm: str
    expected: str  # file in scratch that stores the reference
    sample: str  # file in scratch for this arm's sampled outputs: SIDE/NAME
    against: str = ""  # file of the base's sampled outputs
    again: bool = False  # check a call on the inputs that the turns left, and write no sample


@dataclass(frozen=True)
class Checked(CheckResult):
    """Reply to `Check`: the result, and what the workload reports about this cell and arm, such as its density."""

    facts: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Open:
    """Request: prepare one arm of one cell: make its inputs and operation, and warm up with untimed calls."""

    workload: str
    case: dict[str, Value]
    arm: str
    variant: str = ""
    peer: str = ""
    seed: int = 0
    usual_ns: float = 0.0  # time of a warm call in an earlier epoch; if long, one call suffices to warm up; 0: unknown
    placement: int = 0  # seed of the random offset at which inputs are allocated; Turn.placement replaces it
    check: Check | None = None  # check what the first call returns


@dataclass(frozen=True)
class Opened:
    call_ns: float  # time of a warm call, by the device's events or the host's clock
    open_ns: float = 0.0  # time to make inputs and operation, as a re-allocation does
    peak_mem_bytes: int | None = None
    host_ns: float = 0.0  # host time to enqueue a warm call on an idle device; 0: unknown
    check_ns: float = 0.0  # time of the check
    checked: Checked | None = None  # its result, if the first call is right; None: a `Check` must tell


@dataclass(frozen=True)
class Capture:
    """Request: capture a call of an arm in a CUDA graph. Turns replay the graph until the inputs are re-allocated."""

    arm: str


@dataclass(frozen=True)
class Captured:
    why: str = ""  # error code of a failed capture, one word; "": captured
    reason: str = ""
    replay_ns: float = 0.0  # time of a warm replay
    capture_ns: float = 0.0  # cost of a capture, repeated after each re-allocation
    spoiled: bool = False  # the capture failed halfway: this process must not measure again


@dataclass(frozen=True)
class Hand:
    """Request: call an arm on inputs made from `seed`, and write the outputs to a file for another worker to check."""

    arm: str
    seed: int
    outputs: str  # file in scratch: SIDE/NAME
    again: int | None = None  # after a first call, overwrite the inputs in place with this seed's values
    anew: bool = False  # prepare the operation again on these inputs, after the first call


@dataclass(frozen=True)
class Examine:
    """Request to a worker without a kernel package: check the outputs that another worker wrote."""

    workload: str
    case: dict[str, Value]
    seed: int
    outputs: str
    again: int | None = None
    draw: list[int] = field(default_factory=list)  # of the turn that wrote the outputs (`Turn.draw`)
    calls: int = 0  # of that turn
    layouts: str = ""  # `Turned.layouts`
    pick: int = 0  # modulo `calls`: the call whose outputs are checked
    shared: bool = False  # the outputs are in the last snapshot that was `kept` (`Snap`), and not in a file
    # Of the turn: its file's size and "", then places and their bytes.
    seen: list[list[Any]] = field(default_factory=list)
    sample_seed: int = 0  # of torch's generator when `reference` draws the rows that are checked; no side learns it


@dataclass(frozen=True)
class Share:
    """Request to the judge: make GPU memory for the outputs of worker `worker`, and send its descriptor."""

    worker: str


@dataclass(frozen=True)
class Shared:
    bytes: int


@dataclass(frozen=True)
class Snap:
    """Request to the judge: copy the first `bytes` bytes of that memory to memory that no other process has. `kept`: to
    that which `Examine` reads, else to some that is not read, which takes as long."""

    worker: str
    bytes: int
    kept: bool = True


@dataclass(frozen=True)
class Watch:
    """Request to a worker without a kernel package: watch the GPU for `ns` nanoseconds."""

    ns: int


@dataclass(frozen=True)
class Watched:
    busy: int  # ns in which other processes had the GPU


@dataclass(frozen=True)
class Turn:
    """Request: time `calls` calls of an arm.

    With `draw` the inputs change in place before each call: to mixtures of the inputs of two seeds, by weights from the
    third seed plus the number of the call; others to those of one of the two, in turns. What each call returned is
    in the file `outputs` before the reply.
    """

    arm: str
    calls: int  # 0, with `draw`: only prepare for such turns
    timer: str  # cpu_clock, cuda_event, cuda_graph, cupti, wall_clock, sustained
    cold: bool = True  # flush the cache before each call
    placement: int | None = None  # seed of a re-allocation of the inputs before the calls; None: keep them
    empties: int = 0  # number of empty launches to time after the calls
    draw: list[int] = field(default_factory=list)  # three seeds; []: the inputs keep their values
    outputs: str = ""  # file in scratch: SIDE/NAME
    shared: bool = False  # the judge's GPU memory in the place of that file
    anew: bool = False  # prepare the operation again on the inputs of each call
    lead: float = 0.0  # ns for which a GPU waits first, so that the host is ahead of it; 0: it waits before each call


@dataclass(frozen=True)
class Turned:
    """Reply to `Turn`. Times in ns per call: `value` by the turn's timer, `wall` by the host's clock."""

    value: float
    wall: float
    start: int  # time.monotonic_ns()
    end: int
    empty: float = 0.0  # ns of an empty launch by the same timer; 0: not timed
    mhz: float = 0.0  # the device's mean clock over the calls; 0: unknown
    layouts: str = ""  # JSON: types and shapes of each call's outputs, in `Turn.outputs` one after the other
    compiles: int = 0  # kernels compiled from Start until the turn
    lead: float = 0.0  # ns of `Turn.lead` that were needed; twice the lead if it was too short


@dataclass(frozen=True)
class Close:
    """Request: free the inputs and operations of all arms of the current cell."""


@dataclass(frozen=True)
class Phases:
    """Request: profile `discarded + calls` calls, and report the last `calls` of them."""

    arm: str
    calls: int
    discarded: int = 2
    keep: str = ""  # file name in scratch for torch's profile, a Chrome trace
    most_bytes: int = 0  # size limit of the `keep` file


@dataclass(frozen=True)
class Phased:
    """Reply to `Phases`: median ns per call of each declared phase; None if the profile lacks the phase's range."""

    phases: dict[str, float | None]
    total: float
    census: Census = field(default_factory=lambda: Census(missing="no census"))
    left_out: int = 0  # events dropped from the `keep` file for want of room


@dataclass(frozen=True)
class Compiled:
    """A kernel that Triton compiled, or took from its cache."""

    key: str  # name of the kernel, and the first digits of its compile hash
    name: str
    path: str  # file of the machine code; "": no file
    sha256: str
    seconds: float | None  # compile time; None: taken from the cache
    warps: int | None = None
    stages: int | None = None
    ctas: int | None = None
    shared_bytes: int | None = None
    constants: dict[str, Value] = field(default_factory=dict)

    def summary(self) -> str:
        """Return the kernel's compile time and resources as text."""
        shared, warps = ("?" if n is None else n for n in (self.shared_bytes, self.warps))
        return f"compiled in {self.seconds or 0.0:.2f} s, {shared} B shared, {warps} warps"


@dataclass(frozen=True)
class Prove:
    """Request: list the loaded files and compiled kernels, and check that the side may load them."""


@dataclass(frozen=True)
class Proved:
    ok: bool
    reason: str  # why the first disallowed file is not allowed; "": all files are allowed
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
    "share": (Share, Shared),
    "snap": (Snap, Done),
    "watch": (Watch, Watched),
    "phases": (Phases, Phased),
    "close": (Close, Done),
    "prove": (Prove, Proved),
    "stop": (Stop, Done),
}
NAMES = {args: verb for verb, (args, _) in VERBS.items()}


@dataclass(frozen=True)
class Foreground:
    """The task of a worker that a profiler starts. The worker reads the task from a file and gets no requests."""

    start: Start
    open: Open
    warmup: int
    runs: int
    outcome: str  # file to write `Finished` to
    facts: bool = False  # collect the facts of the workload and the operation, after the calls


@dataclass(frozen=True)
class Finished:
    status: Literal["ok"] | Failed
    reason: str = ""
    facts: dict[str, Value] = field(default_factory=dict)


# Field -> class of the record.
_NESTED: dict[str, type] = {"mount": Mount, "start": Start, "open": Open, "check": Check}
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))

pack = asdict  # record -> plain JSON values


def dump(message: dict[str, Any]) -> bytes:
    """Encode a message as a line of JSON. Raises ValueError for NaN or infinity. Invalid Unicode becomes `?`."""
    return _ENCODER.encode(message).encode(errors="replace") + b"\n"


def load(line: bytes) -> dict[str, Any]:
    """Decode a line that `dump` encoded."""
    return dict(json.loads(line))


def unpack(kind: type, loose: dict[str, Any]) -> Any:
    """Return a record of class `kind` from decoded JSON. Only workers use this; the parent uses msgspec."""
    nested = {name: unpack(_NESTED[name], loose[name]) for name in _NESTED.keys() & loose.keys() if loose[name]}
    return kind(**{**loose, **nested})
