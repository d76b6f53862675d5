"""Coordinator of a run that is spread over several slots: submits shards to free slots, records their news, reruns what is lost.

A shard decides by itself when its cells are done. Verdicts follow from all cells together, so a cell that they leave open goes
back to the device that measured it, if that device has time left.

The queue holds whole cells, longest first. A free slot first takes cells whose blocks are of its own device, then cells that
another slot lost (one at a time, so that a cell that kills its shard takes no other with it), then a shard of fresh cells: the
longest one left, filled up with the longest that still fit, those of the same kernel package first. A shard fills most of its
slot's fair share of the time left, so that the next ones even out estimates that were wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from abprof.fleet.messages import (
    Began,
    Ended,
    Executor,
    Loaded,
    Lost,
    Measured,
    Noticed,
    Proved,
    Said,
    Shard,
    read_news,
)
from abprof.measure import Plan, RunContext, discovery, estimate, timers, turns
from abprof.measure.epoch_loop import Item
from abprof.measure.followup import owed
from abprof.measure.plan import unmeasured
from abprof.records import SUSTAINED, Arm, Block, Loss, Outcome, Run
from abprof.records.errors import AbprofError
from abprof.store import Record
from abprof.verdict import epochs_counted, stats

_MOST_SECONDS = 900.0  # of a shard of several cells: what one lost shard may cost
_PART = 0.7  # of a slot's fair share that a shard fills, unless the rest would not be worth a start-up


@dataclass(frozen=True)
class Task:
    """A cell to measure."""

    cell: str
    kernel: str
    seconds: float  # estimate for all its epochs, without start-up
    attempt: int = 1


class Queue:
    """Cells without a shard, and the slots that may take them."""

    def __init__(self, slots: Iterable[str], kind: str, *, kept: bool) -> None:
        """`kind`: of the devices. `kept`: a shard's process starts once for all shards of a slot."""
        self.slots = dict.fromkeys(slots)
        # Seconds for each kernel package of a shard beyond its first, and before its first turn.
        self._package = turns.epoch_cost(kind, 0)[0] + (stats.LOOKS[0] - 1) * estimate.RESTART[kind]
        self._start_up = self._package if kept else estimate.PROGRAM[kind] + self._package
        self._fresh: list[Task] = []  # longest first
        self._own: dict[str, list[Task]] = {}  # slot -> cells whose blocks are of its device
        self._lost: list[tuple[str, Task]] = []  # slot that lost it, cell

    def add(self, tasks: Iterable[Task]) -> None:
        """Add cells that any slot may take."""
        self._fresh = sorted([*self._fresh, *tasks], key=lambda task: (-task.seconds, task.cell))

    def add_own(self, slot: str, task: Task) -> None:
        """Add a cell that only this slot may take; it takes all of its own together."""
        self._own.setdefault(slot, []).append(task)

    def retry(self, slot: str, tasks: Iterable[Task]) -> None:
        """Add cells that this slot lost; another slot takes them while there is one."""
        self._lost += [(slot, replace(task, attempt=task.attempt + 1)) for task in tasks]

    def take(self, slot: str) -> tuple[Task, ...]:
        """Remove and return the slot's next shard; () if there is nothing for it."""
        if own := self._own.pop(slot, None):
            return tuple(own)
        for at, (loser, task) in enumerate(self._lost):
            if loser != slot or len(self.slots) == 1:
                del self._lost[at]
                return (task,)
        return self._take_fresh() if self._fresh else ()

    def share(self, taken: Sequence[Task], slot: str) -> float:
        """Return the part of the slot's remaining time that these cells get."""
        mine = sum(task.seconds for task in taken)
        others = sum(task.seconds for task in (*self._fresh, *(task for _, task in self._lost)))
        rest = others / max(1, len(self.slots)) + sum(task.seconds for task in self._own.get(slot, ()))
        return mine / (mine + rest) if mine + rest > 0 else 1.0

    def _take_fresh(self) -> tuple[Task, ...]:
        fair = sum(task.seconds for task in self._fresh) / len(self.slots)
        room = min(_MOST_SECONDS, fair if (1 - _PART) * fair <= self._start_up else _PART * fair)
        first = self._fresh[0]
        taken, kernels = [first], {first.kernel}
        room -= first.seconds
        for task in sorted(self._fresh[1:], key=lambda task: task.kernel != first.kernel):
            cost = task.seconds + (0.0 if task.kernel in kernels else self._package)
            if cost <= room:
                taken.append(task)
                kernels.add(task.kernel)
                room -= cost
        gone = set(taken)
        self._fresh = [task for task in self._fresh if task not in gone]
        return tuple(taken)


