"""What a worker that has the terminal to itself reads and tells, by files in the place of messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from abprof.records.messages.base import Value
from abprof.records.messages.begin import Start
from abprof.records.messages.cell import Open


@dataclass(frozen=True)
class Foreground:
    """What a worker in the foreground reads from its file, in the place of requests (abprof/worker/foreground.py)."""

    start: Start
    open: Open
    warmup: int
    runs: int
    told: str  # file that it writes `Told` to
    facts: bool = False  # ask the workload and the operation for theirs, after the calls


@dataclass(frozen=True)
class Told:
    """How a worker in the foreground ended. `status` as in Opened."""

    status: str
    reason: str = ""
    facts: dict[str, Value] = field(default_factory=dict)
