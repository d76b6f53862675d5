"""The records that travel between the stages, and the one typed definition of run.json and rounds.jsonl.

Every record is frozen. `Record` is msgspec's struct rather than the standard library's dataclass because the same
definition then also gives the strict reader and the JSON Schema in docs/schemas/ (abprof/runfolder.py).
Units: times in nanoseconds, memory in bytes, changes in per cent of time (negative is faster).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

import msgspec

SCHEMA = 1
# Timed as others do (abprof/sequential.py): shown, never judged.
SEED_METRIC, DO_BENCH_METRIC = "seed_latency", "do_bench_latency"
SEQUENTIAL_METRICS = (SEED_METRIC, DO_BENCH_METRIC)
# Of the instrument itself (abprof/selfcheck/studies.py): turns of several lengths, a worker alone, one beside an idle one.
TURN_LENGTH, ALONE, IDLE_SECOND = "turn_length", "one_worker", "idle_second_worker"
# Without a pause, at the power limit (abprof/sustained.py): reported apart, and may overrule the sign of a change.
SUSTAINED = "gpu_sustained"
UNJUDGED_METRICS = (*SEQUENTIAL_METRICS, TURN_LENGTH, ALONE, IDLE_SECOND, SUSTAINED)

POWER_CAP = "software power cap"  # in MachineState.throttle: the device slowed down to stay within its power limit

Status = Literal["ok", "wrong", "unsupported", "missing", "build_failed", "oom", "timeout", "crash", "identical"]
Verdict = Literal["faster", "slower", "slight", "same", "unclear", "broken"]
Value = str | int | float | bool


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: frozen, keyword-only (msgspec wants that said per class), an unknown key is an error."""


# ---------------------------------------------------------------- repo


class Side(Record, frozen=True, kw_only=True):
    """One side of the comparison: a ref resolved once to a commit, or `.`, the working tree as it is."""

    id: str  # base, target, target2, ...
    spec: str  # as the user typed it
    kind: Literal["commit", "worktree"]
    commit: str  # 40 hex digits; for a working tree the commit it stands on
    tree: str  # 40 hex digits: the content that is measured
    label: str  # branch name, or the spec: what file names and sentences use
    subject: str = ""  # first line of the commit message


class Checkout(Record, frozen=True, kw_only=True):
    """A side's files on disk."""

    side: Side
    path: str


# ---------------------------------------------------------------- plan


class Package(Record, frozen=True, kw_only=True):
    """A kernel package as it is found on every side."""

    name: str
    path: str = ""  # folder relative to the side's root, "" for kernels/NAME
    module: str = ""  # real import name; "" mounts it privately as abprof_side.NAME
    inputs: tuple[str, ...] = ()  # globs that decide a rebuild; () means all of kernels/ (or the tree, with `module`)
    build: tuple[str, ...] = ()  # argv of a build recipe, run in a copy of the inputs
    env: dict[str, str] = {}
    submodules: bool = False


class Phase(Record, frozen=True, kw_only=True):
    """A named part of a call: the profiler range that marks it, and what it is."""

    name: str
    range: str
    text: str


class Band(Record, frozen=True, kw_only=True):
    """The speed-up that is expected where the density lies between two values (0 to 1, both ends included)."""

    density: tuple[float, float]
    speedup: tuple[float, float]


class Sweep(Record, frozen=True, kw_only=True):
    """Cases that differ in density alone, and what they should gain by it."""

    axes: tuple[str, ...]  # what the density comes of: cases that agree in all other axes are one curve
    density: str = "density"  # the fact, or the axis, that is the density
    against: str = ""  # speed-up over this variant in the same case; "": over the densest case of the same arm
    bands: tuple[Band, ...] = ()


