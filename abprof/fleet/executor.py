"""The protocol of an executor: where shards run, and how their lines come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from abprof.fleet.messages import Shard


@dataclass(frozen=True)
class Lost:
    """No more news of a shard: its process is gone, was never started, or is done with it (after `Ended`)."""

    reason: str


class Executor(Protocol):
    """Runs shards, each whole and on one device. It retries nothing: its submitter decides what becomes of lost cells."""

    lasting: bool  # whether a slot stays the same device, so that cells can go on where their blocks are from

    def __enter__(self) -> Self:
        """Raises AbprofError if the executor is not available."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `cancel`, and gives back what it holds."""

    def slots(self) -> Sequence[str]:
        """Where shards can run at the same time, one on each: names of leases, or labels of a cluster. May change in a run."""

    def submit(self, shard: Shard, slot: str) -> None:
        """Start the shard's program, with device, repository and log folder of that place. `news` reports failures."""

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """What came within `timeout` seconds, as (shard's number, line); `Lost` comes once and last for each shard."""

    def cancel(self) -> None:
        """End everything that was started, and wait for that. Safe to call twice, and from ^C."""