# ---------------------------------------------------------------- the coordinator

MOST_ATTEMPTS = 3  # shards that one cell may lose
_CONTROLS = 2  # cells of each device that get a control, at least
_LISTEN = 1.0  # seconds that one look for news waits
_LOSSES_IN_A_ROW = 2  # a slot with so many gets no further shard while there is another slot


def coordinate(plan: Plan, record: Record, executor: Executor, place: RunContext) -> Iterator[Item]:
    """Yield blocks, proofs and kernels as they arrive, until every cell is decided or every slot's budget is spent.

    Writes machines, losses and changed files into the record at once. Raises AbprofError if no shard could begin.
    """
    work = _Coordinator(plan, record, executor, place)
    while work.submit():
        for number, message in executor.news(_LISTEN):
            yield from work.receive(number, message)


@dataclass
class _Live:
    """A submitted shard, and the news of it so far."""

    shard: Shard
    slot: str
    tasks: Sequence[Task]
    ended: Ended | None = None
    lines: int = 0
    torn: str = ""  # why its news cannot be read

    def fault(self, lost: Lost) -> str:
        """Why the shard is lost; "" if it ended in an orderly way and all its news arrived."""
        ended = self.ended
        if self.torn:
            return self.torn
        if ended and ended.why == "refused":
            return ended.reason
        if ended and ended.lines > self.lines:
            return f"news lines missing: {ended.lines - self.lines}"
        if ended and ended.lines < self.lines:
            return f"news lines received twice: {self.lines - ended.lines}"
        return "" if ended and ended.why == "done" else lost.reason