class Workload(Record, frozen=True, kw_only=True):
    """What a workload module says of itself (the worker's `describe`)."""

    name: str
    kernel: str
    suite: str
    axes: tuple[str, ...]
    judge: Literal["gpu", "wall"]
    variants: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    seed_columns: tuple[str, ...] = ()  # axes that are columns of profile_SUITE_BRANCH.csv, in order; () for no file
    scaled: str = ""  # the axis along which reports show how time grows
    ladder: tuple[str, ...] = ()  # variants that are steps of one optimisation, in order; the first is the baseline
    sweep: Sweep | None = None
    sha256: str = ""
    text: str = ""


class Cell(Record, frozen=True, kw_only=True):
    """One point of a workload's matrix, measured on every arm."""

    id: str  # WORKLOAD/axis=value,...
    workload: str
    kernel: str
    suite: str
    params: dict[str, Value]
    flops: float | None = None
    bytes: float | None = None
    convention: str = ""  # name of the FLOP and byte convention, e.g. "fwd-causal-exact"
    skip: str = ""  # why the workload leaves this cell out on this device: every arm is `unsupported`


class Arm(Record, frozen=True, kw_only=True):
    """What takes a turn: `base`, `target`, `base:VARIANT`, `peer:NAME` (on the base worker), `control`."""

    id: str
    side: str  # whose worker it runs on: a side's id, or `control`
    variant: str = ""
    peer: str = ""


# ---------------------------------------------------------------- build


class Failure(Record, frozen=True, kw_only=True):
    """A typed outcome other than ok: what happened, where, and where to read on."""

    status: Status
    reason: str
    log: str = ""  # file name inside the run folder's logs/


class Artefact(Record, frozen=True, kw_only=True):
    """A file a worker loaded (or a kernel it compiled), by content."""

    kind: Literal["module", "object", "kernel"]
    name: str
    path: str
    sha256: str


class Build(Record, frozen=True, kw_only=True):
    """One kernel package of one side, built (or found in the cache) under a content key."""

    side: str
    kernel: str
    key: str
    path: str = ""  # build folder; "" when the build failed
    cached: bool = False
    seconds: float = 0.0
    log: str = ""
    failure: Failure | None = None
    variants: tuple[str, ...] = ()
    artefacts: tuple[Artefact, ...] = ()  # what a worker of this build loads
    facts: dict[str, str] = {}  # compiler, flags, kernel resources
    variables: dict[str, str] = {}  # what the package's `env` sets for this side, the places left as {worktree}
    recipe: tuple[str, ...] = ()  # the package's own build command for this side, likewise
    unproved: str = ""  # why a file that its builder had loaded may not be there; "" when all may
    compile_seconds: dict[str, float] = {}  # of each kernel that Triton compiled, by Kernel.key


