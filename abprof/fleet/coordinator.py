"""The coordinator spreads a run over slots (places that run one shard at a time) and measures lost cells again.

A shard ends when its cells are decided. But verdicts depend on all cells of the run, so that a decided cell may become
undecided later. It then goes back to the device that measured it, if that device has time left.

A free slot gets the first of these that exists: cells that its device measured before; one cell of a lost shard of
another slot, alone, because it may end this shard too; cells that no slot has measured, the longest and others that
fit. A shard gets only a part of the slot's time, so that later shards can make up for wrong estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from abprof.fleet.executors import Executor, Lost
from abprof.fleet.messages import Ended, Shard, read_news
from abprof.measure import Estimate, Plan, RunContext
from abprof.records import LOOKS, SUSTAINED, Arm, Block, Item, Loss, Outcome, Run
from abprof.records.errors import AbprofError
from abprof.store import Record
from abprof.system import workload_files
from abprof.verdict import epochs_counted

_MOST_SECONDS = 900.0  # most seconds of a shard of several cells: a lost shard costs no more
_PART = 0.7  # part of a slot's fair share that a shard fills; all of it if the rest is not worth a start-up
_CONTROLS = 2  # least number of cells of each device that get a control
_LISTEN = 1.0  # seconds to wait for messages
_LOSSES_IN_A_ROW = 2  # a slot with this many gets no further shard if there is another slot


@dataclass(frozen=True)
class Task:
    """A cell in the queue or in a shard."""

    cell: str
    kernel: str
    seconds: float  # estimate for all its epochs, without start-up
    again: bool = False  # whether an earlier shard with this cell was lost


class Queue:
    """The cells that are in no shard yet, and the slots that may take them."""

    def __init__(self, slots: Iterable[str], start_up: float) -> None:
        """Make an empty queue. `start_up`: seconds from a shard's start to its first turn."""
        self.slots = dict.fromkeys(slots)
        self._start_up = start_up
        self.fresh: list[Task] = []
        self.own: dict[str, list[Task]] = {}  # slot -> cells whose blocks are of its device
        self.lost: list[tuple[str, Task]] = []  # (slot that lost the cell, cell): goes to another slot, if there is one

    def take(self, slot: str) -> tuple[Task, ...]:
        """Remove and return the cells of the slot's next shard; () if the queue has no cell for this slot."""
        if own := self.own.pop(slot, None):
            return tuple(own)
        for loser, task in self.lost:
            if loser != slot or len(self.slots) == 1:
                self.lost.remove((loser, task))
                return (task,)
        if not self.fresh:
            return ()
        rest = sorted(self.fresh, key=lambda task: (-task.seconds, task.cell))
        fair = sum(task.seconds for task in rest) / len(self.slots)
        room = min(_MOST_SECONDS, fair if (1 - _PART) * fair <= self._start_up else _PART * fair)
        taken = [rest[0]]
        room -= rest[0].seconds
        for task in sorted(rest[1:], key=lambda task: task.kernel != rest[0].kernel):
            if task.seconds <= room:
                taken.append(task)
                room -= task.seconds
        self.fresh = [task for task in rest if task not in taken]
        return tuple(taken)

    def share(self, taken: Sequence[Task], slot: str) -> float:
        """Return the part (0 to 1) of the slot's remaining time that the cells `taken` get."""
        mine = sum(task.seconds for task in taken)
        others = sum(task.seconds for task in (*self.fresh, *(task for _, task in self.lost)))
        rest = others / max(1, len(self.slots)) + sum(task.seconds for task in self.own.get(slot, ()))
        return mine / (mine + rest) if mine + rest > 0 else 1.0


def coordinate(plan: Plan, record: Record, executor: Executor, place: RunContext) -> Iterator[Item]:
    """Yield results as shards send them, until every cell is decided or every slot's budget is spent. Adds machines,
    lost shards and changed files to `record`. Raises AbprofError if no shard could begin."""
    work = _Coordinator(plan, record, executor, place)
    while work.submit():
        for number, message in executor.news(_LISTEN):
            yield from work.receive(number, message)


@dataclass
class _Live:
    shard: Shard
    slot: str
    tasks: Sequence[Task]
    ended: Ended | None = None
    torn: str = ""  # why a message cannot be read; "": all could be read

    def fault(self, lost: Lost) -> str:
        """Return why the shard counts as lost; "" if it ended as it should. `lost`: how its process ended."""
        if self.torn or (self.ended and self.ended.why == "done"):
            return self.torn
        return self.ended.reason if self.ended and self.ended.why == "refused" else lost.reason


