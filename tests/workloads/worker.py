"""A real worker process on one kernel package and some workloads, and the requests of one cell."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from abprof.builds import worker_factory
from abprof.records import messages as wire
from abprof.system.processes import Worker

TIMEOUT = 240.0


class Side:
    """One worker with its package mounted."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def ask(self, request: Any) -> Any:
        """The reply. Raises WorkerFault."""
        return self.worker.call(request, TIMEOUT)

    def log_has(self, text: str, within: float = 60.0) -> bool:
        """Whether the worker printed this; its log is written by a thread that may lag."""
        end = time.monotonic() + within
        while text not in self.worker.log.path.read_text():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def open(self, workload: str, case: dict[str, Any], arm: str = "base", peer: str = "") -> wire.Opened:
        """Make the arm and call it until it is warm."""
        opened: wire.Opened = self.ask(wire.Open(workload, case, arm, peer=peer, seed=3))
        return opened

    def check(self, arm: str = "base", expected: str = "expected") -> wire.Checked:
        checked: wire.Checked = self.ask(wire.Check(arm, expected, f"sample.{arm}"))
        return checked


@contextmanager
def side(root: Path, package: str, workloads: list[Path], place: Path, build: Path | None = None) -> Iterator[Side]:
    """Start a worker that mounts root/PACKAGE privately and reads the workloads; `place` is its folder for the rest."""
    build = build or place / "build"
    build.mkdir(parents=True, exist_ok=True)
    mount = wire.Mount(package, str(root), f"abprof_side.{package}", str(build), [str(root), str(build)])
    with started(place, mount, workloads) as made:
        yield made


@contextmanager
def written(root: Path, package: str, **workloads: str) -> Iterator[Side]:
    """The same for a package `tiny` and workloads of these texts, written below `root`."""
    (root / "kernels" / "tiny").mkdir(parents=True)
    (root / "kernels" / "tiny" / "__init__.py").write_text(package)
    for name, text in workloads.items():
        (root / f"{name}.py").write_text(text)
    with side(root / "kernels", "tiny", [root / f"{name}.py" for name in workloads], root / "place") as made:
        yield made


@contextmanager
def started(place: Path, mount: wire.Mount | None, workloads: list[Path]) -> Iterator[Side]:
    """Start a worker that has mounted this, or nothing, and reads the workloads where they lie."""
    scratch = place / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    worker = Worker(
        [sys.executable, "-P", str(worker_factory.install_bundle(place / "cache"))],
        env={**os.environ, "XDG_CACHE_HOME": str(place / "cache"), "OMP_NUM_THREADS": "1"},
        cwd=place,
        log=place / "log",
    )
    try:
        worker.call(wire.Start("cpu", "base", mount, {w.stem: str(w) for w in workloads}, str(scratch)), TIMEOUT)
        yield Side(worker)
    finally:
        worker.stop()
