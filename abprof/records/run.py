"""The records of run.json (options, machine, results), and of the lines of evidence.jsonl."""

from __future__ import annotations

from typing import Literal

from abprof.records.base import Record, Status, Verdict
from abprof.records.blocks import Block
from abprof.records.builds import Build, Kernel, Proof
from abprof.records.cells import Arm, Cell, Command, Side
from abprof.records.listings import Hunk, Listed
from abprof.records.messages import Ceilings, Census, CheckResult, Value, Workload
from abprof.records.options import Night, Options
from abprof.records.probes import Profile, Sampled, Trace

Item = Block | Proof | Kernel  # what measuring yields
_KEPT = (
    "python", "env", "autotune", "check", "contain", "untrusted", "workloads_from", "timeout", "build_timeout", "executor",
    "executor_options", "timer", "seed", "regime", "probe",
)  # fmt: skip

WAIVER_FILE = "abprof-waivers.toml"


class Waiver(Record, frozen=True, kw_only=True):
    """A slow-down that is accepted until the day `expires` (abprof/verdict/waivers.py)."""

    cells: str  # pattern of cell ids
    most_pct: float  # largest accepted slow-down, per cent
    reason: str
    owner: str
    expires: str  # the last day, ISO 8601

    @property
    def line(self) -> str:
        """Return the waiver as a line, like `dense/*: up to 5 % slower until 2026-12-31 (ada: the new layout)`."""
        return f"{self.cells}: up to {self.most_pct:g} % slower until {self.expires} ({self.owner}: {self.reason})"


class Touched(Record, frozen=True, kw_only=True):
    """A file that changed during the run, although no code under test may do so (abprof/builds/tampering.py)."""

    path: str
    how: Literal["changed", "removed", "added"]
    moment: str  # "while kernels were built", "in epoch 2"
    falsifies: bool = True  # whether results depend on the file


class Machine(Record, frozen=True, kw_only=True):
    """The host and the device of a measurement."""

    host: str
    device: str  # "NVIDIA H200" or the processor's name
    kind: Literal["cpu", "cuda", "simulated"]
    uuid: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    facts: dict[str, str] = {}
    ceilings: Ceilings | None = None  # peak rates; only in a run on several devices
    builds: tuple[Build, ...] = ()  # builds for this device, if its architecture differs from the first's


class Toolchain(Record, frozen=True, kw_only=True):
    """Versions of the tools and packages that a side was built and run with."""

    versions: dict[str, str]  # interpreter, torch, Triton, CUDA, compilers, architecture: what decides a build
    packages: dict[str, str] = {}  # installed for the side's interpreter: distribution -> version


class Loss(Record, frozen=True, kw_only=True):
    """A shard that ended before its `cells` had verdicts. Another shard measured these cells from the start."""

    shard: int
    device: str
    cells: tuple[str, ...]
    reason: str


class Metric(Record, frozen=True, kw_only=True):
    """A measured value, its unit, and how it was measured. Its name is its key in `Observation.metrics`."""

    value: float
    unit: str
    low: float | None = None  # 95 % interval over epochs; None: unknown
    high: float | None = None
    better: Literal["lower", "higher", "none"] = "lower"
    protocol: str = ""  # how the value was measured


class Observation(Record, frozen=True, kw_only=True):
    """The results of one arm of one cell over all epochs."""

    cell: str
    arm: str
    status: Status
    reason: str = ""
    at: str = ""  # the workload's function that raised, and its file; "": no function of the workload raised
    metrics: dict[str, Metric] = {}
    phases: dict[str, float | None] | None = None  # ns per call; "total": the whole call, "residual": the rest
    check: CheckResult | None = None
    facts: dict[str, Value] = {}  # measured density, autotuned configuration, ... (docs/WRITING.md)
    epochs: int = 0
    log: str = ""
    census: Census | None = None
    device: str = ""  # name of the device's lease in a run on several devices (Run.machines)


