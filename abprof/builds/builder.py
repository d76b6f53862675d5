"""The builder's process: imports one package of one side, builds it, and calls what compiles lazily."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof.builds.worker_factory import Workshop
from abprof.records import Artefact, Cell, Checkout, Failure, Package, Record
from abprof.records import messages as wire
from abprof.system.processes import Worker, WorkerDied, WorkerFault, WorkerHung, to_start

_MOST_DEATHS = 3  # builders that may die of a case; then no more cases are called at build time
_ERROR = re.compile(
    r"(^|[\s:])(fatal error|error|Error|undefined reference|nvcc fatal|ptxas fatal|FAILED)\b.*"
    r"|^[\w.]+(Error|Exception): .*",  # of a recipe in Python, which is a process of its own
    re.ASCII,
)
_QUOTED = re.compile(r'\s*File ".*", line \d+')

Say = Callable[[str, str], None]  # (job's name, line)
Call = tuple[Cell, str]  # a case, and the variant it is called with


class Published(Record, frozen=True):
    """published.json: which generation of this key is whole, and what it is."""

    generation: str
    seconds: float
    variants: tuple[str, ...]
    artefacts: tuple[Artefact, ...]
    facts: dict[str, str]
    unproved: str  # why a file that the builder had loaded may not be there; "" when all may
    compile_seconds: dict[str, float] = {}  # of each kernel that Triton compiled, by its key
    importable: tuple[str, ...] = ()  # files of src/ that an import could find


@dataclass(frozen=True)
class Job:
    """One package of one side."""

    checkout: Checkout
    package: Package
    cells: tuple[Cell, ...]  # one of each workload, or every distinct case: what is called at build time

    @property
    def name(self) -> str:
        return f"{self.checkout.side.id} {self.package.name}"


class Site:
    """The builders at work. When it is closed, from another thread than theirs, they end and no other begins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._closed = False

    def enter(self, worker: Worker) -> None:
        with self._lock:
            self._workers.add(worker)
            if self._closed:
                worker.end()

    def leave(self, worker: Worker) -> None:
        with self._lock:
            self._workers.discard(worker)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.end()


class Builder:
    """Builds one job."""

    def __init__(self, shop: Workshop, job: Job, say: Say, site: Site) -> None:
        self.shop = shop
        self.job = job
        self.say = say
        self.site = site

    def run(self, place: Path, log: Path) -> Published | Failure:
        """Build, and call cases, so that what compiles lazily compiles now.

        A case that fails here fails again when it is measured, and is typed there. One that kills the process does not
        take the package with it: the others are called in a new one.
        """
        calls: list[Call] | None = None
        for _ in range(_MOST_DEATHS):
            outcome, calls = self._process(place, log, calls)
            if outcome is not None:
                return outcome
        outcome, _ = self._process(place, log, [])
        return outcome or Failure(status="build_failed", reason="not built")

    def _process(
        self, place: Path, log: Path, calls: list[Call] | None
    ) -> tuple[Published | Failure | None, list[Call]]:
        """One process: what came of it, or None and the calls that are left when it died of one. `calls` None: those
        that the package's build() leaves to be made."""
        try:
            worker = self._start(place, log)
        except WorkerDied as died:
            return Failure(status="build_failed", reason=died.reason), []
        self.site.enter(worker)
        try:
            built = self._build(worker, place)
            todo = self._calls(built) if calls is None else calls
            while todo:
                if not self._call(worker, todo.pop(0)):
                    return None, todo
            proved: wire.Proved = worker.call(wire.Prove(), self.shop.timeout)
            return Published(
                generation="",
                seconds=0.0,
                variants=tuple(built.variants),
                artefacts=tuple(msgspec.convert(a, Artefact) for a in proved.artefacts),
                facts=proved.facts,
                compile_seconds=_compile_seconds(worker, self.shop.timeout),
                unproved=proved.reason,
            ), []
        except WorkerFault as fault:
            if fault.status == "missing":
                return Failure(status="missing", reason=fault.reason), []
            return Failure(status="build_failed", reason=_first_error(log) or fault.reason), []
        except WorkerHung as hung:
            return Failure(status="build_failed", reason=hung.reason), []
        except WorkerDied as died:
            return Failure(status="build_failed", reason=_first_error(log) or died.reason), []
        finally:
            worker.stop(timeout=5)
            self.site.leave(worker)

    def _start(self, place: Path, log: Path) -> Worker:
        side, package = self.job.checkout, self.job.package
        return self.shop.worker(
            side.side.id,
            side,
            package,
            place,
            log=log,
            name=self.job.name,
            on_line=lambda line: self.say(self.job.name, line),
            network=True,  # recipes fetch what they build with
        )

    def _build(self, worker: Worker, place: Path) -> wire.Built:
        """The recipe and the package's own build()."""
        shop, package, id = self.shop, self.job.package, self.job.checkout.side.id
        seen = shop.mount(self.job.checkout, package, place)
        worker.call(wire.Start(shop.device, id, seen, dict(shop.workloads), str(shop.scratch)), to_start(shop.timeout))
        recipe = [part.format(worktree=place / "src", build_dir=place / "out", side=id) for part in package.build]
        try:
            built: wire.Built = worker.call(wire.Build(True, recipe, str(place / "src")), shop.build_timeout)
        except WorkerHung as hung:
            raise WorkerHung(f"still building after {shop.build_timeout:.0f} s") from hung
        return built

    def _calls(self, built: wire.Built) -> list[Call]:
        """One case of each workload, or every case when there is no build()."""
        cells = self.job.cells
        if built.has_build:
            cells = tuple({cell.workload: cell for cell in reversed(cells)}.values())
        return [(cell, variant) for cell in cells for variant in built.variants or [""]]

    def _call(self, worker: Worker, call: Call) -> bool:
        """Whether the process lives on."""
        cell, variant = call
        try:
            worker.call(wire.Open(cell.workload, dict(cell.params), "build", variant), self.shop.timeout)
            worker.call(wire.Close(), self.shop.timeout)
        except WorkerFault:
            return True
        except WorkerDied as died:
            self.say(self.job.name, f"{cell.id}: {died.reason}")
            return False
        return True


def _compile_seconds(worker: Worker, timeout: float) -> dict[str, float]:
    """What is told beside the proof: a worker that cannot say so has built all the same."""
    try:
        loaded: wire.Loaded = worker.call(wire.Load(), timeout)
    except WorkerFault:
        return {}
    return {kernel.key: kernel.seconds for kernel in loaded.kernels if kernel.seconds is not None}


def _first_error(log: Path) -> str:
    """The first line of a build log that reads like an error."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for before, line in zip(["", *lines], lines, strict=False):
        quoted = _QUOTED.match(before)  # a line of source in a traceback, which may speak of errors too
        if _ERROR.search(line) and not quoted and not line.startswith(("Traceback", "ninja:", "$ ")):
            return line.strip()[:300]
    return ""
