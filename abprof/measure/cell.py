"""One cell in one epoch: make every arm ready, then let all take turns. What goes wrong is that arm's outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from abprof.devices import Device
from abprof.measure import turns
from abprof.measure.arm_state import Request, Seat
from abprof.measure.pool import Crew
from abprof.measure.setup import Opening
from abprof.measure.timers import unrecorded
from abprof.records import JUDGED_METRIC, Block, MachineState, Turn
from abprof.records import messages as wire

Proofs = dict[str, tuple[int | None, wire.Proved]]  # worker id -> its process, and what it had loaded


class Sitting(Opening):
    """Measures one cell once, all arms in memory. Never raises for what a workload, a kernel or a worker does."""

    alone = False  # whether one arm is in memory at a time (abprof/measure/one_at_a_time.py)

    def __init__(self, crew: Crew, device: Device, request: Request) -> None:
        super().__init__(crew, device, request)
        self.origin = time.monotonic_ns()  # the workers' clock too: one host
        self.more = 0.0  # seconds spent on rounds beyond the fewest
        self.unrecorded = ""  # why CUPTI does not read calls that it should

    def run(self) -> Block:
        """Open, check, take turns, prove, close."""
        began, clock = time.time(), time.monotonic()
        self._open_all()
        block = self._timed()
        self.crew.close()
        return msgspec.structs.replace(block, began=began, seconds=time.monotonic() - clock)

    def _timed(self) -> Block:
        """The turns of what is open."""
        began, clock = time.time(), time.monotonic()
        before = self._settle()
        begin = time.monotonic()
        pace, rounds = self._take_turns()
        fewest = pace.fewest if pace else 0
        self.more = (time.monotonic() - begin) * max(0, len(rounds) - fewest) / max(1, len(rounds))
        rejected, why = self._judge_rounds(rounds, before)
        return Block(
            epoch=self.request.epoch,
            cell=self.request.cell.id,
            metric=JUDGED_METRIC[self.request.judge],
            timer=pace.timer if pace else "",
            calls=pace.calls if pace else 0,
            rule=pace.rule if pace else "",
            arms=tuple(seat.arm.id for seat in self.seats),
            began=began,
            seconds=time.monotonic() - clock,
            rounds=tuple(tuple(turn for turn in row) for row in rounds),
            rejected=tuple(rejected),
            rejected_why=why,
            outcomes={seat.arm.id: seat.outcome for seat in self.seats},
            state=self.device.state() if rounds else MachineState(),
            start_order=self.crew.start_order,
            quick=self.request.options.quick,
            alone=self.alone,
            check_seconds=self.checking,
            unrecorded=self.unrecorded,
        )

    def _settle(self) -> Proofs:
        """What is loaded before the first turn; the device's clocks are watched from here."""
        self.device.watch(self.crew.own)
        self.device.bad_times()
        return {id: (self.crew.pid(id), proved) for id, proved in self.crew.prove().items()}

    def _take_turns(self) -> tuple[turns.Pace | None, list[list[Turn]]]:
        seats = [(i, s) for i, s in enumerate(self.seats) if s.takes_turns]
        if not seats:
            return None, []
        pace, begin = self._pace(), time.monotonic()
        rounds: list[list[Turn]] = []
        judged = {i for i, seat in seats if not seat.arm.peer}
        times: list[list[float]] = []
        cycles: list[
            list[float]
        ] = []  # one of the two is judged (abprof/verdict/rounds.py): whichever is settled first
        for number, order in enumerate(self._orders(len(seats), pace.rounds)):
            fresh = self.seed + 1000 + number if pace.moves(number) else None
            rounds.append(self._round([seats[i] for i in order if seats[i][1].takes_turns], pace, fresh))
            row = sorted((turn.arm, turn.value, turn.mhz) for turn in rounds[-1] if turn.arm in judged)
            if len(row) == len(judged) and all(value > 0 for _, value, _ in row):
                times.append([value for _, value, _ in row])
                cycles += [[value * mhz for _, value, mhz in row]] if all(mhz > 0 for *_, mhz in row) else []
            done = any(turns.settled(each, pace.wanted, pace.fewest) for each in (times, cycles))
            done = done or pace.over(len(rounds), time.monotonic() - begin)
            if done or not any(seat.takes_turns for _, seat in seats):
                break
        return pace, rounds

    def _orders(self, seats: int, rounds: int) -> list[list[int]]:
        return turns.orders(seats, rounds, f"{self.request.options.seed}/{self.request.cell.id}", self.request.epoch)

    def _pace(self) -> turns.Pace:
        call_ns, open_ns = self._costs()
        settings, share = self.request.options, self.request.share
        pace = turns.pace(self.device.kind, call_ns, open_ns, settings, share, self._timer())
        if self.request.rounds is not None:
            pace = turns.allotted(pace, self.request.rounds, self.request.share)
        return pace

    def _timer(self) -> str:
        """What reads the turns. Where a rule chooses it, peers have no say."""
        usual, timers = turns.timer_of(self.device.kind, self.request.judge), self.request.timers
        if timers is None:
            return usual
        own = [s.opened.call_ns for s in self.seats if s.takes_turns and s.opened is not None and not s.arm.peer]
        workers = [seat.arm.worker for seat in self.seats]
        timer, self.unrecorded = timers.choose(
            self.request.cell, own, lambda: unrecorded(self.crew, workers, self.request.timeout), usual
        )
        for seat in self.seats if not self.alone else ():  # who is alone in memory is opened for each visit
            if seat.takes_turns and self.crew.pid(seat.arm.worker) is None:  # it died of the question
                self._open(seat)
        return timer

    def _costs(self) -> tuple[list[float], list[float]]:
        """Ns of a call, and of inputs that are made again, of each arm that takes turns."""
        opened = [seat.opened for seat in self.seats if seat.takes_turns and seat.opened is not None]
        return [one.call_ns for one in opened], [one.open_ns for one in opened]

    def _round(self, order: Sequence[tuple[int, Seat]], pace: turns.Pace, fresh: int | None) -> list[Turn]:
        """One turn of every arm that still can. All re-allocate in the same round, or none does."""
        row = []
        for index, seat in order:
            turned = self._turn(index, seat, pace, fresh)
            if turned is not None:
                row.append(turned)
        return turns.levelled(row)

    def _turn(self, index: int, seat: Seat, pace: turns.Pace, fresh: int | None = None) -> Turn | None:
        """One turn of one arm, as it was read; None when it became the seat's outcome."""
        added = self.request.judge == "kernels"
        asked = wire.Turn(seat.arm.id, pace.calls, pace.timer, placement=fresh, empties=pace.empties, added=added)
        began = time.perf_counter_ns()
        turn = self._ask(seat, asked)
        waited = time.perf_counter_ns() - began
        if turn is None:
            return None
        start, end = turn.start - self.origin, turn.end - self.origin
        # A simulated worker says how long it would have taken, and takes no time.
        told = waited if fresh is None and self.device.kind != "simulated" else 0
        return Turn(index, start, end, turn.value, turn.wall, turn.empty, turn.mhz, told)

    def _judge_rounds(self, rounds: list[list[Turn]], before: Proofs) -> tuple[list[int], str]:
        """Apply the rules that were fixed beforehand: whole rounds are dropped, never one side of one."""
        rejected = turns.rejected(rounds, self.origin, self.device.bad_times())
        self._reject_by_proof(len(rounds), before, rejected)
        return sorted(rejected), "; ".join(dict.fromkeys(rejected.values()))

    def _reject_by_proof(self, count: int, before: Proofs, rejected: dict[int, str]) -> None:
        """Proof before and after timing, of every worker that took turns; and no compiling between them."""
        proved = self.crew.prove()
        for seat in self.seats:
            if count and seat.takes_turns and seat.arm.worker not in proved:
                self._fail(seat, "crash", "its worker ended before it could prove what it had loaded")
        for id, after in proved.items():
            pid, first = before.get(id, (None, None))
            bad = next((p.reason for p in (first, after) if p is not None and not p.ok), "")
            if bad:
                for seat in self.seats:
                    if seat.arm.side == id and not seat.arm.peer:
                        self._fail(seat, "crash", f"proof: {bad}")
            # A worker that was started anew during the turns has compiled nothing before them.
            earlier = first.compiles if first is not None and pid == self.crew.pid(id) else 0
            if count and after.compiles > earlier:
                rejected.update(dict.fromkeys(range(count), f"{id} compiled a kernel during timing"))
