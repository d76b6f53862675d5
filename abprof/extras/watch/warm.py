"""Worker pools that keep base's workers: they have imported, loaded and compiled, and serve again at every save."""

from __future__ import annotations

from collections.abc import Sequence

from abprof.builds import WorkerFactory
from abprof.devices import Device
from abprof.measure.pool import Prefork, WorkerPool, WorkerSpec
from abprof.records import PEERS
from abprof.system.processes import Worker

_Key = tuple[str, str, str]  # worker, package and build
_KEPT = ("base", PEERS)  # whose code no save changes


class Warm(Prefork):
    """Hands out pools with a fresh target; base and peers are kept while the block runs."""

    def __init__(self, factory: WorkerFactory, device: Device) -> None:
        super().__init__(factory, device)
        self._kept: dict[_Key, Worker] = {}

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for worker in self._kept.values():
            worker.kill()

    def pool(self, specs: Sequence[WorkerSpec], epoch: int) -> WorkerPool:
        """The pool of these workers, not yet entered."""
        return _KeepingPool(self._factory, specs, epoch, self._kept)

    def ahead(self, specs: Sequence[WorkerSpec], epoch: int) -> None:
        """Start nothing: the time of the next save is unknown."""


class _KeepingPool(WorkerPool):
    def __init__(
        self, factory: WorkerFactory, specs: Sequence[WorkerSpec], epoch: int, kept: dict[_Key, Worker]
    ) -> None:
        super().__init__(factory, specs, epoch)
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
        spec = self._specs.get(id)
        return (id, spec.package.name, spec.build.key) if spec is not None else (id, "", "")
