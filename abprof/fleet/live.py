"""A shard that is out, and what of its news has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from abprof.devices.protocols import Lost
from abprof.fleet.messages import Began, Ended, Shard
from abprof.fleet.schedule import Task


@dataclass
class Live:
    """A shard that was submitted."""

    shard: Shard
    slot: str
    tasks: Sequence[Task]
    began: Began | None = None
    ended: Ended | None = None
    lines: int = 0
    torn: str = ""  # why its news cannot be read

    @property
    def whole(self) -> bool:
        """Whether what came is all that was said, as far as that is told: a program that was killed told nothing of it."""
        return not self.torn and (self.ended is None or self.ended.lines == self.lines)

    def why(self, lost: Lost) -> str:
        """Why it is lost."""
        ended = self.ended
        if self.torn:
            return self.torn
        if ended and ended.why == "refused":
            return ended.reason
        if ended and ended.lines > self.lines:
            return f"lines of its news that are missing: {ended.lines - self.lines}"
        if ended and ended.lines < self.lines:
            return f"lines of its news that came twice: {self.lines - ended.lines}"
        return lost.reason
