"""The protocols by which engines attach. The core knows these, and never who implements them.

A plug-in is a plain module or class that meets one of them; the tables that list them are explicit dictionaries.
What times a call inside a worker (`Clock`) is in abprof/worker/clocks/__init__.py, because the worker is a world apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

from abprof.records import Arm, Cell, Machine, MachineState, Profile, Sampled, Trace

if TYPE_CHECKING:
    from abprof.fleet.messages import Shard
    from abprof.measure.epochs import Ground


class Device(Protocol):
    """What a run measures on, seen from the parent: identity, state, and reasons not to measure. Never imports torch."""

    @property
    def kind(self) -> Literal["cpu", "cuda", "simulated"]:
        """Decides timers, turn length and defaults."""

    lease: str  # what the lock is named by: "cpu", or the GPU's UUID
    worker: str  # what a worker is told: "cpu", "cuda:UUID"

    def machine(self) -> Machine:
        """Who this is."""

    def refusal(self) -> tuple[str, str] | None:
        """(what, advice) when a run here could not be trusted as the device is set up, or None."""

    def busy(self) -> tuple[str, str] | None:
        """(what, advice) when somebody is using it now, or None. Asked once the lease is held: another abprof is not meant."""

    def gone(self) -> str | None:
        """Why nothing can be measured on it any more, or None while it answers. Asked where a worker failed."""

    def watch(self, own: Callable[[], Iterable[int]]) -> None:
        """Begin to sample. `own` says which process ids are not foreign, and is asked whenever what was seen is read: a process
        that is started later, or has ended, is none either."""

    def state(self) -> MachineState:
        """What was seen since `watch` or the last `state`."""

    def bad_times(self) -> list[tuple[int, int, str]]:
        """(from, to, why) in time.monotonic_ns() of what voids a round, since the last call."""


@dataclass(frozen=True)
class Subject:
    """What a probe looks at: a cell, in one variant, and its arm on each side."""

    cell: Cell
    variant: str
    arms: tuple[Arm, ...]


Evidence = Trace | Profile | Sampled


class Probe(Protocol):
    """Looks at cells after all timing, in workers of its own. What fails is said in what it yields, and not raised."""

    def __call__(self, ground: Ground, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Evidence]:
        """Evidence for each arm; its files go into the run's `folder`. `epoch` is a number that no other workers have."""


@dataclass(frozen=True)
class Lost:
    """The program of a shard is gone, was never started, or is done with it. After its `Ended` that is its orderly end."""

    reason: str


class Executor(Protocol):
    """Runs shards somewhere, each whole and on one device. It retries nothing: what is lost is told, and what becomes of its
    cells is decided by who submitted it (abprof/fleet/conduct.py)."""

    # Whether a slot is the same device each time, and its program the same as long as it lives: then cells can go on where
    # their blocks are from.
    lasting: bool

    def __enter__(self) -> Self:
        """Raises AbprofError where it cannot be had."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `cancel`, and gives back what it holds."""

    def slots(self) -> Sequence[str]:
        """What shards can run on at the same time, one on each: leases' names, or labels of a cluster's. It may grow and shrink
        while a run goes on."""

    def submit(self, shard: Shard, slot: str) -> None:
        """Start its program there, with the device, repository and folder for logs that it has there filled in. What goes wrong
        is told by `news`."""

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """What came within `timeout` seconds, as (shard's number, line); `Lost`, once and last of each, when nothing more of it
        is to come: its program has ended, however it did, or is free for another shard."""

    def cancel(self) -> None:
        """End everything that was started, and wait for that. Safe to call twice, and from ^C."""