class Cause(Record, frozen=True, kw_only=True):
    """A likely cause of a changed time, with its evidence (abprof/evidence/)."""

    kind: str  # the rule: spills, autotune, launches, ...
    text: str  # a sentence with the numbers of both sides
    kernels: tuple[str, ...] = ()  # names of the kernels or functions in `text`
    evidence: tuple[str, ...] = ()  # sources: "census", "kernels", "phases", "clock", "ncu", "perf"
    at: str | None = None  # "FILE:LINE"; "": no line found; None: lines are not recorded, or the cause has none
    note: str | None = None  # what is at that line, what changed there, and what is not known


class Comparison(Record, frozen=True, kw_only=True, rename={"from_": "from"}):
    """The verdict on two arms of one cell. `pct` is the change of time from `from` to `to`: negative is faster."""

    cell: str
    from_: str
    to: str
    metric: str
    verdict: Verdict
    pct: float | None = None
    low_pct: float | None = None  # repeated confidence interval, 95 % over all planned looks
    high_pct: float | None = None
    reasons: tuple[str, ...] = ()  # identical_code, base_STATUS, both, one_clock, clock, power, quick_..., budget, ...
    clock_pct: float | None = None  # change of the device's clock; positive: a faster clock; None: not read
    cycles_pct: float | None = None  # change of time x clock
    read_pct: float | None = None  # change of times as read, if judged times are rescaled to one clock
    sustained_pct: float | None = None  # change of time without pauses, at the power limit; None: not measured
    sustained_low_pct: float | None = None
    sustained_high_pct: float | None = None
    burst_pct: float | None = None  # change of time with pauses, if `metric` is gpu_sustained
    certifiable_pct: float | None = None  # if `unclear`: the smallest margin within which the sides are equal
    needed_epochs: int | None = None  # if `unclear`: epochs to a verdict, if mean and scatter do not change
    needed_seconds: float | None = None  # seconds to measure the epochs that are still needed
    detectable_pct: float | None = None  # smallest slow-down that these epochs show with 90 % probability
    tail_pct: float | None = None  # change of the 90th percentile of calls, if more calls of `to` are slow
    host_pct: float | None = None  # change of the host's time to enqueue a call, if the row is host-bound
    epochs: int = 0
    look: int = 0  # number of the last planned look; 0: none yet
    p: float | None = None  # p-value of "the change is within the threshold"
    discovery: bool = False  # whether a changed row survives false-discovery control
    causes: tuple[Cause, ...] | None = None  # surest first; (): none found; None: not looked for

    @property
    def with_peer(self) -> bool:
        """Whether this comparison is between a library peer and a side."""
        return bool(Arm.of(self.from_).peer)

    @property
    def shown(self) -> str:
        """The verdict as reports show it: `fixed` if only the base's output is wrong."""
        return "fixed" if self.reasons[:1] == ("base_wrong",) else self.verdict


class CellHistory(Record, frozen=True, kw_only=True):
    """The latest nights of a cell in one variant, as `abprof nightly` measured a branch, and its last confirmed change."""

    cell: str
    variant: str = ""
    series: str  # name of the series of nights, by default the branch's
    dates: tuple[str, ...]  # ISO 8601, oldest first; nights without a time are left out
    ns: tuple[float, ...]  # the branch's time on each date, as the newest night's machine runs it
    night: int = 0  # number of the first night at the new level; 0: no change in these nights
    since: str = ""  # its date
    pct: float | None = None  # the change
    because: Literal["", "code", "machine", "open"] = ""
    commits: tuple[str, ...] = ()  # HASH SUBJECT of that night's commits, newest first; (): the machine changed
    more_commits: int = 0


class Advice(Record, frozen=True, kw_only=True):
    """A warning: what was found, and what to do."""

    kind: str
    text: str
    advice: str = ""
    cells: tuple[str, ...] = ()


class Header(Record, frozen=True, kw_only=True):
    """Summary of a run: a sentence, counts, and the exit code."""

    sentence: str
    counts: dict[str, int]
    trusted: bool
    false_alarm_bound: float | None = None  # 95 % upper bound of the false-alarm rate, from the controls
    geomean_pct: float | None = None  # in older runs only
    exit_code: int = 0