# ---------------------------------------------------------------- measure


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One turn of one arm: when it ran and what it read. Stored as [arm, start, end, value, wall, empty, mhz].

    Where `empty` is given, `value` is levelled: what was read, minus `empty`, plus the round's mean of it (abprof/turns.py).
    """

    arm: int  # index into Block.arms
    start: int  # ns since the block's `began`
    end: int
    value: float  # ns per call by the judged metric
    wall: float  # ns per call by the wall clock
    empty: float = 0.0  # ns of an empty launch by the judged metric's timer, in this turn; 0: not timed
    mhz: float = 0.0  # the device's mean clock over the turn's calls; 0: not known


class Launch(Record, frozen=True, kw_only=True):
    """One kernel within a call (on a CPU one of torch's operations), as often as it ran with this grid. None, and what
    is empty, was not told."""

    name: str
    count: int
    ns: float  # all its launches in a call together, in the profiled pass
    compiled: str = ""  # Kernel.key
    choice: str = ""  # the configuration that its autotuner took for this call
    offered: str = ""  # hash of those that it took it from
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None


class Range(Record, frozen=True, kw_only=True):
    """One range of a profiler's that the package marks, within a call."""

    name: str
    count: int
    ns: float  # its own in a call, without ranges inside it: on a GPU of the kernels launched from it, else the host's


class Census(Record, frozen=True, kw_only=True):
    """What one call of an arm launched, from the profiled pass. All calls of that pass launched the same."""

    launches: tuple[Launch, ...] = ()
    hidden_ns: float | None = None  # of the kernels' time, that which passed while another kernel ran
    missing: str = ""  # why it is not known; then there are no launches here
    on_device: bool = False  # of a device's kernels; False: of torch's operations on a CPU
    ranges: tuple[Range, ...] | None = None  # that it went through; None: not told, or calls of one pass differ


class CheckResult(Record, frozen=True, kw_only=True):
    """An arm's outputs against the reference, and against the base's outputs."""

    ok: bool
    reason: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    digest: str = ""  # equal digests mean bit-equal outputs
    base_max_abs: float | None = None  # largest difference from the base's outputs on the sampled elements


class Outcome(Record, frozen=True, kw_only=True):
    """How one arm of one cell went in one block."""

    status: Status
    reason: str = ""
    check: CheckResult | None = None
    peak_mem_bytes: int | None = None
    phases: dict[str, float | None] | None = None  # ns per call by phase name, with "total"; None: not recorded
    facts: dict[str, Value] = {}  # what the workload says of this case and arm; told with the check
    log: str = ""
    census: Census | None = None  # None: not asked in this block


class MachineState(Record, frozen=True, kw_only=True):
    """What the machine did during a block; None where it cannot be read."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # other processes seen on the device
    load1: float | None = None
    cpu_mhz: float | None = None


class Block(Record, frozen=True, kw_only=True):
    """All rounds of one cell in one epoch: a line of rounds.jsonl, written when the block ends."""

    epoch: int
    cell: str
    metric: str  # the judged metric: gpu_span or wall
    timer: str  # cuda_event, cpu_clock, simulated
    calls: int  # calls per turn, the same on all arms
    rule: str  # why this timer and turn length
    arms: tuple[str, ...]
    began: float  # seconds since 1970-01-01 UTC
    seconds: float
    rounds: tuple[tuple[Turn, ...], ...]  # turns in the order they ran
    rejected: tuple[int, ...] = ()  # indexes of rounds dropped by a rule fixed beforehand
    rejected_why: str = ""
    outcomes: dict[str, Outcome]
    state: MachineState = MachineState()
    start_order: tuple[str, ...] = ()  # order in which the epoch's workers were started
    quick: bool = False
    alone: bool = False  # one arm in memory at a time, because all together do not fit
    check_seconds: float = 0.0  # of `seconds`: checks of the outputs, the reference among them


# ---------------------------------------------------------------- verdict


class Metric(Record, frozen=True, kw_only=True):
    """A number with its name (the key), unit, better direction and protocol."""

    value: float
    unit: str
    low: float | None = None  # 95 % interval over epochs, where one can be given
    high: float | None = None
    better: Literal["lower", "higher", "none"] = "lower"
    protocol: str = ""


class Observation(Record, frozen=True, kw_only=True):
    """What one arm of one cell did in this run."""

    cell: str
    arm: str
    status: Status
    reason: str = ""
    metrics: dict[str, Metric] = {}
    phases: dict[str, float | None] | None = None  # ns per call; "total" is the profile pass's, "residual" the rest
    check: CheckResult | None = None
    facts: dict[str, Value] = {}  # measured density, autotuned configuration, ... (docs/WRITING.md)
    epochs: int = 0
    log: str = ""
    census: Census | None = None


class Cause(Record, frozen=True, kw_only=True):
    """What most likely changed the time of a row, and the evidence it rests on (abprof/why/)."""

    kind: str  # the rule: spills, autotune, launches, ...
    text: str  # in words, with the numbers of both sides
    kernels: tuple[str, ...] = ()  # names of the kernels or functions it speaks of
    evidence: tuple[str, ...] = ()  # where it was read: "census", "kernels", "phases", "clock"


class Comparison(Record, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A verdict between two arms of one cell. `pct` is change of time: negative is faster."""

    cell: str
    from_: str
    to: str
    metric: str
    verdict: Verdict
    pct: float | None = None
    low_pct: float | None = None  # repeated confidence interval, 95 % over all planned looks
    high_pct: float | None = None
    reasons: tuple[str, ...] = ()  # identical_code, base_STATUS, both, one_clock, clock, power, quick_..., budget, ...
    clock_pct: float | None = None  # change of the device's clock, where turns read it: positive is a faster clock
    cycles_pct: float | None = None  # change of time x clock
    read_pct: float | None = None  # change of times as read, where the judged ones are at one clock for all sides
    sustained_pct: float | None = None  # change of time without a pause, at the power limit, where that was measured
    sustained_low_pct: float | None = None
    sustained_high_pct: float | None = None
    certifiable_pct: float | None = None  # with `unclear`: the smallest margin that could have been certified
    epochs: int = 0
    look: int = 0
    p: float | None = None  # against "inside the threshold", for false-discovery control
    discovery: bool = False  # survives false-discovery control over the run's rows of its family (abprof/comparison.py)
    causes: tuple[Cause, ...] | None = None  # surest first; (): looked for and none found; None: not looked for


class Advice(Record, frozen=True, kw_only=True):
    """A warning: what changed a verdict or needs a person, and what to do."""

    kind: str
    text: str
    advice: str = ""
    cells: tuple[str, ...] = ()


class Trace(Record, frozen=True, kw_only=True):
    """What one arm of a cell did under torch's profiler, after all timing (abprof/probes/)."""

    cell: str
    arm: str
    file: str = ""  # Chrome trace, from the run folder; "" when there is none
    bytes: int = 0
    left_out: int = 0  # events that the file had no room for
    calls: int = 0  # read for the census; the file holds those before them too
    census: Census | None = None  # what one of these calls launched
    missing: str = ""  # why there is no file


class Proof(Record, frozen=True, kw_only=True):
    """What a worker had loaded, before and after timing."""

    epoch: int
    side: str
    kernel: str
    ok: bool
    reason: str = ""
    artefacts: tuple[Artefact, ...] = ()  # at the last look
    looks: int = 1  # how often it was asked in this epoch with this answer: twice when it lived through the timing


class Function(Record, frozen=True, kw_only=True):
    """A function of a shared object: hash of its instructions, and how many there are of each class."""

    name: str
    code: str
    classes: dict[str, int]


class Kernel(Record, frozen=True, kw_only=True):
    """A compiled kernel, or a shared object of the side's own, that a worker of this side had loaded.

    What is None was not recorded; `missing` says why its machine code was not read.
    """

    side: str
    package: str
    name: str
    kind: Literal["triton", "cuda", "object"]
    key: str  # what launches call it by; of an object its file's name
    path: str = ""
    sha256: str = ""  # of its file
    code: str = ""  # hash of its machine code and constants: equal on both sides means the same code
    seconds: float | None = None  # to compile
    warps: int | None = None
    stages: int | None = None
    ctas: int | None = None
    shared_bytes: int | None = None
    registers: int | None = None  # a thread's
    stack_bytes: int | None = None  # a thread's
    constants: dict[str, Value] = {}
    classes: dict[str, int] | None = None  # instructions of each class (abprof/code/)
    functions: tuple[Function, ...] = ()  # of an object: those that are not the same on all sides
    compiler: str = ""
    flags: str = ""
    missing: str = "not read"


class Header(Record, frozen=True, kw_only=True):
    """The run in one sentence and in counts."""

    sentence: str
    counts: dict[str, int]
    trusted: bool
    false_alarm_bound: float | None = None  # 95 % upper bound on the false-alarm rate, from the controls that decided
    geomean_pct: float | None = None
    exit_code: int = 0


# ---------------------------------------------------------------- the run


class Settings(Record, frozen=True, kw_only=True):
    """What decides verdicts. Stored in run.json so that `abprof report` judges the same way."""

    threshold: float  # per cent
    margin: float  # per cent
    precision: float | None = None
    budget: float = 600.0  # seconds of measuring
    quick: bool = False
    protocol: Literal["abprof", "seed", "do_bench"] = "abprof"  # what else times the same cells
    judge: Literal["gpu", "wall"] = "wall"
    sustained: Literal["auto", "always", "never"] = "auto"  # which cells are measured without a pause, too
    allow_wrong: bool = False
    fail_on: tuple[str, ...] = ("slower", "broken")
    thresholds: tuple[tuple[str, float], ...] = ()  # (cell pattern, per cent), from abprof.toml
    seed: int = 0
    epochs: int | None = None  # exactly so many of each cell, whatever is decided; None: until it is
    probes: tuple[str, ...] = ()  # what looks at the cells that changed, after all timing; no verdict reads it

    def threshold_of(self, cell: str) -> float:
        """A cell's threshold, per cent: the first matching pattern of abprof.toml, else the run's."""
        return next((pct for pattern, pct in self.thresholds if fnmatchcase(cell, pattern)), self.threshold)


class Setup(Record, frozen=True, kw_only=True):
    """How the workers were set up and timed out. A rerun, or a run that is resumed, does the same again."""

    python: dict[str, str] = {}  # side id -> interpreter
    env: Literal["", "user", "clean"] = ""  # "": not recorded
    autotune: Literal["pinned", "each-epoch"] = "pinned"
    workloads_from: str = ""  # as it was asked for: "", base, target, or a folder
    timeout: float = 120.0  # seconds for one answer of a worker
    build_timeout: float = 1800.0


class Machine(Record, frozen=True, kw_only=True):
    """The machine and device the run was made on."""

    host: str
    device: str  # "NVIDIA H200" or the processor's name
    kind: Literal["cpu", "cuda", "simulated"]
    uuid: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    facts: dict[str, str] = {}


class Ceilings(Record, frozen=True, kw_only=True):
    """The most that plain torch got out of the device in this run (abprof/worker/ceilings.py); None: not measured."""

    tflops: float | None = None
    tflops_by: str = ""  # of what, in words: "bfloat16 matrix products of 8192 x 8192 x 8192, the best of 9 readings"
    gbps: float | None = None  # 1e9 bytes a second, read and written
    gbps_by: str = ""
    why_not: str = ""  # why one or both are missing


class Toolchain(Record, frozen=True, kw_only=True):
    """What a side was built and run with."""

    versions: dict[str, str]  # interpreter, torch, Triton, CUDA, compilers, architecture: what decides a build
    packages: dict[str, str] = {}  # installed for the side's interpreter: distribution -> version


class Run(Record, frozen=True, kw_only=True):
    """run.json: one run, whole. Its head (all but the lists of results) and rounds.jsonl rebuild everything else."""

    schema: int
    id: str
    status: Literal["running", "complete", "interrupted"]
    began: str  # ISO 8601, UTC
    ended: str | None = None
    arguments: tuple[str, ...]
    settings: Settings
    sides: tuple[Side, ...]
    workloads: tuple[Workload, ...]
    workloads_from: str = ""  # folder and content hash
    arms: tuple[Arm, ...]
    cells: tuple[Cell, ...]
    builds: tuple[Build, ...] = ()
    machine: Machine
    setup: Setup = Setup()
    versions: dict[str, str] = {}
    toolchains: dict[str, Toolchain] = {}  # by side; {} in older runs
    ceilings: Ceilings | None = None  # None: not asked for, or an older run
    environment: dict[str, str] = {}
    withheld: tuple[str, ...] = ()  # names of environment variables kept from the workers
    notes: tuple[str, ...] = ()  # lines about the sides: merge base moved on, same ref twice, ...
    header: Header | None = None
    observations: tuple[Observation, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # base with targets, peers with every side
    within: tuple[Comparison, ...] = ()  # variants of one side with each other; runs of before have none
    controls: tuple[Comparison, ...] = ()
    proofs: tuple[Proof, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    traces: tuple[Trace, ...] = ()  # of --probe torch
    warnings: tuple[Advice, ...] = ()

    def side(self, id: str) -> Side:
        """The side with this id. Raises KeyError."""
        for side in self.sides:
            if side.id == id:
                return side
        raise KeyError(id)
