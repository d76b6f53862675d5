"""Which cells make a shard, and which shard a free slot takes next. Pure: no clock, no process, no folder.

A shard is made in the moment when a slot is free, so it rests on what is left then, not on a plan that estimates would
have had to be right for. The rules:

- **Longest first.** A shard begins with the longest cell that is left anywhere, and is filled with the longest that still
  fit. So what is left for the end is short, and slots end together (Graham 1969). Of cells of like length it takes any: else
  one shard would be made of those that were estimated too long, and the last one of those that take longer than thought.
- **In shards that shrink** (factoring: Hummel, Schonberg, Flynn, CACM 1992). If every estimate were right all slots would end
  at one moment. A shard fills its slot's time until then, less what estimates that are wrong by `error` may take more; so
  that the next one can even out. Where that would even out less than a start-up costs, it fills all of it.
- **Packages stay together.** A shard is filled from its first cell's package; another one joins only where its start-up
  fits into what is still free.
- **A loss is bounded.** No shard of several cells is longer than `most` seconds, by default 900 or 100 start-ups. What comes
  back from one that was lost goes out in shards of the square root of its cells, and the next time alone: a cell that takes
  its whole shard down is found with two further attempts, and takes no other cell with it.
- **Every slot has light cells** where that is asked for: whatever must be measured on each slot beside its cells (a control,
  abprof/fleet/packing.py) is best added to cells that cost little. So a slot's first shard has some of the shortest of its first
  cell's package.
- **Estimates are corrected by what shards took**, package by package, as they end.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

# Seconds of a shard of several cells, by their estimates: what a lost node may cost; and where starting takes long, so many
# start-ups, which are paid by every shard where a loss is rare.
MOST_SECONDS, MOST_START_UPS = 900.0, 100.0
_DEARER = 4.0  # a slot's longest cell than its light ones, or it has none: a control on it would cost half of it
_ALIKE = 3.0  # of cells whose estimates are within this factor a shard takes any, while it has room for several


@dataclass(frozen=True)
class Task:
    """A cell that is to be measured."""

    cell: str
    kernel: str  # the package: its start-up is paid once a shard
    seconds: float  # all its epochs on a slot of speed 1, without start-up
    attempt: int = 1
    together: int = 0  # cells of a shard, at most; 0: as many as its seconds allow


@dataclass(frozen=True)
class Error:
    """By how much estimates are wrong, as a share of them (one standard deviation)."""

    cell: float  # of one cell by itself: it evens out over a shard's cells
    common: float  # of all cells of a shard together: it does not


SEEN_BEFORE = Error(0.2, 0.05)  # what earlier runs of these cells took
ASSUMED = Error(0.6, 0.3)  # a device's rate and the cells' work (abprof/measure/estimate.py)


@dataclass(frozen=True)
class StartUp:
    """Seconds before a shard's first turn, for each package beyond its first, and once before a slot's first shard."""

    shard: float
    package: float
    slot: float = 0.0


Group = tuple[str, int, int]  # package, attempt, together: what may be in one shard, but for the package


class Queue:
    """The cells that no shard has yet, and until when each slot is taken."""

    def __init__(
        self,
        tasks: Iterable[Task],
        slots: Mapping[str, float],
        start_up: StartUp,
        *,
        most: float | None = None,
        error: Error = SEEN_BEFORE,
        light: int = 0,
    ) -> None:
        """`slots`: name -> speed, 1.0 where nothing is known of it; `light`: of the shortest cells a slot's first shard has so
        many. Raises ValueError without slots, on a speed that is not above zero, and on seconds that are negative or not
        finite."""
        if not slots or min(slots.values()) <= 0:
            raise ValueError("a schedule needs slots, each with a speed above zero")
        self._slots = dict(slots)
        self._until = dict.fromkeys(slots, -math.inf)  # when each will be free again, if its estimates are right
        self._begun: set[str] = set()  # slots that had a shard
        self._start_up = start_up
        self._most = max(MOST_SECONDS, MOST_START_UPS * start_up.shard) if most is None else most
        self._error, self._light = error, light
        self._any = random.Random(0)
        self._left: dict[Group, list[Task]] = {}  # shortest first
        self._estimated: dict[str, float] = {}  # package -> seconds of what is left
        self._seen: dict[str, tuple[float, float]] = {}  # package -> seconds estimated and taken, of shards that ended
        self._add(tasks)

    def __len__(self) -> int:
        """Cells that no shard has yet."""
        return sum(map(len, self._left.values()))

    @property
    def seconds(self) -> float:
        """Of these cells, on slots of speed 1 and without start-up: as estimated, and corrected by what shards took."""
        return math.fsum(seconds * self._pace(kernel) for kernel, seconds in self._estimated.items())

    def take(self, slot: str, now: float) -> tuple[Task, ...]:
        """The next shard for a slot that is free, longest cell first; () when no cell is left. `now`: seconds on any clock
        that does not go back. Raises KeyError for a slot that is not known or has gone."""
        speed = self._slots[slot]
        self._until[slot] = now
        if not self._left:
            return ()
        left = self._end(now) - now
        late = self._late(left * speed)
        last = late * left <= self._start_up.shard
        room = min(left if last else left / (1 + late), self._most) * speed
        taken = self._fill(room, last=last, light=0 if slot in self._begun else self._light)
        paced = [replace(task, seconds=task.seconds * self._pace(task.kernel)) for task in taken]
        self._until[slot] = now + seconds(paced, self._start_up, speed, first=slot not in self._begun)
        self._begun.add(slot)
        return taken

    def more(self, tasks: Iterable[Task]) -> None:
        """Cells that can be measured from now on. Raises ValueError as the constructor does."""
        self._add(tasks)

    def took(self, tasks: Iterable[Task], seconds: float) -> None:
        """A shard of these cells ended, which took its slot so many seconds, times the slot's speed, without its start-up.
        One of several packages teaches nothing."""
        ended = list(tasks)
        kernels = {task.kernel for task in ended}
        if len(kernels) == 1:
            kernel = kernels.pop()
            estimated, taken = self._seen.get(kernel, (0.0, 0.0))
            self._seen[kernel] = (estimated + math.fsum(task.seconds for task in ended), taken + max(0.0, seconds))

    def back(self, tasks: Iterable[Task]) -> None:
        """Cells of one shard that was lost, to be run again whole: in smaller shards, the second time alone."""
        lost = list(tasks)
        few = math.isqrt(max(0, len(lost) - 1)) + 1  # the square root, rounded up
        self._add(replace(t, attempt=t.attempt + 1, together=few if t.attempt == 1 else 1) for t in lost)

    def joined(self, slot: str, speed: float = 1.0) -> None:
        """A slot that was not there before. Raises ValueError for a speed that is not above zero."""
        if speed <= 0:
            raise ValueError(f"{slot}: a speed above zero is needed, not {speed}")
        self._slots[slot], self._until[slot] = speed, -math.inf

    def gone(self, slot: str) -> None:
        """A slot takes no more shards. Raises KeyError for one that is not known or has gone."""
        del self._slots[slot], self._until[slot]

    def _add(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if not 0 <= task.seconds < math.inf:
                raise ValueError(f"{task.cell}: seconds must be finite and not negative, not {task.seconds}")
            self._left.setdefault((task.kernel, task.attempt, task.together), []).append(task)
        for each in self._left.values():
            each.sort(key=_order)
        self._estimated = {}
        for (kernel, *_), each in self._left.items():
            self._estimated[kernel] = self._estimated.get(kernel, 0.0) + math.fsum(task.seconds for task in each)

    def _pace(self, kernel: str) -> float:
        """Seconds that a second of this package's estimates takes; 1 until one of its shards has ended."""
        estimated, taken = self._seen.get(kernel, (0.0, 0.0))
        return taken / estimated if estimated and taken else 1.0

    def _end(self, now: float) -> float:
        """When all would be measured, every slot ending at that moment, but those that are taken for longer."""
        left, free = self.seconds, {slot: max(now, until) for slot, until in self._until.items()}
        while True:
            speeds = sum(self._slots[slot] for slot in free)
            end = (left + sum(self._slots[slot] * since for slot, since in free.items())) / speeds
            sooner = {slot: since for slot, since in free.items() if since <= end}
            if len(sooner) in {len(free), 0}:
                return end
            free = sooner

    def _late(self, room: float) -> float:
        """By how much the latest slot's shard of so many seconds ends late, as a share of them: the greatest of so many
        normal deviates is expected below sqrt(2 log slots) standard deviations."""
        cells = max(1.0, room / self.seconds * len(self)) if self.seconds else 1.0
        deviation = math.hypot(self._error.common, self._error.cell / math.sqrt(cells))
        return math.sqrt(2 * math.log(max(2, len(self._slots)))) * deviation

    def _fill(self, room: float, *, last: bool, light: int) -> tuple[Task, ...]:
        first = max(self._left, key=self._longest)
        limit = first[2] or len(self)
        taken = [self._pop(first, -1)]
        while first in self._left and len(taken) < min(limit, 1 + light):
            if self._left[first][0].seconds > taken[0].seconds / _DEARER:
                break
            taken.append(self._pop(first, 0))
        room -= math.fsum(task.seconds for task in taken) * self._pace(first[0])
        others = [group for group in self._left if group != first and group[1:] == first[1:]]
        for group in [first, *sorted(others, key=self._longest, reverse=True)]:
            gap = room if group == first else room - self._start_up.package
            more, left = self._fitting(group, gap, limit - len(taken), last=last)
            taken += more
            room = left if more else room
        # A cell that is left over would cost a start-up by itself: the last shards round to the nearest, all others down.
        if last and len(taken) < limit:
            here = [(kernel, *first[1:]) for kernel in dict.fromkeys(task.kernel for task in taken)]
            near = [g for g in here if g in self._left and self._left[g][0].seconds * self._pace(g[0]) <= 2 * room]
            taken += [self._pop(near[0], 0)] if near else []
        return tuple(taken)

    def _fitting(self, group: Group, gap: float, limit: int, *, last: bool) -> tuple[list[Task], float]:
        """The longest cells of a package that fit into the gap, to what estimates can tell; and what is left of it."""
        pace, found = self._pace(group[0]), list[Task]()
        while group in self._left and len(found) < limit:
            tasks = self._left[group]
            end = bisect.bisect_right(tasks, gap / pace, key=_seconds)
            if not end:
                break
            longest = tasks[end - 1].seconds
            few = last or gap < 2 * longest * pace * _ALIKE  # the last ones have to fit
            begin = end - 1 if few else bisect.bisect_left(tasks, longest / _ALIKE, 0, end, key=_seconds)
            found.append(self._pop(group, self._any.randrange(begin, end)))
            gap -= found[-1].seconds * pace
        return found, gap

    def _longest(self, group: Group) -> tuple[float, str]:
        task = self._left[group][-1]
        return task.seconds * self._pace(task.kernel), task.cell

    def _pop(self, group: Group, at: int) -> Task:
        tasks = self._left[group]
        task = tasks.pop(at)
        if not tasks:
            del self._left[group]
        self._estimated[task.kernel] = max(0.0, self._estimated[task.kernel] - task.seconds) if self._left else 0.0
        return task


