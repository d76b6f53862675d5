"""A scenario: what the simulated worker pretends. Standard library only; the file is JSON, one object, strict.

Every random draw is a hash of the scenario's seed and of what the draw belongs to (side, epoch, cell, arm, how many
turns that arm has had), never the state of a generator. So a value does not depend on what was measured before it,
on the number of processes or on a restart, and the same scenario always gives the same numbers.
Times are nanoseconds per call; sizes of noise are standard deviations of ln(time), so 0.01 is about 1 %.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from statistics import NormalDist
from typing import Any

Value = str | int | float | bool
NORMAL = NormalDist()
STATUS = {"unsupported": "unsupported", "missing": "missing", "oom": "oom", "crash_status": "crash"}
SPOIL = {"garbage", "nan", "wrong_id", "bigreply"}
FAULTS = SPOIL | set(STATUS) | {
    "exit", "hang", "stubborn", "crash", "kill", "kill_parent", "stop_parent",
    "sigstop", "slow", "wait", "print", "fork", "daemon", "close",
    "partial", "write", "eat", "gone", "negative", "zero", "null", "wrong", "never_launched", "uncaptured",
    "foreign_path", "compile", "torn_trace", "kept", "packed", "jump",
}  # fmt: skip


@dataclass(frozen=True)
class Time:
    """A rule about ns per call. Of the rules that match, the last `ns` counts, times every `factor`."""

    ns: float | None = None
    factor: float = 1.0
    cell: str = "*"  # glob over WORKLOAD/axis=value,...
    side: str = "*"  # glob over the worker's side: base, target, target2, control, peers
    arm: str = "*"  # glob over the variant, "peer:NAME", or "" for the plain arm
    timer: str = "*"  # glob over the turn's timer


@dataclass(frozen=True)
class Noise:
    """How times scatter. Later rules replace earlier ones, whole; `cell` and `side` are globs."""

    turn: float = 0.0  # sd, every turn anew
    common: float = 0.0  # sd, every round anew, shared by the arms of the round
    epoch: float = 0.0  # sd, every process and cell anew
    cell: str = "*"
    side: str = "*"


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. It strikes from the n-th matching request of a process on, `times` times (0: always).

    `do` is a word, for some with a number after a colon:
      exit:CODE, hang, stubborn (hangs and ignores SIGTERM and SIGINT), crash (SIGSEGV), kill (SIGKILL), kill_parent
      (SIGKILL to who started it), stop_parent (SIGSTOP to it),
      sigstop:SECONDS (stops itself; 0: until somebody continues it), slow:SECONDS, wait
      (until the file `text` lies beside the scenario), print:BYTES (to standard output), fork, daemon (leaves a sleeping
      child, in its own session for daemon, with every descriptor open), close (closes the reply descriptor and hangs),
      write (to each file that the glob `text` finds beside the scenario; GLOB- removes, NAME+ makes it), eat (until there
      is no memory), gone (the device, for every process from then on), partial (half a line, then exit), garbage (a line
      that is no JSON), nan (a reply with NaN), wrong_id, bigreply:BYTES, unsupported, missing, oom,
      crash_status (typed outcomes, with `text`); for a turn negative, zero, null, jump:SECONDS (the clock, while it is
      timed); for a check wrong; for phases never_launched; for a trace torn_trace; for a capture uncaptured, with :1
      spoiled by it; for a hand wrong, kept, packed; for a proof foreign_path, compile:COUNT.
    `cell` is matched with the open cell's id, with the workload's name for describe and screen, and with the kernel's
    name for start, build, prove and stop.
    """

    do: str
    verb: str
    side: str = "*"
    cell: str = "*"
    arm: str = "*"  # glob as in Time; only for requests that name an arm
    device: str = "*"  # glob over the device's name
    epoch: int | None = None  # None: any
    after: int = 1
    times: int = 0
    once: bool = False  # in the whole run: the first process to get here leaves a mark beside the scenario
    text: str = ""

    def __post_init__(self) -> None:
        if self.word not in FAULTS:
            raise ValueError(f"no such fault: {self.do!r}")

    @property
    def word(self) -> str:
        return self.do.partition(":")[0]

    def number(self, default: float) -> float:
        """The number after the colon."""
        tail = self.do.partition(":")[2]
        return float(tail) if tail else default


@dataclass(frozen=True)
class Workload:
    """One workload, as `wire.Described` and `wire.Screened` give it. `phases`: (name, range, text, share of a call)."""

    kernel: str
    presets: dict[str, dict[str, list[Any]]]  # name -> axis -> values; "a,b" zips axes, and its values are lists
    suite: str = "simulated"
    text: str = ""
    judge: str = ""
    checked: str = "reference"
    variants: list[str] = field(default_factory=list)
    ladder: list[str] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    default_peers: list[str] | None = None
    phases: list[tuple[str, str, str, float | None]] = field(default_factory=list)
    seed_columns: list[str] = field(default_factory=list)
    flops: float | None = None
    bytes: float | None = None
    convention: str = ""
    skips: dict[str, str] = field(default_factory=dict)  # cell glob -> reason
    max_abs: float = 1e-6
    max_rel: float = 1e-6
    peak_mem_bytes: int | None = 1 << 20
    host_ns: float = 0.0  # the host's time to enqueue a call
    nodes: int = 1  # of a call's CUDA graph

    def axes(self) -> dict[str, list[tuple[list[str], list[Any]]]]:
        """The presets as the wire has them: axes zipped or alone, and each value a list as long."""
        return {
            preset: [
                (names := axis.split(","), [list(value) if len(names) > 1 else [value] for value in values])
                for axis, values in axes.items()
            ]
            for preset, axes in self.presets.items()
        }

    def skip(self, cell: str) -> str:
        """Why the workload leaves this cell out, or an empty string."""
        return next((reason for pattern, reason in self.skips.items() if _match(pattern, cell)), "")