class Run(Record, frozen=True, kw_only=True):
    """The content of run.json. The results can be computed again from the other fields and rounds.jsonl."""

    schema: int
    id: str
    status: Literal["running", "complete", "interrupted"]
    began: str  # ISO 8601, UTC
    ended: str | None = None
    options: Options
    sides: tuple[Side, ...]
    workloads: tuple[Workload, ...]
    workloads_from: str = ""  # folder and content hash
    command: Command | None = None  # instead of workloads: a command that prints its own times
    waivers: tuple[Waiver, ...] = ()  # from base's commit
    night: Night | None = None  # only of `abprof nightly`
    arms: tuple[Arm, ...]
    cells: tuple[Cell, ...]
    builds: tuple[Build, ...] = ()
    machine: Machine  # the first, in a run on several devices
    machines: dict[str, Machine] = {}  # name of the device's lease -> machine; {}: a run on one device
    uncertified: str = ""  # in CI: why a slow-down on this machine must not fail the run; "": it may
    losses: tuple[Loss, ...] = ()
    versions: dict[str, str] = {}
    toolchains: dict[str, Toolchain] = {}  # side id -> toolchain; {} in older runs
    ceilings: Ceilings | None = None  # peak rates of the device; None: not measured
    environment: dict[str, str] = {}
    withheld: tuple[str, ...] = ()  # names of environment variables that are not passed to workers
    notes: tuple[str, ...] = ()  # lines about the sides: merge base moved on, same ref twice, ...
    touched: tuple[Touched, ...] = ()  # files that changed although code under test must not change them
    header: Header | None = None
    observations: tuple[Observation, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # base with targets, peers with every side
    within: tuple[Comparison, ...] = ()  # variants of one side; () in older runs
    controls: tuple[Comparison, ...] = ()
    proofs: tuple[Proof, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    hunks: dict[str, tuple[Hunk, ...]] = {}  # target -> where its code differs from base's; no key: not compared
    listed: tuple[Listed, ...] = ()  # kernels of changed rows
    traces: tuple[Trace, ...] = ()  # of --probe torch
    profiles: tuple[Profile, ...] = ()  # of --probe ncu, `abprof profile`, `abprof memory`
    sampled: tuple[Sampled, ...] = ()  # of --probe perf
    warnings: tuple[Advice, ...] = ()
    history: tuple[CellHistory, ...] = ()  # of nights, if the folder of runs has any

    @property
    def in_force(self) -> tuple[Waiver, ...]:
        """Return the waivers that had not expired when the run began."""
        return tuple(one for one in self.waivers if self.began[:10] <= one.expires)

    @property
    def one_code(self) -> bool:
        """Whether this is an A/A run: all sides have the same files and environment, and there are two or more."""
        chains = {side: sorted(chain.versions.items()) for side, chain in self.toolchains.items()}
        alike = {repr((side.tree, side.requirements, chains.get(side.id))) for side in self.sides}
        return len(self.sides) > 1 and len(alike) == 1

    def as_asked(self, repo: str, budget: float) -> Options:
        """Return options that measure this run's code again, on its device and with its timer, seed and worker settings."""
        return Options(
            specs=tuple(side.anew for side in self.sides),
            repo=repo,
            command=self.command.argv if self.command else (),
            budget=budget,
            all=True,  # identical cells that the run did not measure already have a block
            no_peers=not any(arm.peer for arm in self.arms),
            device=(self.machine.uuid or self.machine.kind,),
            **{name: getattr(self.options, name) for name in _KEPT},
        )

    def side(self, id: str) -> Side:
        """Return the side with this id. Raises KeyError for an unknown id."""
        return {side.id: side for side in self.sides}[id]


class Placed(Record, frozen=True, kw_only=True):
    """A device that measures part of the run."""

    device: str  # name of the device's lease, as in Block.device
    machine: Machine  # all that is known about the device so far


class Finding(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A line of evidence.jsonl, in which one field is set. If a run is killed, these lines complete its run.json."""

    proof: Proof | None = None
    kernel: Kernel | None = None
    touched: Touched | None = None
    placed: Placed | None = None
    arm: Arm | None = None  # an arm that was added while the run was measured
