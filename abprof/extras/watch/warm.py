"""Crews whose base outlives them: its workers have imported, loaded and compiled all, and are asked again at every save."""

from __future__ import annotations

from collections.abc import Sequence

from abprof.builds.worker_factory import Workshop
from abprof.devices import Device
from abprof.measure.pool import Crew, Post
from abprof.measure.prefork import Relay
from abprof.records import PEERS
from abprof.system.processes import Worker

_Key = tuple[str, str, str]  # post, package and build
_KEPT = ("base", PEERS)  # whose code no save changes


class Warm(Relay):
    """Hands out crews of a fresh target; base and peers are kept while the block runs."""

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
        for id in _KEPT:
            worker = kept.pop(self._key(id), None)
            if worker is not None and worker.alive:
                self.adopt(id, worker)

    def dismiss(self) -> None:
        """End every worker but those that are kept."""
        for id in _KEPT:
            worker = self.release(id)
            if worker is not None:
                self._kept[self._key(id)] = worker
        super().dismiss()

    def _key(self, id: str) -> _Key:
        post = self._posts.get(id)
        return (id, post.package.name, post.build.key) if post is not None else (id, "", "")
