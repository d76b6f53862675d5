"""Measurements from workers and devices: turns, outcomes of arms, the machine's state, and blocks of rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from abprof.records.base import REPORTED, UNJUDGED_METRICS, Record, Status
from abprof.records.cells import Arm
from abprof.records.messages import Census, CheckResult, Value

LONGEST_CALL = 1e18  # ns, thirty years: no working clock reads more, and sums of such times stay finite

POWER_CAP = "software power cap"  # in MachineState.throttle: the device lowered its clock to stay at its power limit
_SLICE_BY_ITSELF = 1e8  # ns of a call
_OTHER_TIMERS = {"cuda_graph", "cupti", "wall_clock"}  # slices without pauses are timed by events

LOOKS = (4, 6, 8, 12, 16, 24, 32)  # planned looks: numbers of epochs after which a verdict may be given


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One turn of one arm (a few timed calls), stored as an array of its fields. If `empty` is not 0, `value` is
    already corrected for the cost of launches (`levelled` in abprof/measure/turns.py)."""

    arm: int  # index into Block.arms
    start: int  # ns since the block's `began`
    end: int  # ns since the block's `began`
    value: float  # ns per call by the judged metric
    wall: float  # ns per call by the wall clock
    empty: float = 0.0  # ns of an empty launch in this turn, by the same timer as `value`; 0: not timed
    mhz: float = 0.0  # the device's mean clock over the turn's calls; 0: unknown
    waited: int = 0  # ns that the parent waited for the reply; 0: unknown, or inputs were re-allocated


class Outcome(Record, frozen=True, kw_only=True):
    """Status and results of one arm in one block. The arm's times are in the block's turns."""

    status: Status
    reason: str = ""  # why the status is not `ok`
    at: str = ""  # the workload's function that raised, and its file; "": no function of the workload raised
    check: CheckResult | None = None  # None: not checked in this block
    peak_mem_bytes: int | None = None
    phases: dict[str, float | None] | None = None  # ns per call by phase name, with "total"; None: not recorded
    facts: dict[str, Value] = {}  # the workload's facts about this case and arm, reported with the check
    log: str = ""
    census: Census | None = None  # None: not recorded in this block
    host_ns: float | None = None  # host time to enqueue a warm call on an idle device; None: unknown


class MachineState(Record, frozen=True, kw_only=True):
    """State of the device and its host during a block. Only older runs have clocks, power and temperature."""

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()  # other processes seen on the device
    load1: float | None = None
    cpu_mhz: float | None = None


class Block(Record, frozen=True, kw_only=True):
    """All rounds of one cell in one epoch: a line of rounds.jsonl."""

    epoch: int
    cell: str
    metric: str  # metric of the turns: gpu_span, gpu_graph, gpu_kernels, wall, reported, or one of UNJUDGED_METRICS
    timer: str  # cuda_event, cuda_graph, cupti, cpu_clock, wall_clock, simulated, or `the command` (reported times)
    calls: int  # calls per turn, the same for all arms
    arms: tuple[str, ...]
    began: float  # seconds since 1970-01-01 UTC
    seconds: float  # duration of the block
    rounds: tuple[tuple[Turn, ...], ...]  # turns in the order they ran
    rejected: tuple[int, ...] = ()  # indexes of rounds that a rule fixed before measuring dropped
    rejected_why: str = ""
    outcomes: dict[str, Outcome]
    state: MachineState = MachineState()
    start_order: tuple[str, ...] = ()  # arms in the order in which the epoch's workers started
    quick: bool = False
    alone: bool = False  # one arm in memory at a time, because all arms together do not fit
    check_seconds: float = 0.0  # part of `seconds` spent on checks of outputs, computing the reference included
    nodes: dict[str, int] = {}  # in older runs: arm -> number of nodes of its CUDA graph
    rule: str = ""  # in older runs: why this timer and this number of calls were chosen
    beside: bool = False  # in older runs: turns of a second timer, which verdicts ignore
    device: str = ""  # name of the device's lease in a run on several devices; the same for all blocks of a cell
    unrecorded: str = ""  # in older runs: why events, and not CUPTI, read calls under 20 us
    last_digit_ns: float = 0.0  # ns of the last digit of printed times; 0: a worker's times, or an older run
    shard: int = 0  # number of the shard that measured the block (abprof/fleet/); 0: the run's own process

    @property
    def judged(self) -> bool:
        """Whether verdicts use the times of this block."""
        return not self.beside and self.metric not in UNJUDGED_METRICS

    def coherent(self) -> None:
        """Check the turns of this block. Raises ValueError for an arm index or a time out of range."""
        dropped, timed = frozenset(self.rejected), self.judged or self.beside
        for number, row in enumerate(self.rounds):
            for turn in row:
                if not 0 <= turn.arm < len(self.arms):
                    raise ValueError(f"a turn names arm number {turn.arm}, but the block has {len(self.arms)} arms")
                if any(isinstance(value, int) and abs(value) >= 2**63 for value in msgspec.structs.astuple(turn)):
                    raise ValueError("a turn has an integer of more than 64 bits")
                if number not in dropped and (max(turn.value, turn.wall) > LONGEST_CALL or (timed and turn.value <= 0)):
                    raise ValueError(f"round {number} has a time out of range, but is not marked as rejected")

    @property
    def call_ns(self) -> dict[str, float]:
        """Return arm -> median ns of a call, of each arm that took turns."""
        known = [turn for row in self.rounds for turn in row if 0 < turn.value <= LONGEST_CALL]
        every = {arm: [turn.value for turn in known if turn.arm == place] for place, arm in enumerate(self.arms)}
        return {arm: statistics.median(values) for arm, values in every.items() if values}

    @property
    def by_spans(self) -> bool:
        """Whether turns and slices without pauses read the same: not where the host's clock, graphs or CUPTI time turns."""
        return self.judged and self.metric != REPORTED and self.timer not in _OTHER_TIMERS

    @staticmethod
    def unmeasured(cell: str, arms: Sequence[Arm], outcomes: Mapping[str, Outcome]) -> Block:
        """Make a block without rounds for a cell that is not measured, such as one of identical code."""
        return Block(
            epoch=0,
            cell=cell,
            metric="",
            timer="",
            calls=0,
            arms=tuple(arm.id for arm in arms),
            began=time.time(),
            seconds=0.0,
            rounds=(),
            outcomes=dict(outcomes),
        )


def power_bound(blocks: Iterable[Block]) -> bool:
    """Whether pauses may matter: the device hit its power limit in half of the timed `blocks` of a cell or more. False
    for calls of 0.1 s and longer, which hold the device at its limit by themselves."""
    timed = [block for block in blocks if block.by_spans and block.rounds]
    capped = sum(POWER_CAP in block.state.throttle for block in timed)
    short = any(turn.value < _SLICE_BY_ITSELF for block in timed for row in block.rounds for turn in row)
    return short and 2 * capped >= len(timed)
