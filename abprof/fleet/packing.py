"""A shard, made of the run as it stands: its cells, who takes turns in them, and what is known of them already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from abprof.fleet.messages import Shard
from abprof.fleet.schedule import Task
from abprof.measure import discovery as survey
from abprof.measure import timers
from abprof.measure.growing import Growing
from abprof.measure.run_context import Place
from abprof.records import Arm, Cell, Run
from abprof.store.record import Record
from abprof.verdict import stats

CONTROLS = 2  # cells of each device that get a control, at least


class Packer:
    """Numbers the run's shards, and sees to it that every device has controls."""

    def __init__(self, place: Place, growing: Growing, record: Record) -> None:
        self._place, self._growing, self._record = place, growing, record
        self._arms: dict[str, tuple[Arm, ...]] = {}  # of cells that have travelled
        self._controlled: dict[str, set[str]] = {}  # slot -> its cells with a control
        judge = Path(next(iter(growing.ground.shop.workloads.values()))).parent
        self._judge = f"{judge} sha256:{survey.content(judge)}"  # once: code under test runs from now on
        self._number = max((block.shard for block in record.blocks), default=0)
        self._number = max(self._number, *(loss.shard for loss in record.head.losses), 0)

    def shard(self, tasks: Sequence[Task], slot: str, budget: float, least: Mapping[str, int]) -> Shard:
        """The next one, for this slot."""
        self._number += 1
        ids = [task.cell for task in tasks]
        ground = self._growing.ground
        self._arms |= {id: ground.arms[id] for id in ids if id not in self._arms}
        these = frozenset(ids)
        cells = tuple(cell for cell in ground.run.cells if cell.id in these)
        self._control(tasks, slot)
        known = [block for block in self._record.blocks if block.cell in these]
        mine = [block for block in self._record.blocks[self._record.older :] if block.cell in these]
        return Shard(
            number=self._number,
            attempt=max(task.attempt for task in tasks),
            run=self._head(cells, slot),
            file=self._place.file,
            arms={id: self._arms[id] for id in ids},
            identical=tuple(id for id in ids if id in ground.identical),
            timers=timers.told(known),
            blocks=tuple(mine),
            earlier=tuple(b for b in known if b.metric and not b.judged and not b.beside and b not in mine),
            first=1 + max((block.epoch for block in known), default=0),
            least={id: least[id] for id in ids if id in least},
            budget=budget,
            repository=str(self._place.repository.path),
            logs=str(self._record.folder.logs),
        )

    def _head(self, cells: tuple[Cell, ...], slot: str) -> Run:
        """The run without results, of these cells, with the judge where it was copied to."""
        head = self._record.head
        machine = head.machines.get(slot)
        return msgspec.structs.replace(
            head,
            status="running",
            cells=cells,
            ceilings=machine.ceilings if machine else None,
            workloads_from=self._judge,
            machines={},
            losses=(),
            notes=(),
            touched=(),
            header=None,
            observations=(),
            comparisons=(),
            within=(),
            controls=(),
            proofs=(),
            kernels=(),
            traces=(),
            profiles=(),
            sampled=(),
            warnings=(),
        )

    def _control(self, tasks: Sequence[Task], slot: str) -> None:
        """Give some of a device's cells a control where the run has controls and it has too few."""
        mine = self._controlled.setdefault(slot, set())
        mine |= {task.cell for task in tasks if _controlled(self._arms[task.cell])}
        if not self.controls():
            return
        chosen = self._cheapest([task for task in tasks if task.cell not in mine], CONTROLS - len(mine))
        for id in chosen:
            variant = next(arm.variant for arm in self._arms[id] if not arm.peer)
            arm = Arm(id=f"control:{variant}" if variant else "control", side="control", variant=variant)
            self._arms[id] = (*self._arms[id], arm)
            self._record.knows(arm)
        mine |= set(chosen)

    def _cheapest(self, tasks: Sequence[Task], count: int) -> list[str]:
        """The run's controls are spread over its range of work (abprof/measure/plan.py); these tell of the device."""
        ordered = sorted(tasks, key=lambda task: (task.seconds, task.cell))
        return [task.cell for task in ordered[: max(0, count)]]

    def controls(self) -> bool:
        """Whether the run has controls: also one all of whose controls are still to come."""
        return any(map(_controlled, (self._record.head.arms, *self._growing.expected.values())))


def _controlled(arms: Sequence[Arm]) -> bool:
    return any(arm.side == "control" for arm in arms)


def to_the_next_look(epochs: int) -> int:
    """How many more epochs bring a cell with so many to its next planned look; 0 where it has come to the last."""
    return next((look - epochs for look in stats.LOOKS if look > epochs), 0)