def shards(
    tasks: Iterable[Task],
    slots: Mapping[str, float],
    start_up: StartUp,
    *,
    most: float | None = None,
    error: Error = SEEN_BEFORE,
) -> list[tuple[Task, ...]]:
    """All shards beforehand, longest first, as the slots would take them if every estimate were right: for a place that
    wants to know them all, as an array of jobs does."""
    queue = Queue(tasks, slots, start_up, most=most, error=error)
    return [shard for shard, _ in _played(queue, slots, start_up)]


def end(tasks: Iterable[Task], slots: Mapping[str, float], start_up: StartUp) -> float:
    """Seconds until the last slot has measured its last shard, if every estimate is right."""
    return max((at for _, at in _played(Queue(tasks, slots, start_up), slots, start_up)), default=0.0)


def _played(queue: Queue, slots: Mapping[str, float], start_up: StartUp) -> Iterator[tuple[tuple[Task, ...], float]]:
    """Each shard, and when it ends."""
    free = dict.fromkeys(slots, 0.0)
    while len(queue):
        slot = min(free, key=lambda name: free[name])
        shard = queue.take(slot, free[slot])
        free[slot] += seconds(shard, start_up, slots[slot], first=not free[slot])
        yield shard, free[slot]


def seconds(shard: Iterable[Task], start_up: StartUp, speed: float = 1.0, *, first: bool = False) -> float:
    """How long a shard takes on a slot of this speed, whose `first` it may be, by its cells' estimates."""
    tasks = list(shard)
    packages = len({task.kernel for task in tasks})
    started = start_up.shard + start_up.package * max(0, packages - 1) if tasks else 0.0
    started += start_up.slot if first and tasks else 0.0
    return started + math.fsum(task.seconds for task in tasks) / speed


def _seconds(task: Task) -> float:
    return task.seconds


def _order(task: Task) -> tuple[float, str]:
    return task.seconds, task.cell
