"""What workers and devices report: turns, outcomes of arms, the machine's state, and blocks of rounds."""

from __future__ import annotations

import msgspec

from abprof.records.base import UNJUDGED_METRICS, Record, Status
from abprof.records.messages import Census, CheckResult, Value

LONGEST_CALL = 1e18  # ns, thirty years: no clock that is right reads more, and sums of such times are still numbers


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One turn of one arm, stored as an array of its fields.

    With `empty`, `value` is levelled: what was read, minus `empty`, plus the round's mean of it (abprof/measure/turns.py).
    """

    arm: int  # index into Block.arms
    start: int  # ns since the block's `began`
    end: int
    value: float  # ns per call by the judged metric
    wall: float  # ns per call by the wall clock
    empty: float = 0.0  # ns of an empty launch by the judged metric's timer, in this turn; 0: not timed
    mhz: float = 0.0  # the device's mean clock over the turn's calls; 0: not known
    waited: int = 0  # ns that the parent waited for the answer, by its own clock; 0: unknown, or inputs were made again


class Outcome(Record, frozen=True, kw_only=True):
    """How one arm of one cell went in one block."""

    status: Status
    reason: str = ""
    at: str = ""  # of a crash: the workload's own function that raised it, and its file; "": not the workload's doing
    check: CheckResult | None = None
    peak_mem_bytes: int | None = None
    phases: dict[str, float | None] | None = None  # ns per call by phase name, with "total"; None: not recorded
    facts: dict[str, Value] = {}  # the workload's facts about this case and arm; they come with the check
    log: str = ""
    census: Census | None = None  # None: not recorded in this block
    host_ns: float | None = None  # what the host needed to enqueue a warm call on an idle device; None: unknown


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
    metric: str  # what its turns read: gpu_span, gpu_graph, gpu_kernels, wall, reported, or what is never judged
    timer: str  # cuda_event, cuda_graph, cupti, cpu_clock, wall_clock, simulated, or `the command` of reported times
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
    nodes: dict[str, int] = {}  # arm -> what a replay of its CUDA graph runs, where there are graphs
    beside: bool = False  # in older runs: turns by a second timer, which are never judged
    device: str = ""  # the lease's name, in a run on several devices: a cell's blocks are all of one
    unrecorded: str = ""  # in older runs: why events, and not CUPTI, read calls under 20 us
    last_digit_ns: float = 0.0  # of times that a command printed; 0: times that a worker read, or an older run
    shard: int = 0  # the shard that measured it (abprof/fleet/); 0: the run's own process

    @property
    def judged(self) -> bool:
        """Whether verdicts may rest on its turns."""
        return not self.beside and self.metric not in UNJUDGED_METRICS

    def coherent(self) -> None:
        """Validate a block read from a file. Raises ValueError for an arm index or a time that is out of range."""
        dropped, timed = frozenset(self.rejected), self.judged or self.beside
        for number, row in enumerate(self.rounds):
            for turn in row:
                if not 0 <= turn.arm < len(self.arms):
                    raise ValueError("a turn names an arm that the block does not have")
                if any(isinstance(value, int) and abs(value) >= 2**63 for value in msgspec.structs.astuple(turn)):
                    raise ValueError("a number of a turn has more than 64 bits")
                if number not in dropped and (max(turn.value, turn.wall) > LONGEST_CALL or (timed and turn.value <= 0)):
                    raise ValueError("a round that counts has a time that no clock reads")
