"""The next crew's processes, started while this one measures: each imports torch for seconds, on a core of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence

from abprof.builds.worker_factory import Workshop
from abprof.devices import Device
from abprof.measure.pool import Crew, Post

_CORES_EACH = 4  # of the machine's, for each process that waits: with fewer, starting it would disturb the measuring


class Relay:
    """Hands out crews, and has the next one's processes waiting where that costs the measuring nothing.

    On a CPU it would: there the processes would take the cores that are measured. On a GPU they touch no device before
    their crew's turn.
    """

    def __init__(self, shop: Workshop, device: Device) -> None:
        self._shop = shop
        self._kind = device.kind
        self._waiting: Crew | None = None

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exc: object) -> None:
        self._dismiss()

    def crew(self, posts: Sequence[Post], epoch: int) -> Crew:
        """The crew of these posts, not yet entered."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.becomes(posts, epoch):
            return waiting
        if waiting is not None:
            waiting.dismiss()
        return Crew(self._shop, posts, epoch)

    def ahead(self, posts: Sequence[Post], epoch: int) -> None:
        """Start the processes of the crew that will probably be asked for next."""
        self._dismiss()
        if self._kind == "cpu" or (self._kind == "cuda" and len(os.sched_getaffinity(0)) < _CORES_EACH * len(posts)):
            return
        self._waiting = Crew(self._shop, posts, epoch)
        self._waiting.summon()

    def _dismiss(self) -> None:
        if self._waiting is not None:
            self._waiting.dismiss()
            self._waiting = None
