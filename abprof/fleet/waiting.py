"""Which cells a free slot takes: those that it has begun, those that another slot lost, then what nobody has begun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from abprof.fleet.schedule import Error, Queue, StartUp, Task


class Waiting:
    """Cells without a shard."""

    def __init__(
        self, tasks: Iterable[Task], slots: Sequence[str], start_up: StartUp, error: Error, light: int = 0
    ) -> None:
        """`tasks`: cells that nobody has begun, with estimates that are wrong by `error`; `light` of them each slot needs."""
        self._slots = dict.fromkeys(slots, 1.0)
        self._start_up, self._error = start_up, error
        self._fresh = Queue(tasks, self._slots, start_up, error=error, light=light)
        self.coming = 0.0  # seconds of cells that cannot be measured yet, by their estimates
        self._own: dict[str, list[Task]] = {}  # slot -> cells whose blocks are of its device
        self._lost: dict[str, Queue] = {}  # slot -> cells that it lost

    def __len__(self) -> int:
        return len(self._fresh) + sum(map(len, self._own.values())) + sum(map(len, self._lost.values()))

    @property
    def slots(self) -> Sequence[str]:
        """Those that may take cells."""
        return tuple(self._slots)

    def share(self, taken: Sequence[Task], slot: str) -> float:
        """Of the time that the slot has left, the part that these cells should get."""
        mine = sum(task.seconds for task in taken)
        others = self.coming + self._fresh.seconds + sum(queue.seconds for queue in self._lost.values())
        rest = others / max(1, len(self._slots)) + sum(task.seconds for task in self._own.get(slot, ()))
        return mine / (mine + rest) if mine + rest > 0 else 1.0

    def take(self, slot: str, now: float) -> tuple[Task, ...]:
        """The next shard for it; () where nothing is for this slot. `now`: seconds of a clock that does not go back."""
        if own := self._own.pop(slot, None):
            return tuple(own)
        for loser, queue in self._lost.items():
            if len(queue) and (loser != slot or len(self._slots) == 1):
                return queue.take(slot, now)
        return self._fresh.take(slot, now)

    def took(self, tasks: Sequence[Task], seconds: float) -> None:
        """A shard of these cells ended after so many seconds of measuring: what is left may be estimated the better."""
        self._fresh.took(tasks, seconds)

    def more(self, tasks: Iterable[Task]) -> None:
        """Cells that can be measured from now on, and that nobody has begun."""
        self._fresh.more(tasks)

    def go_on(self, slot: str, tasks: Iterable[Task]) -> None:
        """More epochs of cells whose blocks are of this slot's device."""
        self._own.setdefault(slot, []).extend(tasks)

    def back(self, slot: str, tasks: Sequence[Task]) -> None:
        """Cells of one shard that this slot lost, to be run again whole, elsewhere where there is another slot."""
        self._lost.setdefault(slot, Queue((), self._slots, self._start_up, error=self._error)).back(tasks)

    def gone(self, slot: str) -> None:
        """It takes no more."""
        del self._slots[slot]
        for queue in (self._fresh, *self._lost.values()):
            queue.gone(slot)
