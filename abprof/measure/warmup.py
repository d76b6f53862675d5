"""What a package's workers load before a cell of theirs is timed: first calls import, load and compile.

All of them do it at once, and on a cheap cell: to be warm takes no long calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from abprof.measure.pool import Crew
from abprof.measure.timeouts import Hung
from abprof.records import Arm, Cell
from abprof.records import messages as wire

# ns: loading took an arm 0.1 to 0.3 s on an H200 (docs/MEASUREMENT.md); calls that all workers make at once wait for one another.
_DEAR = 2e8
Code = set[tuple[str, str, str]]


@dataclass
class Warming:
    """Of one package's part of an epoch."""

    crew: Crew
    cells: Sequence[Cell]
    arms: Mapping[str, Sequence[Arm]]  # cell -> those whose worker is there
    usual: Mapping[str, Mapping[str, float]]  # cell -> arm -> ns of a warm call, from earlier epochs
    hung: Hung
    number: int  # the epoch's
    seed: int
    loaded: Code = field(default_factory=set)

    def before(self, cell: Cell) -> None:
        """Have the workers load what this cell needs and none before it did. Where even the cheapest of such calls is known to be
        dear, the untimed one that each arm makes anyway costs less, one after the other."""
        if not _code(cell) <= self.loaded:
            cheapest = self.cheapest(cell)
            if max(self.usual.get(cheapest.id, {}).values(), default=0.0) < _DEAR:
                self.warm(cheapest)
            self.loaded |= _code(cell)

    def cheapest(self, like: Cell) -> Cell:
        """Of those that load the same code as this one in all its workers, and never failed."""

        def cost(cell: Cell) -> tuple[bool, float, float]:
            known = self.usual.get(cell.id, dict.fromkeys((arm.id for arm in self._own(cell)), 0.0))
            failed = any(arm.id not in known or self.hung.before(cell.id, arm) for arm in self._own(cell))
            return failed, max(known.values(), default=0.0), cell.flops or 0.0

        code, sides = _code(like), {arm.side for arm in self._own(like)}
        alike = (each for each in self.cells if _code(each) == code and sides <= {a.side for a in self._own(each)})
        return min(alike, key=cost)

    def warm(self, cell: Cell) -> None:
        """Each worker opens this cell once, but for what hung before; what hangs now is not asked again in this epoch."""
        arms = {arm.side: arm for arm in self._own(cell)}
        arms = {side: arm for side, arm in arms.items() if not self.hung.before(cell.id, arm)}
        for side in self.crew.warm({side: self._open(cell, arm) for side, arm in arms.items()}):
            self.hung.note(cell.id, arms[side], self.number)

    def _own(self, cell: Cell) -> list[Arm]:
        return [arm for arm in self.arms[cell.id] if not arm.peer]

    def _open(self, cell: Cell, arm: Arm) -> wire.Open:
        return wire.Open(cell.workload, dict(cell.params), arm.id, arm.variant, seed=self.seed)


def _code(cell: Cell) -> Code:
    """The workload with each of its values of an axis of names (direction, mask, type): these load other code."""
    named = {(cell.workload, axis, value) for axis, value in cell.params.items() if isinstance(value, str)}
    return named or {(cell.workload, "", "")}
