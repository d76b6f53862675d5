"""selfcheck.json: what a selfcheck found. Rates are counts here; whoever prints them divides."""

from __future__ import annotations

from typing import Literal

from abprof.records import Machine, Record

# Upper bounds of a call's time in ns: the classes of docs/DESIGN.md.
CLASSES = (("under 20 us", 20_000.0), ("20 us to 0.3 ms", 300_000.0), ("0.3 ms and longer", float("inf")))


class Alarms(Record, frozen=True, kw_only=True):
    """What a protocol said of unchanged cells of one duration class. Any `slower` or `faster` is a false alarm.

    Here and below a cell that more than two sides measured counts once for each pair of them.
    """

    protocol: str  # "abprof", or what it is compared with
    rule: str
    threshold: float  # per cent
    margin: float | None = None  # per cent; None: the protocol has no `same` that is proved
    duration_class: str  # a name of CLASSES
    cells: int
    slower: int
    faster: int
    same: int = 0
    slight: int = 0
    unclear: int = 0
    epochs: float | None = None  # mean over cells at which abprof would have stopped


class Detection(Record, frozen=True, kw_only=True):
    """What a protocol said of cells with injected work."""

    protocol: str
    threshold: float  # per cent
    how: Literal["work", "sleep"]
    inject: float  # per cent
    duration_class: str  # a name of CLASSES
    cells: int
    slower: int
    faster: int
    mean_pct: float  # of the measured changes of time


class Coverage(Record, frozen=True, kw_only=True):
    """How many 95 % intervals of unchanged cells hold zero."""

    interval: Literal["student", "repeated"]  # of four epochs, plain; over all looks of a cell together
    duration_class: str  # a name of CLASSES
    intervals: int
    covered: int


class Resolution(Record, frozen=True, kw_only=True):
    """How fine the instrument is: medians over unchanged cells, per cent of time."""

    duration_class: str  # a name of CLASSES
    cells: int
    epoch_sd: float  # between epoch values
    first_look: float  # half-width of the repeated interval at the first look
    last_look: float  # at the last look this selfcheck reached


class TurnLength(Record, frozen=True, kw_only=True):
    """How pairs of turns of one length scatter, base beside target on unchanged code in one pair of processes."""

    kernel: str  # op and steps
    call_ns: float
    calls: int  # per turn
    pairs: int
    scatter_pct: float  # of a pair's log ratio: 1.4826 times the median absolute deviation
    error_pct: float  # standard error of the pairs' median, had they been repeated for one second of turns


class IdleWorker(Record, frozen=True, kw_only=True):
    """A call with no other worker alive, and beside one that has the same cell open and does nothing."""

    kernel: str  # op and steps
    alone_ns: float  # median over both visits
    beside_ns: float
    alone_pct: float  # second visit over the first: what the machine's drift and fresh processes do by themselves
    beside_pct: float


class Selfcheck(Record, frozen=True, kw_only=True):
    """The whole result."""

    schema: int = 1
    run: str
    began: str
    arguments: tuple[str, ...]
    machine: Machine
    versions: dict[str, str]
    cells: int
    epochs: int  # the most that a cell has
    seconds: float  # from the first block that a verdict reads to the last
    busy_share: float  # time inside turns over that time, starts of workers included
    false_alarms: int  # of abprof's own at its default threshold
    alarms: tuple[Alarms, ...]
    detection: tuple[Detection, ...]
    coverage: tuple[Coverage, ...]
    resolution: tuple[Resolution, ...]
    turn_lengths: tuple[TurnLength, ...] = ()  # () with --quick
    idle_worker: tuple[IdleWorker, ...] = ()
    between_turns_us: float | None = None  # median, from a turn's end to the next one's start; None with --quick
