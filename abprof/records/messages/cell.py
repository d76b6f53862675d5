"""One cell on one arm: opened, checked, timed, closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from abprof.records.messages.base import Value


@dataclass(frozen=True)
class Open:
    """Make inputs and the operation of one cell on one arm, and call it once."""

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
    """How the first calls went."""

    status: Literal["ok", "unsupported", "missing", "oom", "crash"]
    reason: str = ""
    call_ns: float = 0.0  # a warm call, by the device's events, or the host's clock
    open_ns: float = 0.0  # what a re-allocation costs
    peak_mem_bytes: int | None = None
    host_ns: float = 0.0  # what the host needs to enqueue a warm call on an idle device; 0: not told


@dataclass(frozen=True)
class Capture:
    """Capture a call of the open arm in a CUDA graph. The graph is kept for turns until inputs are made again."""

    arm: str


@dataclass(frozen=True)
class Captured:
    """How it went. `why`: "" or in a word why it cannot be done (abprof/worker/clocks/graphs.py), `reason` in words."""

    why: str = ""
    reason: str = ""
    replay_ns: float = 0.0  # one replay, warm
    capture_ns: float = 0.0  # what capturing costs, at every placement anew
    nodes: int = 0  # what a replay runs
    spoiled: bool = (
        False  # a capture was begun and broke off: what this process says from now on is not to be relied on
    )


@dataclass(frozen=True)
class Records:
    """Ask whether CUPTI's activity records can be had in this process."""


@dataclass(frozen=True)
class Recordable:
    """`why`: "" or in words why they cannot."""

    why: str = ""


@dataclass(frozen=True)
class Check:
    """Compare the open arm's outputs with the reference. The first caller makes `expected`, others read it."""

    arm: str
    expected: str  # file name in scratch
    sample: str  # file in scratch for this arm's sampled outputs: SIDE/NAME
    against: str = ""  # file of the base's sampled outputs


@dataclass(frozen=True)
class Checked:
    ok: bool
    reason: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    digest: str = ""
    base_max_abs: float | None = None
    facts: dict[str, Value] = field(default_factory=dict)
    compared: bool = True  # False: there is no reference, and the call returned nothing that could be compared


@dataclass(frozen=True)
class Hand:
    """Call the open arm on inputs of this seed and keep its outputs in scratch, for a judge to check (abprof/measure/outside_check.py).

    With `again` a first call is made, and then that seed's values are put into the inputs in place; with `anew` the
    operation is prepared once more on them.
    """

    arm: str
    seed: int
    outputs: str  # file in scratch: SIDE/NAME
    again: int | None = None
    anew: bool = False


@dataclass(frozen=True)
class Handed:
    """The outputs are there."""


@dataclass(frozen=True)
class Examine:
    """To a worker without a package: check outputs that another one handed over. Answered as `Check` is."""

    workload: str
    case: dict[str, Value]
    seed: int
    outputs: str
    again: int | None = None


@dataclass(frozen=True)
class Turn:
    arm: str
    calls: int
    timer: str  # cpu_clock, cuda_event, cuda_graph, cupti, wall_clock, do_bench, sustained
    cold: bool = True  # flush the cache before each call
    placement: int | None = None  # re-allocate the inputs first, untimed
    empties: int = 0  # empty launches to time after the calls
    added: bool = False  # by cupti: durations added up, not from the first one's start to the last one's end


@dataclass(frozen=True)
class Turned:
    """ns per call: `value` by the turn's timer, `wall` by the host's clock. `start`/`end`: time.monotonic_ns().

    `empty`: what the same timer reads of a launch that does nothing; 0 where that was not timed (abprof/measure/turns.py).
    `mhz`: the device's mean clock over the calls; 0 where it is not known.
    """

    value: float
    wall: float
    start: int
    end: int
    empty: float = 0.0
    mhz: float = 0.0


@dataclass(frozen=True)
class Close:
    """Forget every open arm of the cell."""
