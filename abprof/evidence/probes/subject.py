"""What a probe looks at, and what every probe is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from abprof.records import Arm, Cell, Profile, Sampled, Trace

if TYPE_CHECKING:
    from abprof.measure.plan import Plan


@dataclass(frozen=True)
class Subject:
    """A cell, in one variant, and its arm on each side."""

    cell: Cell
    variant: str
    arms: tuple[Arm, ...]


Evidence = Trace | Profile | Sampled


class Probe(Protocol):
    """Looks at cells after all timing, in workers of its own. A failure is reported in what it yields, not raised."""

    def __call__(self, plan: Plan, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Evidence]:
        """Evidence for each arm; its files go into the run's `folder`. `epoch` is a number that no other workers have."""