class _Coordinator:
    """State of one spread run."""

    def __init__(self, plan: Plan, record: Record, executor: Executor, place: RunContext) -> None:
        self._plan, self._record, self._executor, self._place = plan, record, executor, place
        self._shards = _ShardMaker(plan, record, place)
        self._live: dict[int, _Live] = {}
        self._left = dict.fromkeys(executor.slots(), place.options.budget)  # seconds of measuring
        self._losses = dict.fromkeys(self._left, 0)  # in a row
        self._any_began = False
        self._least: dict[str, int] = {}  # cell -> epochs that its next shard gives it
        self._ended = 0  # shards
        self._looked: dict[str, int] = {}  # slot -> `_ended` when its open cells were last looked at
        self._open_at, self._open = -1, dict[str, set[str]]()  # `_ended` at the last verdicts, and slot -> open cells
        run = plan.run
        epochs = 1 if run.options.quick else run.options.epochs or stats.LOOKS[0]
        self._tasks = {
            cell.id: Task(cell.id, cell.kernel, epochs * estimate.cell_seconds(run, cell, len(plan.arms[cell.id]))[1])
            for cell in run.cells
            if cell.id in plan.arms
        }
        self._queue = Queue(self._left, plan.device.kind, kept=executor.lasting)
        todo = (record.wanted() | self._owed_here()) & self._tasks.keys()
        self._void_foreign(todo)
        homes = {cell: home for cell, home in self._homes().items() if cell in todo}
        self._queue.add(self._tasks[cell] for cell in todo - homes.keys())
        for cell, home in homes.items():
            self._queue.add_own(home, self._tasks[cell])

    def submit(self) -> bool:
        """Give every free slot a shard. Returns False when nothing is out and nothing is left."""
        busy = {live.slot for live in self._live.values()}
        for slot in [slot for slot in self._queue.slots if slot not in busy]:
            if taken := self._queue.take(slot) or self._reopened(slot):
                self._tasks |= {task.cell: task for task in taken}  # with their attempts
                budget = self._left[slot] * self._queue.share(taken, slot)
                shard = self._shards.make(taken, slot, budget, self._least)
                self._live[shard.number] = _Live(shard, slot, taken)
                self._executor.submit(shard, slot)
        return bool(self._live)

    def receive(self, number: int, message: bytes | Lost) -> Iterator[Item]:
        """Handle one line of a shard's news, or its end."""
        live = self._live.get(number)
        if live is None:
            return
        if isinstance(message, Lost):
            del self._live[number]
            self._ended += 1
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
        if isinstance(news, Ended):
            live.ended = news
            return
        live.lines += 1
        view = self._record.view
        match news:
            case Measured():
                yield _with_log_paths(news.block, number)
            case Proved():
                yield news.proof
            case Loaded():
                yield news.kernel
            case Noticed():
                self._record.note([news.touched])
            case Said():
                (view.warn if news.warning else view.say)(f"[{live.slot}] {news.line}")
            case Began():
                self._any_began = True
                same = {build.key for build in self._record.head.builds}
                others = () if all(build.key in same for build in news.builds) else news.builds
                machine = msgspec.structs.replace(news.machine, ceilings=news.ceilings, builds=others)
                self._record.placed(news.device, machine)

    # ---------------------------------------------------------------- what is measured again

    def _homes(self) -> dict[str, str]:
        """Cell -> the slot whose device measured its blocks."""
        return {block.cell: block.device for block in self._record.blocks if block.device in self._left}

    def _void_foreign(self, todo: set[str]) -> None:
        """Void blocks measured on a device that this run may not get again: those cells are measured anew.

        Raises AbprofError if such blocks are of an earlier invocation, which nothing voids.
        """
        record, here = self._record, self._left if self._executor.lasting else {}
        away = {block.cell: block.device for block in record.blocks if block.cell in todo and block.metric}
        away = {cell: device for cell, device in away.items() if device not in here}
        earlier = [block.cell for block in record.blocks[: record.older] if block.cell in away]
        if earlier or (away and "" in away.values()):
            what = f"{next(iter(earlier or away))} was measured on a device that this run does not have"
            raise AbprofError(what, advice="all rounds of a cell come from one device: start a new run")
        for device in sorted(set(away.values())):
            self._void(device, {cell for cell, home in away.items() if home == device}, "its device is another's now")

    def _reopened(self, slot: str) -> tuple[Task, ...]:
        """Cells that the verdicts leave open, which this slot has measured and has time for."""
        if not self._executor.lasting or self._looked.get(slot) == self._ended:
            return ()
        self._looked[slot] = self._ended
        if self._open_at != self._ended:  # verdicts take a millisecond a cell: once for all slots
            self._open_at, self._open, homes = self._ended, {}, self._homes()
            for cell in self._record.wanted() & self._plan.arms.keys() & homes.keys():
                self._open.setdefault(homes[cell], set()).add(cell)
        out = {cell.id for live in self._live.values() for cell in live.shard.run.cells}
        wanted = self._open.get(slot, set()) - out
        counts = epochs_counted(self._record.head, self._record.own_blocks, self._record.proofs) if wanted else {}
        least = {cell: next((look - counts[cell] for look in stats.LOOKS if look > counts[cell]), 0) for cell in wanted}
        if not wanted or self._epochs_cost(least) > self._left[slot]:
            return ()
        self._least |= least
        return tuple(self._tasks[cell] for cell in sorted(wanted))

    def _epochs_cost(self, epochs: Mapping[str, int]) -> float:
        """Seconds that so many more epochs of these cells take, by their epochs of this invocation."""
        seen: dict[str, tuple[set[int], list[float]]] = {cell: (set(), []) for cell in epochs}
        for block in self._record.blocks[self._record.older :]:
            if block.cell in seen and block.metric and block.judged:
                seen[block.cell][0].add(block.epoch)
                seen[block.cell][1].append(block.seconds)
        return sum(epochs[cell] * sum(seconds) / max(1, len(of)) for cell, (of, seconds) in seen.items())

    def _owed_here(self) -> set[str]:
        """Cells of a resumed run that lack a follow-up measurement. Without lasting slots these are measured anew, so there
        only cells whose sustained slices broke off."""
        owing = self._owed()
        if not self._executor.lasting:
            owing &= {block.cell for block in self._record.blocks if block.metric == SUSTAINED}
        return owing

    def _owed(self) -> set[str]:
        """Cells with rounds that lack a follow-up measurement."""
        begun = {block.cell for block in self._record.blocks if block.metric}
        return begun & owed(self._plan, self._record.blocks) if begun else set()

    # ---------------------------------------------------------------- losses

    def _lost(self, live: _Live, reason: str) -> Iterator[Item]:
        cells = {cell.id for cell in live.shard.run.cells}
        if live.torn or (live.ended and live.ended.lines != live.lines):
            # A missing line may be a proof, and a repeated one an epoch: no verdict from this shard stands.
            open_ = cells & self._plan.arms.keys()
        else:
            tried = {task.cell for task in live.tasks if task.attempt >= MOST_ATTEMPTS}
            open_ = cells & (self._record.wanted() | (self._owed() - tried))
        warn = self._record.view.warn
        warn(f"shard {live.shard.number} on {live.slot} was lost ({reason}); cells to run again: {len(open_)}")
        again = [task for task in live.tasks if task.cell in open_]
        self._void(live.slot, open_, reason)
        given_up = [task for task in again if task.attempt >= MOST_ATTEMPTS]
        if given_up and not self._any_began:
            raise AbprofError(reason, where=live.slot, advice="no shard could be measured")
        for task in given_up:
            cell = next(cell for cell in self._plan.run.cells if cell.id == task.cell)
            arms = self._plan.arms[task.cell]
            why = f"{MOST_ATTEMPTS} shards with this cell were lost; the last: {reason}"
            yield unmeasured(cell, arms, {arm.id: Outcome(status="crash", reason=why) for arm in arms})
        self._queue.retry(live.slot, [task for task in again if task.attempt < MOST_ATTEMPTS])
        self._losses[live.slot] += 1
        if self._losses[live.slot] >= _LOSSES_IN_A_ROW and len(self._queue.slots) > 1:
            warn(f"{live.slot} lost {self._losses[live.slot]} shards in a row and gets no more")
            del self._queue.slots[live.slot]

    def _void(self, slot: str, cells: set[str], reason: str) -> None:
        """Void these cells' blocks of this invocation: the cells run again whole."""
        by_shard: dict[int, set[str]] = {}
        for block in self._record.blocks[self._record.older :]:
            if block.cell in cells and block.shard:
                by_shard.setdefault(block.shard, set()).add(block.cell)
        self._record.lost(
            [Loss(shard=n, device=slot, cells=tuple(sorted(c)), reason=reason) for n, c in by_shard.items()]
        )
        for cell in cells:
            self._least.pop(cell, None)