@dataclass(frozen=True)
class Scenario:
    """The whole of it. `clock_ns` None: virtual time never runs behind the real monotonic clock; a number: it
    starts there and only turns move it."""

    workloads: dict[str, Workload]
    times: list[Time] = field(default_factory=lambda: [Time(ns=1e6)])
    noise: list[Noise] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    seed: int = 0
    device: str = "simulated device"
    kind: str = "simulated"
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    variants: dict[str, list[str]] = field(default_factory=dict)  # side's glob -> the kernel packages' VARIANTS there
    layout: float = 0.0  # the layout of every second build, drawn at random, makes its calls longer by this share
    clock_ns: int | None = None
    ceilings: list[float] | None = None  # TFLOP/s and GB/s
    packages: dict[str, str] = field(default_factory=dict)

    def variants_of(self, side: str, kernel: str) -> list[str]:
        """Return the variants of the side's kernel package: of the last matching rule, or all variants of the workloads."""
        for pattern in reversed(self.variants):
            if _side(pattern, side):
                return self.variants[pattern]
        named = (variant for load in self.workloads.values() if load.kernel == kernel for variant in load.variants)
        return list(dict.fromkeys(named))

    def ns(self, side: str, cell: str, arm: str, timer: str = "") -> float:
        """The programmed ns per call, without noise, by that timer ("" before the first turn). Raises ValueError when
        no rule gives one."""
        base: float | None = None
        factor = 1.0
        for rule in self.times:
            if (
                _match(rule.cell, cell)
                and _side(rule.side, side)
                and _match(rule.arm, arm)
                and _match(rule.timer, timer)
            ):
                base = rule.ns if rule.ns is not None else base
                factor *= rule.factor
        if base is None:
            raise ValueError(f"the scenario has no time for {side} {cell} {arm}")
        return base * factor

    def scatter(self, ns: float, noise: Noise | None, side: str, epoch: int, cell: str, arm: str, turn: int) -> float:
        """ns per call of an arm's `turn`-th turn (from 0) in its cell and epoch: of `ns` and `noise_of`, which a worker looks up once
        per open arm."""
        return ns if noise is None else ns * math.exp(self._wobble(noise, side, epoch, cell, arm, turn))

    def noise_of(self, side: str, cell: str) -> Noise | None:
        """The noise rule in force: the last that matches."""
        rules = (rule for rule in reversed(self.noise) if _match(rule.cell, cell) and _side(rule.side, side))
        return next(rules, None)

    def _wobble(self, noise: Noise, side: str, epoch: int, cell: str, arm: str, turn: int) -> float:
        """Sum of the noise's parts, in ln(time)."""
        total = 0.0
        if noise.turn:
            total += noise.turn * self.normal("turn", side, epoch, cell, arm, turn)
        if noise.common:
            total += noise.common * self.normal("common", epoch, cell, turn)
        if noise.epoch:
            total += noise.epoch * self.normal("epoch", side, epoch, cell)
        return total

    def uniform(self, *key: object) -> float:
        """A number in (0, 1) that depends on the seed and the key alone."""
        digest = blake2b(repr((self.seed, *key)).encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") + 0.5) / 2**64 or 0.5**65

    def normal(self, *key: object) -> float:
        """A standard normal number that depends on the seed and the key alone."""
        return NORMAL.inv_cdf(min(self.uniform(*key), 1 - 2**-53))

    def to_json(self) -> str:
        """The scenario file's text. Raises ValueError on NaN or infinity."""
        return json.dumps(asdict(self), allow_nan=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Read a scenario file's text. Raises TypeError on unknown or missing keys."""
        loose = json.loads(text)
        known = {item.name for item in fields(cls)}
        nested: dict[str, Any] = {
            "workloads": {name: _workload(item) for name, item in loose["workloads"].items()},
            "times": [Time(**item) for item in loose.get("times", [{"ns": 1e6}])],
            "noise": [Noise(**item) for item in loose.get("noise", [])],
            "faults": [Fault(**item) for item in loose.get("faults", [])],
        }
        if unknown := set(loose) - known:
            raise TypeError(f"unknown keys in the scenario: {', '.join(sorted(unknown))}")
        return cls(**{**loose, **nested})

    def write(self, path: Path) -> Path:
        """Write the scenario file and return its path."""
        path.write_text(self.to_json())
        return path


def _workload(loose: dict[str, Any]) -> Workload:
    phases = [tuple(phase) for phase in loose.get("phases", [])]
    return Workload(**{**loose, "phases": phases})


def _match(pattern: str, name: str) -> bool:
    return pattern == "*" or fnmatchcase(name, pattern)


def _side(pattern: str, side: str) -> bool:
    """The control and peers are copies of base: rules for `base` apply to them too."""
    return _match(pattern, side) or (side in {"control", "peers"} and _match(pattern, "base"))
