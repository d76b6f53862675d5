"""Queue of whole cells, longest first. Pure: no clock, no process, no folder.

A free slot first takes cells whose blocks are of its own device, then cells that another slot lost (one at a time, so that a
cell that kills its shard takes no other with it), then a shard of fresh cells: the longest one left, filled up with the longest
that still fit, those of the same kernel package first. A shard fills most of its slot's fair share of the time left, so that the
next ones even out estimates that were wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from abprof.measure import estimate, turns
from abprof.verdict import stats

_MOST_SECONDS = 900.0  # of a shard of several cells: what one lost shard may cost
_PART = 0.7  # of a slot's fair share that a shard fills, unless the rest would not be worth a start-up


@dataclass(frozen=True)
class Task:
    """A cell to measure."""

    cell: str
    kernel: str
    seconds: float  # estimate for all its epochs, without start-up
    attempt: int = 1


@dataclass(frozen=True)
class StartUp:
    """Seconds before a shard's first turn, and for each kernel package beyond its first."""

    shard: float
    package: float


def start_up(kind: str, *, kept: bool) -> StartUp:
    """The cost of a shard on this kind of device. `kept`: its process starts once for all shards of a slot."""
    workers = turns.epoch_cost(kind, 0)[0] + (stats.LOOKS[0] - 1) * estimate.RESTART[kind]
    return StartUp(workers if kept else estimate.PROGRAM[kind] + workers, workers)


class Queue:
    """Cells without a shard, and the slots that may take them."""

    def __init__(self, slots: Iterable[str], start_up: StartUp) -> None:
        self.slots = dict.fromkeys(slots)
        self._start_up = start_up
        self._fresh: list[Task] = []  # longest first
        self._own: dict[str, list[Task]] = {}  # slot -> cells whose blocks are of its device
        self._lost: list[tuple[str, Task]] = []  # slot that lost it, cell

    def add(self, tasks: Iterable[Task]) -> None:
        """Add cells that any slot may take."""
        self._fresh = sorted([*self._fresh, *tasks], key=lambda task: (-task.seconds, task.cell))

    def add_own(self, slot: str, tasks: Iterable[Task]) -> None:
        """Add cells that only this slot may take, together."""
        self._own.setdefault(slot, []).extend(tasks)

    def retry(self, slot: str, tasks: Iterable[Task]) -> None:
        """Add cells that this slot lost; another slot takes them while there is one."""
        self._lost += [(slot, replace(task, attempt=task.attempt + 1)) for task in tasks]

    def drop_slot(self, slot: str) -> None:
        """Give this slot no further cells."""
        del self.slots[slot]

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
        room = min(_MOST_SECONDS, fair if (1 - _PART) * fair <= self._start_up.shard else _PART * fair)
        first = self._fresh[0]
        taken, kernels = [first], {first.kernel}
        room -= first.seconds
        for task in sorted(self._fresh[1:], key=lambda task: task.kernel != first.kernel):
            cost = task.seconds + (0.0 if task.kernel in kernels else self._start_up.package)
            if cost <= room:
                taken.append(task)
                kernels.add(task.kernel)
                room -= cost
        gone = set(taken)
        self._fresh = [task for task in self._fresh if task not in gone]
        return tuple(taken)