class _Coordinator:
    def __init__(self, plan: Plan, record: Record, executor: Executor, place: RunContext) -> None:
        self._plan, self._record, self._executor, self._place = plan, record, executor, place
        self._live: dict[int, _Live] = {}
        self._left = dict.fromkeys(executor.slots(), place.options.budget)  # slot -> seconds of measuring
        self._losses = dict.fromkeys(self._left, 0)  # slot -> shards lost in a row
        self._any_began = False
        self._reopened: dict[str, int] = {}  # cell -> its epochs when it went back to its device
        self._arms = dict(plan.arms)
        self._controlled: dict[str, set[str]] = {}  # slot -> its cells with a control
        judge = Path(next(iter(plan.factory.workloads.values()))).parent
        self._judge = f"{judge} sha256:{workload_files.content(judge)}"  # computed before code under test runs
        numbers = (*(block.shard for block in record.blocks), *(loss.shard for loss in record.head.losses))
        self._number = max(numbers, default=0)
        run, about = plan.run, Estimate(plan.run)
        epochs = 1 if run.options.quick else run.options.epochs or LOOKS[0]
        self._tasks = {
            cell.id: Task(cell.id, cell.kernel, epochs * about.cell(cell, len(plan.arms[cell.id])))
            for cell in run.cells
            if cell.id in plan.arms
        }
        self._queue = Queue(self._left, about.start_up)
        owing = self._owed()
        if not executor.lasting:  # cells are measured again whole: only interrupted follow-ups are owed
            owing &= {block.cell for block in record.blocks if block.metric == SUSTAINED}
        todo = (record.wanted() | owing) & self._tasks.keys()
        self._drop_elsewhere(todo)
        homes = self._homes()
        for cell in todo:
            queue = self._queue.own.setdefault(homes[cell], []) if cell in homes else self._queue.fresh
            queue.append(self._tasks[cell])

    def submit(self) -> bool:
        """Give every free slot a shard. Return whether any shard is running; if not, the run is done."""
        busy = {live.slot for live in self._live.values()}
        for slot in [slot for slot in self._queue.slots if slot not in busy]:
            least: dict[str, int] = {}
            taken = self._queue.take(slot)
            if not taken:
                least = self._undecided(slot)
                taken = tuple(self._tasks[cell] for cell in sorted(least))
            if taken:
                shard = self._shard(taken, slot, self._left[slot] * self._queue.share(taken, slot), least)
                self._live[shard.number] = _Live(shard, slot, taken)
                self._executor.submit(shard, slot)
        return bool(self._live)

    def receive(self, number: int, message: bytes | Lost) -> Iterator[Item]:
        """Handle a message of shard `number`, or the end of its process. Yield the result in the message, if any."""
        live, record = self._live[number], self._record
        if isinstance(message, Lost):
            del self._live[number]
            if fault := live.fault(message):
                yield from self._lost(live, fault)
            else:
                assert live.ended
                self._left[live.slot] -= live.ended.seconds
                self._losses[live.slot] = 0
            return
        try:
            news = read_news(message)
        except ValueError as error:
            live.torn = live.torn or str(error)
            return
        if news.placed:
            self._any_began = True
            machine = news.placed.machine
            if {build.key for build in machine.builds} <= {build.key for build in record.head.builds}:
                machine = msgspec.structs.replace(machine, builds=())
            record.placed(news.placed.device, machine)
        if news.touched:
            record.note([news.touched])
        if news.line:
            record.view.say(f"[{live.slot}] {news.line}")
        if news.warning:
            record.view.warn(f"[{live.slot}] {news.warning}")
        live.ended = news.ended
        yield from (item for item in (news.proof, news.kernel) if item)
        if news.block:  # a log is named by its path under the run's logs/
            outcomes = {
                arm: msgspec.structs.replace(outcome, log=f"shard-{number}/{outcome.log}") if outcome.log else outcome
                for arm, outcome in news.block.outcomes.items()
            }
            yield msgspec.structs.replace(news.block, outcomes=outcomes)

    # ---------------------------------------------------------------- what is measured again

    def _homes(self) -> dict[str, str]:
        return {block.cell: block.device for block in self._record.blocks if block.device in self._left}

    def _drop_elsewhere(self, todo: set[str]) -> None:
        """Drop the blocks of cells in `todo` that were measured on a device which this run may not get again. Raises
        AbprofError if an earlier invocation measured them, because its blocks are kept."""
        record, here = self._record, self._left if self._executor.lasting else {}
        away = {block.cell: block.device for block in record.blocks if block.cell in todo and block.metric}
        away = {cell: device for cell, device in away.items() if device not in here}
        earlier = [block.cell for block in record.blocks[: record.older] if block.cell in away]
        if earlier or (away and "" in away.values()):
            what = f"{next(iter(earlier or away))} was measured on a device that this run does not have"
            raise AbprofError(what, advice="all rounds of a cell come from one device: start a new run")
        for device in sorted(set(away.values())):
            self._void(device, {cell for cell, home in away.items() if home == device}, "its device is another's now")

    def _undecided(self, slot: str) -> dict[str, int]:
        """Return cell -> epochs to its next look, for undecided cells of the slot's device; {} if no time is left."""
        if not self._executor.lasting or self._left[slot] <= 0:
            return {}
        record, homes = self._record, self._homes()
        mine = {cell for cell in record.wanted() & self._plan.arms.keys() if homes.get(cell) == slot}
        counts = epochs_counted(record.head, record.own_blocks, record.proofs) if mine else {}
        grown = {cell for cell in mine if counts[cell] != self._reopened.get(cell)}  # others had no time for an epoch
        self._reopened |= {cell: counts[cell] for cell in grown}
        return {cell: next((look - counts[cell] for look in LOOKS if look > counts[cell]), 0) for cell in grown}

    def _owed(self) -> set[str]:
        """Return the ids of measured cells that still lack their slices without pauses or their profiled pass."""
        begun = {block.cell for block in self._record.blocks if block.metric}
        return begun & self._plan.owed(self._record.blocks) if begun else set()

    # ---------------------------------------------------------------- losses

    def _lost(self, live: _Live, reason: str) -> Iterator[Item]:
        open_ = {task.cell for task in live.tasks}
        if not live.torn:  # an unreadable message may be a failed check of loaded files: no cell of such a shard stands
            tried = {task.cell for task in live.tasks if task.again}
            open_ &= self._record.wanted() | (self._owed() - tried)
        warn = self._record.view.warn
        warn(f"shard {live.shard.number} on {live.slot} was lost ({reason}); cells to run again: {len(open_)}")
        self._void(live.slot, open_, reason)
        for task in live.tasks:
            if task.cell in open_ and not task.again:
                self._queue.lost.append((live.slot, replace(task, again=True)))
            elif task.cell in open_:
                if not self._any_began:
                    raise AbprofError(reason, where=live.slot, advice="no shard could be measured")
                why = f"2 shards with this cell were lost; the last: {reason}"
                arms = self._plan.arms[task.cell]
                yield Block.unmeasured(task.cell, arms, {arm.id: Outcome(status="crash", reason=why) for arm in arms})
        self._losses[live.slot] += 1
        if self._losses[live.slot] >= _LOSSES_IN_A_ROW and len(self._queue.slots) > 1:
            warn(f"{live.slot} lost {self._losses[live.slot]} shards in a row and gets no further shard")
            del self._queue.slots[live.slot]

    def _void(self, slot: str, cells: set[str], reason: str) -> None:
        """Drop this invocation's blocks of `cells`, so that all epochs of these cells are measured again."""
        by_shard: dict[int, set[str]] = {}
        for block in self._record.own_blocks:
            if block.cell in cells and block.shard:
                by_shard.setdefault(block.shard, set()).add(block.cell)
        losses = [Loss(shard=n, device=slot, cells=tuple(sorted(c)), reason=reason) for n, c in by_shard.items()]
        self._record.lost(losses)

    # ---------------------------------------------------------------- shards

    def _shard(self, tasks: Sequence[Task], slot: str, budget: float, least: Mapping[str, int]) -> Shard:
        self._number += 1
        record, ids = self._record, [task.cell for task in tasks]
        self._add_controls(tasks, slot)
        known = [block for block in record.blocks if block.cell in ids]
        mine = [block for block in record.own_blocks if block.cell in ids]
        machine = record.head.machines.get(slot)
        return Shard(
            number=self._number,
            run=msgspec.structs.replace(
                _without_results(record.head),
                cells=tuple(cell for cell in self._plan.run.cells if cell.id in ids),
                ceilings=machine.ceilings if machine else None,
                workloads_from=self._judge,
            ),
            file=self._place.file,
            arms={id: self._arms[id] for id in ids},
            identical=tuple(id for id in ids if id in self._plan.identical),
            blocks=tuple(mine),
            earlier=tuple(b for b in known if b.metric and not b.judged and not b.beside and b not in mine),
            first=1 + max((block.epoch for block in known), default=0),
            least=dict(least),
            budget=budget,
            repository=str(self._place.repository.path),
            logs=str(record.folder.logs.absolute() / f"shard-{self._number}"),
        )

    def _add_controls(self, tasks: Sequence[Task], slot: str) -> None:
        """Give the shortest of `tasks` a control until the slot has `_CONTROLS` of them; none if the run has none."""
        mine = self._controlled.setdefault(slot, set())
        mine |= {task.cell for task in tasks if _has_control(self._arms[task.cell])}
        if not _has_control(self._record.head.arms):
            return
        cheapest = sorted((task for task in tasks if task.cell not in mine), key=lambda task: (task.seconds, task.cell))
        for id in [task.cell for task in cheapest[: max(0, _CONTROLS - len(mine))]]:
            variant = next(arm.variant for arm in self._arms[id] if not arm.peer)
            arm = Arm(id=f"control:{variant}" if variant else "control", side="control", variant=variant)
            self._arms[id] = (*self._arms[id], arm)
            self._record.knows(arm)
            mine.add(id)


def _has_control(arms: Sequence[Arm]) -> bool:
    return any(arm.side == "control" for arm in arms)


def _without_results(run: Run) -> Run:
    lists = (
        *("losses", "notes", "touched", "observations", "comparisons", "within", "controls", "proofs", "kernels"),
        *("traces", "profiles", "sampled", "warnings"),
    )
    return msgspec.structs.replace(run, status="running", machines={}, header=None, **dict.fromkeys(lists, ()))
