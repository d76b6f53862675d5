"""run.json: what was requested, where it was measured, and its results; and the lines of evidence.jsonl."""

from __future__ import annotations

from typing import Literal

from abprof.records.base import Record, Status, Verdict
from abprof.records.builds import Build, Kernel, Proof
from abprof.records.cells import Arm, Cell, Command, Side
from abprof.records.messages import Ceilings, Census, CheckResult, Value, Workload
from abprof.records.options import Night, Options
from abprof.records.probes import Profile, Sampled, Trace


class Waiver(Record, frozen=True, kw_only=True):
    """A slow-down that somebody has accepted (abprof/verdict/waivers.py)."""

    cells: str  # pattern of cell ids
    most_pct: float  # the largest that is accepted
    reason: str
    owner: str
    expires: str  # the last day, ISO 8601


class Touched(Record, frozen=True, kw_only=True):
    """A file that changed while code under test ran and must not change (abprof/builds/tampering.py)."""

    path: str
    how: Literal["changed", "removed", "added"]
    moment: str  # "while kernels were built", "in epoch 2"
    falsifies: bool = True  # what it holds is measured, or judges; False: elsewhere, and no verdict rests on it


class Machine(Record, frozen=True, kw_only=True):
    """A machine, and the device of it that was measured on."""

    host: str
    device: str  # "NVIDIA H200" or the processor's name
    kind: Literal["cpu", "cuda", "simulated"]
    uuid: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    facts: dict[str, str] = {}
    ceilings: Ceilings | None = None  # in a run on several devices: of each by itself
    builds: tuple[Build, ...] = ()  # what its workers load, where its architecture is another than the first's


class Toolchain(Record, frozen=True, kw_only=True):
    """What a side was built and run with."""

    versions: dict[str, str]  # interpreter, torch, Triton, CUDA, compilers, architecture: what decides a build
    packages: dict[str, str] = {}  # installed for the side's interpreter: distribution -> version


class Loss(Record, frozen=True, kw_only=True):
    """A shard that ended before its cells were decided. What it measured of these cells does not stand: they were measured
    again, whole."""

    shard: int
    device: str
    cells: tuple[str, ...]
    reason: str


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
    at: str = ""  # of a crash: the workload's own function that raised it, and its file; "": not the workload's doing
    metrics: dict[str, Metric] = {}
    phases: dict[str, float | None] | None = None  # ns per call; "total" is the profile pass's, "residual" the rest
    check: CheckResult | None = None
    facts: dict[str, Value] = {}  # measured density, autotuned configuration, ... (docs/WRITING.md)
    epochs: int = 0
    log: str = ""
    census: Census | None = None
    device: str = ""  # the lease's name, in a run on several devices (Run.machines)


class Cause(Record, frozen=True, kw_only=True):
    """What most likely changed the time of a row, and the evidence it rests on (abprof/evidence/causes/)."""

    kind: str  # the rule: spills, autotune, launches, ...
    text: str  # in words, with the numbers of both sides
    kernels: tuple[str, ...] = ()  # names of the kernels or functions it speaks of
    evidence: tuple[str, ...] = ()  # where it was read: "census", "kernels", "phases", "clock", "ncu", "perf"


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
    needed_epochs: int | None = None  # with `unclear`: would decide, if mean and scatter stay as they are
    needed_seconds: float | None = None  # of measuring this cell for those that it lacks
    detectable_pct: float | None = None  # the slow-down that these epochs would have shown with 90 % probability
    tail_pct: float | None = None  # change of the 90th percentile of calls, where more calls of `to` are slow
    epochs: int = 0
    look: int = 0
    p: float | None = None  # against "inside the threshold", for false-discovery control
    discovery: bool = False  # survives false-discovery control over the run's rows of its family
    causes: tuple[Cause, ...] | None = None  # surest first; (): looked for and none found; None: not looked for

    @property
    def with_peer(self) -> bool:
        """Whether it compares a library peer with a side, and not two sides or variants."""
        return bool(Arm.of(self.from_).peer)


class Advice(Record, frozen=True, kw_only=True):
    """A warning: what changed a verdict or needs a person, and what to do."""

    kind: str
    text: str
    advice: str = ""
    cells: tuple[str, ...] = ()


class Header(Record, frozen=True, kw_only=True):
    """The run in one sentence and in counts."""

    sentence: str
    counts: dict[str, int]
    trusted: bool
    false_alarm_bound: float | None = None  # 95 % upper bound on the false-alarm rate, from the controls that decided
    geomean_pct: float | None = None
    exit_code: int = 0


class Run(Record, frozen=True, kw_only=True):
    """run.json: one run, whole. Its head (all but the lists of results) and rounds.jsonl rebuild everything else."""

    schema: int
    id: str
    status: Literal["running", "complete", "interrupted"]
    began: str  # ISO 8601, UTC
    ended: str | None = None
    options: Options
    sides: tuple[Side, ...]
    workloads: tuple[Workload, ...]
    workloads_from: str = ""  # folder and content hash
    command: Command | None = None  # in the place of workloads: a run of a command that times itself
    waivers: tuple[Waiver, ...] = ()  # of base's commit
    night: Night | None = None  # of `abprof nightly`
    arms: tuple[Arm, ...]
    cells: tuple[Cell, ...]
    builds: tuple[Build, ...] = ()
    machine: Machine  # of several, the first
    machines: dict[str, Machine] = {}  # by the lease's name, in a run on several devices; {}: `machine` alone
    losses: tuple[Loss, ...] = ()
    versions: dict[str, str] = {}
    toolchains: dict[str, Toolchain] = {}  # by side; {} in older runs
    ceilings: Ceilings | None = None  # None: not measured, or an older run
    environment: dict[str, str] = {}
    withheld: tuple[str, ...] = ()  # names of environment variables kept from the workers
    notes: tuple[str, ...] = ()  # lines about the sides: merge base moved on, same ref twice, ...
    touched: tuple[Touched, ...] = ()  # what changed that should not have
    header: Header | None = None
    observations: tuple[Observation, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # base with targets, peers with every side
    within: tuple[Comparison, ...] = ()  # variants of one side with each other; runs of before have none
    controls: tuple[Comparison, ...] = ()
    proofs: tuple[Proof, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    traces: tuple[Trace, ...] = ()  # of --probe torch
    profiles: tuple[Profile, ...] = ()  # under Nsight Compute: --probe ncu, `abprof profile`, `abprof memory`
    sampled: tuple[Sampled, ...] = ()  # of --probe perf
    warnings: tuple[Advice, ...] = ()

    def side(self, id: str) -> Side:
        """The side with this id. Raises KeyError."""
        return {side.id: side for side in self.sides}[id]


class Placed(Record, frozen=True, kw_only=True):
    """A device that part of the run is measured on."""

    device: str  # the lease's name, as blocks have it
    machine: Machine  # all that is known of it by now


class Finding(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of evidence.jsonl, written at once so that a killed run keeps it: exactly one of these. run.json holds all."""

    proof: Proof | None = None
    kernel: Kernel | None = None
    touched: Touched | None = None
    placed: Placed | None = None
    arm: Arm | None = None  # one that the plan did not have
