"""The parent's part: shards go out to free slots, news comes in and is recorded, what is lost is run again elsewhere.

What a shard decided is its own plan. Verdicts come of all cells together (abprof/verdict/judgement.py), and a cell that they leave open,
with time left on its device, goes there again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import msgspec

from abprof.devices.protocols import Executor, Lost
from abprof.fleet.expected import tasks
from abprof.fleet.live import Live
from abprof.fleet.messages import Ended, Loaded, Measured, Noticed, Proved, Said, read_news
from abprof.fleet.packing import CONTROLS, Packer, to_the_next_look
from abprof.fleet.schedule import Error, Task
from abprof.fleet.waiting import Waiting
from abprof.measure.epochs import Ground, Item, unmeasured
from abprof.measure.estimate import start_up
from abprof.measure.followup import owed
from abprof.measure.growing import Growing
from abprof.measure.run_context import Place
from abprof.records import SUSTAINED, Block, Loss, Outcome
from abprof.records.errors import AbprofError
from abprof.store.record import Record

MOST_ATTEMPTS = 3  # shards that a cell may be in, when they are lost
_LISTEN = 1.0  # seconds that news is waited for at once
_LOSSES_IN_A_ROW = 2  # after so many a slot is given no more, while there is another


def conduct(growing: Growing, record: Record, executor: Executor, place: Place) -> Iterator[Item]:
    """Blocks, proofs and kernels as they come, until every cell is decided or the budget of every slot is spent.

    Cells go out as their packages join the ground. Machines, losses and files that changed go into the record at once. Raises
    AbprofError where no shard could even begin.
    """
    work = _Work(growing, record, executor, place)
    while work.hand_out():
        if work.idle:
            growing.wait(_LISTEN)
            continue
        for number, said in executor.news(_LISTEN):
            yield from work.hear(number, said)


class _Work:
    """What was handed out, and what of it came back."""

    def __init__(self, growing: Growing, record: Record, executor: Executor, place: Place) -> None:
        self._growing, self._record, self._executor, self._place = growing, record, executor, place
        self._live: dict[int, Live] = {}
        self._left = dict.fromkeys(executor.slots(), place.config.budget)  # seconds of measuring
        self._losses = dict.fromkeys(self._left, 0)  # in a row
        self._ever_began = False
        self._least: dict[str, int] = {}  # cell -> epochs that its next shard gives it
        self._ends = 0  # shards that have ended
        self._asked: dict[str, int] = {}  # slot -> how many had when it was last asked what more it could do
        self._open_at, self._open = -1, dict[str, set[str]]()  # the same of the verdicts, and slot -> its open cells
        self._packer = Packer(place, growing, record)
        self._tasks: dict[str, Task] = {}  # of cells that have joined
        _, error = self._estimated()
        begins = start_up(self._ground.device.kind, kept=executor.lasting)
        light = CONTROLS if self._packer.controls() else 0
        self._waiting = Waiting((), tuple(self._left), begins, error, light)

    @property
    def _ground(self) -> Ground:
        return self._growing.ground

    @property
    def idle(self) -> bool:
        """Whether nothing is out, so that nothing can be heard."""
        return not self._live

    def _estimated(self) -> tuple[list[Task], Error]:
        return tasks(self._ground.run, {**self._ground.arms, **self._growing.expected})

    def _join(self) -> None:
        """Take in the cells whose packages are built by now."""
        self._growing.grow()
        fresh = self._ground.arms.keys() - self._tasks.keys()
        if not fresh:
            return
        every, _ = self._estimated()
        self._tasks |= {task.cell: task for task in every if task.cell in fresh}
        self._waiting.coming = sum(task.seconds for task in every if task.cell in self._growing.expected)
        todo = (self._record.wanted() | self._owed_here()) & fresh
        self._gone(todo)
        homes = {cell: home for cell, home in self._homes().items() if cell in todo}
        self._waiting.more(self._tasks[cell] for cell in todo - homes.keys())
        for cell, home in homes.items():
            self._waiting.go_on(home, [self._tasks[cell]])

    def _gone(self, todo: set[str]) -> None:
        """Cells whose blocks are of a device that no slot is sure to be: those do not stand, and all is measured again."""
        record, here = self._record, self._left if self._executor.lasting else {}
        away = {block.cell: block.device for block in record.blocks if block.cell in todo and block.metric}
        away = {cell: device for cell, device in away.items() if device not in here}
        earlier = [block.cell for block in record.blocks[: record.older] if block.cell in away]
        if earlier or (away and "" in away.values()):
            what = f"{next(iter(earlier or away))} was measured on a device that this run has not"
            raise AbprofError(what, advice="a cell's rounds are all of one device: start a new run")
        for device in sorted(set(away.values())):
            self._void(device, {cell for cell, home in away.items() if home == device}, "its device is another's now")

    def hand_out(self) -> bool:
        """Give every free slot a shard. False when nothing is out, nothing is left to do and nothing to come."""
        self._join()
        for slot in self._free():
            taken = self._waiting.take(slot, time.monotonic()) or self._again(slot)
            if taken:
                self._tasks |= {task.cell: task for task in taken}  # with their attempts
                budget = self._left[slot] * self._waiting.share(taken, slot)
                shard = self._packer.shard(taken, slot, budget, self._least)
                self._live[shard.number] = Live(shard, slot, taken)
                self._executor.submit(shard, slot)
        return bool(self._live) or self._growing.coming

    def _free(self) -> list[str]:
        busy = {live.slot for live in self._live.values()}
        return [slot for slot in self._waiting.slots if slot not in busy and slot != self._growing.builders_on]

    def _homes(self) -> dict[str, str]:
        """Cell -> the slot whose device its blocks are of."""
        return {block.cell: block.device for block in self._record.blocks if block.device in self._left}

    def _again(self, slot: str) -> tuple[Task, ...]:
        """Cells that all verdicts together leave open, which this slot has measured and has time for."""
        if self._growing.coming or not self._executor.lasting or self._asked.get(slot) == self._ends:
            return ()  # what time it has is known once no cell is to come
        self._asked[slot] = self._ends
        wanted = self._open_of(slot)
        if wanted:
            wanted -= {cell.id for live in self._live.values() for cell in live.shard.run.cells}
        if not wanted:
            return ()
        counts = self._record.epochs()
        least = {cell: to_the_next_look(counts[cell]) for cell in wanted}
        cost = sum(least[cell] * seconds / max(1, epochs) for cell, (epochs, seconds) in self._spent(wanted).items())
        if cost > self._left[slot]:
            return ()
        self._least |= least
        return tuple(self._tasks[cell] for cell in sorted(wanted))

    def _open_of(self, slot: str) -> set[str]:
        """Open cells whose blocks are of this slot's device. All verdicts together take a millisecond a cell: they are asked
        for once for all slots, when a shard has ended since."""
        if self._open_at != self._ends:
            self._open_at, self._open = self._ends, {}
            homes = self._homes()
            for cell in self._record.wanted() & self._ground.arms.keys() & homes.keys():
                self._open.setdefault(homes[cell], set()).add(cell)
        return set(self._open.get(slot, ()))

    def _spent(self, cells: set[str]) -> dict[str, tuple[int, float]]:
        """Epochs, of which one may be several blocks, and seconds."""
        found = {cell: (set[int](), 0.0) for cell in cells}
        for block in self._record.blocks[self._record.older :]:
            if block.cell in found and block.metric and block.judged:
                epochs, seconds = found[block.cell]
                found[block.cell] = (epochs | {block.epoch}, seconds + block.seconds)
        return {cell: (len(epochs), seconds) for cell, (epochs, seconds) in found.items()}

    # ------------------------------------------------------------ what comes

    def hear(self, number: int, said: bytes | Lost) -> Iterator[Item]:
        """One line of a shard's, or its end."""
        live = self._live.get(number)
        if live is None:
            return
        if isinstance(said, Lost):
            del self._live[number]
            yield from self._ended(live, said)
            return
        try:
            news = read_news(said)
        except ValueError as error:
            live.torn = live.torn or str(error)
            return
        if isinstance(news, Ended):
            live.ended = news
            return
        live.lines += 1
        if isinstance(news, Measured):
            yield _own(news.block, number)
        elif isinstance(news, Proved):
            yield news.proof
        elif isinstance(news, Loaded):
            yield news.kernel
        elif isinstance(news, Noticed):
            self._record.note([news.touched])
        elif isinstance(news, Said):
            (self._record.view.warn if news.warning else self._record.view.say)(f"[{live.slot}] {news.line}")
        else:
            live.began, self._ever_began = news, True
            same = {build.key for build in self._record.head.builds}
            others = () if all(build.key in same for build in news.builds) else news.builds
            machine = msgspec.structs.replace(news.machine, ceilings=news.ceilings, builds=others)
            self._record.placed(news.device, machine)

    def _ended(self, live: Live, lost: Lost) -> Iterator[Item]:
        """The program of a shard is gone: in an orderly way, or the shard is lost."""
        self._ends += 1
        ended = live.ended
        if ended and ended.why == "done" and live.whole:
            self._left[live.slot] -= ended.seconds
            self._losses[live.slot] = 0
            self._waiting.took(live.tasks, ended.seconds)
            return
        yield from self._lost(live, live.why(lost))

    def _lost(self, live: Live, why: str) -> Iterator[Item]:
        cells = {cell.id for cell in live.shard.run.cells}
        # What is missing may be a proof, and what is there twice an epoch: of such a shard no verdict stands either.
        open_ = self._unfinished(live) & cells if live.whole else cells & self._ground.arms.keys()
        self._record.view.warn(
            f"shard {live.shard.number} on {live.slot} was lost ({why}); cells to run again: {len(open_)}"
        )
        again = [task for task in live.tasks if task.cell in open_]
        self._void(live.slot, open_, why)
        given_up = [task for task in again if task.attempt >= MOST_ATTEMPTS]
        if given_up and not self._ever_began:
            raise AbprofError(why, where=live.slot, advice="no shard could be measured")
        for task in given_up:
            yield self._outcome(task, why)
        if kept := [task for task in again if task.attempt < MOST_ATTEMPTS]:
            self._waiting.back(live.slot, kept)
        self._losses[live.slot] += 1
        if self._losses[live.slot] >= _LOSSES_IN_A_ROW and len(self._waiting.slots) > 1:
            self._record.view.warn(f"{live.slot} lost {self._losses[live.slot]} shards in a row, and is given no more")
            self._waiting.gone(live.slot)

    def _unfinished(self, live: Live) -> set[str]:
        """Cells without a verdict, and those that lack what is timed after it, but for what was tried often enough."""
        tried = {task.cell for task in live.tasks if task.attempt >= MOST_ATTEMPTS}
        return self._record.wanted() | (self._owed() - tried)

    def _owed_here(self) -> set[str]:
        """The same of a run that is gone on with. Where no cell has a home all of it would be measured again: there only those
        whose slices were broken off."""
        owing = self._owed()
        if not self._executor.lasting:
            owing &= {block.cell for block in self._record.blocks if block.metric == SUSTAINED}
        return owing

    def _owed(self) -> set[str]:
        """Cells that have rounds, of which something that is timed after all epochs is missing: they are not finished."""
        record, config = self._record, self._place.config
        begun = {block.cell for block in record.blocks if block.metric}
        return begun & owed(self._ground, config.beside, record.blocks) if begun else set()

    def _void(self, slot: str, cells: set[str], why: str) -> None:
        """What stands of these cells does so no more: they are run again whole."""
        by_shard: dict[int, set[str]] = {}
        for block in self._record.blocks[self._record.older :]:
            if block.cell in cells and block.shard:
                by_shard.setdefault(block.shard, set()).add(block.cell)
        self._record.lost([Loss(shard=n, device=slot, cells=tuple(sorted(c)), reason=why) for n, c in by_shard.items()])
        for cell in cells:
            self._least.pop(cell, None)

    def _outcome(self, task: Task, why: str) -> Block:
        cell = next(cell for cell in self._ground.run.cells if cell.id == task.cell)
        arms = self._ground.arms[task.cell]
        reason = f"each of {MOST_ATTEMPTS} shards with it was lost; the last: {why}"
        return unmeasured(cell, arms, {arm.id: Outcome(status="crash", reason=reason) for arm in arms})


def _own(block: Block, number: int) -> Block:
    """Its outcomes name logs by where they lie in the run's folder."""
    outcomes: Mapping[str, Outcome] = {
        arm: msgspec.structs.replace(outcome, log=f"shard-{number}/{outcome.log}") if outcome.log else outcome
        for arm, outcome in block.outcomes.items()
    }
    return msgspec.structs.replace(block, outcomes=dict(outcomes))
