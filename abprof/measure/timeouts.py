"""Which operations gave no answer in their time, so that the time is not spent on them again and again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from abprof.records import Arm

_TWICE = 2  # epochs after which an operation that hung in them is settled (abprof/verdict/cells.py)


@dataclass
class Hung:
    """In which epochs which operation of which cell gave no answer within --timeout. A control's operation is base's."""

    epochs: dict[tuple[str, str, str, str], set[int]] = field(default_factory=dict)

    def note(self, cell: str, arm: Arm, epoch: int) -> None:
        """It hung in this epoch."""
        self.epochs.setdefault(self._key(cell, arm), set()).add(epoch)

    def before(self, cell: str, arm: Arm) -> bool:
        """Whether it hung in any epoch of this invocation: warming it up is left out then."""
        return self._key(cell, arm) in self.epochs

    def not_again(self, cell: str, arm: Arm, epoch: int) -> str:
        """Why it is not asked in this epoch; "" where it is."""
        found = self.epochs.get(self._key(cell, arm), set())
        if epoch in found:
            return "not asked again in this epoch"
        return "in two epochs, and not asked again" if len(found) >= _TWICE else ""

    def _key(self, cell: str, arm: Arm) -> tuple[str, str, str, str]:
        return cell, "base" if arm.side == "control" else arm.side, arm.variant, arm.peer