class _ShardMaker:
    """Makes the run's shards, numbers them, and sees to it that every device measures controls."""

    def __init__(self, plan: Plan, record: Record, place: RunContext) -> None:
        self._plan, self._record, self._place = plan, record, place
        self._arms = dict(plan.arms)
        self._controlled: dict[str, set[str]] = {}  # slot -> its cells with a control
        judge = Path(next(iter(plan.factory.workloads.values()))).parent
        self._judge = f"{judge} sha256:{discovery.content(judge)}"  # taken before code under test runs
        numbers = (*(block.shard for block in record.blocks), *(loss.shard for loss in record.head.losses))
        self._number = max(numbers, default=0)

    def make(self, tasks: Sequence[Task], slot: str, budget: float, least: Mapping[str, int]) -> Shard:
        """Return the next shard, for this slot."""
        self._number += 1
        ids = [task.cell for task in tasks]
        self._add_controls(tasks, slot)
        known = [block for block in self._record.blocks if block.cell in ids]
        mine = [block for block in self._record.blocks[self._record.older :] if block.cell in ids]
        machine = self._record.head.machines.get(slot)
        return Shard(
            number=self._number,
            attempt=max(task.attempt for task in tasks),
            run=msgspec.structs.replace(
                _without_results(self._record.head),
                cells=tuple(cell for cell in self._plan.run.cells if cell.id in ids),
                ceilings=machine.ceilings if machine else None,
                workloads_from=self._judge,
            ),
            file=self._place.file,
            arms={id: self._arms[id] for id in ids},
            identical=tuple(id for id in ids if id in self._plan.identical),
            timers=timers.read_by(known),
            blocks=tuple(mine),
            earlier=tuple(b for b in known if b.metric and not b.judged and not b.beside and b not in mine),
            first=1 + max((block.epoch for block in known), default=0),
            least={id: least[id] for id in ids if id in least},
            budget=budget,
            repository=str(self._place.repository.path),
            logs=str(self._record.folder.logs),
        )

    def _add_controls(self, tasks: Sequence[Task], slot: str) -> None:
        """Give the cheapest of these cells a control, if the run has controls and this device has too few."""
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
    """The head as before the first turn."""
    lists = (
        *("losses", "notes", "touched", "observations", "comparisons", "within", "controls", "proofs", "kernels"),
        *("traces", "profiles", "sampled", "warnings"),
    )
    return msgspec.structs.replace(run, status="running", machines={}, header=None, **dict.fromkeys(lists, ()))


def _with_log_paths(block: Block, number: int) -> Block:
    """The block with its logs named by where they lie in the run's folder."""
    outcomes = {
        arm: msgspec.structs.replace(outcome, log=f"shard-{number}/{outcome.log}") if outcome.log else outcome
        for arm, outcome in block.outcomes.items()
    }
    return msgspec.structs.replace(block, outcomes=outcomes)
