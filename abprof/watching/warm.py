"""Crews whose base outlives them: its workers have imported, loaded and compiled all, and are asked again at every save."""

from __future__ import annotations

from collections.abc import Sequence

from abprof.crew import Crew, Post
from abprof.proc import Worker
from abprof.protocols import Device
from abprof.relay import Relay
from abprof.workshop import Workshop

_Key = tuple[str, str]  # package and build


class Warm(Relay):
    """Hands out crews of a fresh target and a base that is kept while the block runs."""

    def __init__(self, shop: Workshop, device: Device) -> None:
        super().__init__(shop, device)
        self._kept: dict[_Key, Worker] = {}

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for worker in self._kept.values():
            worker.kill()

    def crew(self, posts: Sequence[Post], epoch: int) -> Crew:
        """The crew of these posts, not yet entered."""
        return _Crew(self._shop, posts, epoch, self._kept)

    def ahead(self, posts: Sequence[Post], epoch: int) -> None:
        """Nobody knows when the next save is."""


class _Crew(Crew):
    def __init__(self, shop: Workshop, posts: Sequence[Post], epoch: int, kept: dict[_Key, Worker]) -> None:
        super().__init__(shop, posts, epoch)
        self._kept = kept
        base = self._posts.get("base")
        self._key = (base.package.name, base.build.key) if base else ("", "")
        worker = kept.pop(self._key, None)
        if worker is not None and worker.alive:
            self.adopt("base", worker)

    def dismiss(self) -> None:
        """End every worker but base's."""
        base = self.release("base")
        if base is not None:
            self._kept[self._key] = base
        super().dismiss()
