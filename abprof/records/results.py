"""What is made of it: observations, verdicts, causes, warnings."""

from __future__ import annotations

from typing import Literal

from abprof.records.base import Record, Status, Value, Verdict
from abprof.records.blocks import Census, CheckResult
from abprof.records.cells import Arm


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
