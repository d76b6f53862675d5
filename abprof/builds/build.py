"""Build kernel packages, each side's package in its own process. Builds are cached by content.

CACHE/builds/KEY/NUMBER/ holds a build: src/ (a copy of the package's inputs), out/ ($ABPROF_BUILD_DIR), caches/
(Triton's, torch's, ...). What it printed is in NUMBER.log, where its code cannot write. A build cannot be moved,
because ninja files and rpaths contain its path. So it is made in this folder, under a lock, and is valid once
KEY/published.json names the folder.

Code under test can write to a build's folder. So published.json lists every file of the build with a hash, and is sealed:
authenticated with a key that only abprof's own processes read. A build that is not as it was made is made again.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from abprof.builds import keys
from abprof.builds.worker_factory import WorkerFactory, WorkerSpec
from abprof.records import UNREADABLE, Build, Cell, Checkout, Failure, Package, Record
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.system import doorway, files, locks, paths
from abprof.system.console import View
from abprof.system.processes import LOG_LIMIT, Worker, WorkerDied, WorkerFault, WorkerHung
from abprof.system.trees import inventory, link_of, remove_tree, tree_hash

_LOOK = 0.5  # seconds between wake-ups of the main thread, in which Python handles signals
_MOST_DEATHS = 3  # after so many deaths of the process in cases, no further case is called at build time
_ERROR = re.compile(
    r"(^|[\s:])(fatal error|error|Error|undefined reference|nvcc fatal|ptxas fatal|FAILED)\b.*"
    r"|^[\w.]+(Error|Exception): .*",  # last line of a Python traceback
    re.ASCII,
)
_QUOTED = re.compile(r'\s*File ".*", line \d+')
# Files in a build that honest workers write and no process loads: locks, logs, and what ninja keeps about its last build.
_WRITTEN = re.compile(r"(^|/)([^/]*\.)?(lock|log)$|(^|/)\.ninja_(log|deps)$")

Say = Callable[[str, str], None]  # (job's name, line)


@dataclass(frozen=True)
class Job:
    """A build to make: one kernel package of one side."""

    checkout: Checkout
    package: Package
    cells: tuple[Cell, ...]  # cells to call at build time: one cell per workload, or a cell of every distinct case
    second: str = ""  # id of the worker that gets this second build of the same inputs

    @property
    def id(self) -> str:
        return self.second or self.checkout.side.id

    @property
    def name(self) -> str:
        return f"{self.id} {self.package.name}"

    def spec(self, build: Build) -> WorkerSpec:
        """Return the builder to start for `build`."""
        return WorkerSpec(self.checkout.side.id, self.checkout, self.package, build)


class _Published(Record, frozen=True):
    """The content of published.json: the current build and the name of its folder."""

    generation: str
    build: Build
    parts: dict[str, str]  # part of the build key -> digest
    contents: dict[str, str]  # file -> type, mode, size and hash


_PUBLISHED = msgspec.json.Decoder(_Published)  # made here, since threads decode: see system/processes/worker.py


@dataclass
class _Running:
    """The running build processes. `close` ends these processes and prevents new ones."""

    closed: bool = False
    workers: set[Worker] = field(default_factory=set)

    @contextlib.contextmanager
    def entered(self, worker: Worker) -> Iterator[None]:
        self.workers.add(worker)
        try:
            if self.closed:
                worker.end()
            yield
        finally:
            worker.stop(timeout=5)
            self.workers.discard(worker)

    def close(self) -> None:
        self.closed = True
        for worker in tuple(self.workers):
            worker.end()


def build_packages(
    factory: WorkerFactory,
    jobs: Sequence[Job],
    view: View,
    *,
    gpu: bool,
    rebuild: bool = False,
    untrusted: bool = False,
) -> tuple[Build, ...]:
    """Return the build of each job, taken from the cache or made now. Jobs run in parallel; each outcome is printed.
    `untrusted`: a build fails if it changes sources that base's build leaves as they are."""
    cpus = len(os.sched_getaffinity(0))
    sources = [_sources(Path(job.checkout.path), job.package) for job in jobs]  # before code under test runs
    running, pool = _Running(), ThreadPoolExecutor(max_workers=max(1, cpus // 2 if gpu else cpus))
    with view.working("building"):
        try:
            futures = [pool.submit(_build, factory, job, view.build_line, running, rebuild=rebuild) for job in jobs]
            while wait(futures, _LOOK).not_done:
                pass
            builds = tuple(
                msgspec.structs.replace(future.result(), sources=digest)
                for future, digest in zip(futures, sources, strict=True)
            )
        finally:  # ^C does not wait for compilers
            running.close()
            pool.shutdown(cancel_futures=True)
    builds = _as_checked_out(jobs, builds) if untrusted else builds
    for made in builds:
        state = made.failure.reason if made.failure else ("cached" if made.cached else f"built in {made.seconds:.1f} s")
        again = ", second build" if "-" in made.key and not untrusted else ""
        view.say(f"{made.side} {made.kernel}{again}: {state}", style="red" if made.failure else "")
    return builds


def _as_checked_out(jobs: Sequence[Job], builds: Sequence[Build]) -> tuple[Build, ...]:
    """Return `builds`; failed is a build whose sources are no longer those of the checkout, where base's build keeps them."""
    changed = [_rewritten(Path(job.checkout.path), job.package, build) for job, build in zip(jobs, builds, strict=True)]
    of_base = {b.kernel: names for b, names in zip(builds, changed, strict=True) if b.side == "base"}
    made = []
    for build, names in zip(builds, changed, strict=True):
        if own := names - of_base.get(build.kernel, set()):
            why = f"the build changed its own sources: {min(own)}"
            failure = Failure(status="build_failed", reason=why, log=build.log)
            build = msgspec.structs.replace(build, path="", failure=failure)  # noqa: PLW2901
        made.append(build)
    return tuple(made)


def _rewritten(tree: Path, package: Package, build: Build) -> set[str]:
    """Return the files of `package` in `tree` that `build` changed in its copy."""
    names, src = keys.inputs(tree, package) if build.path else (), Path(build.path) / "src"
    return {name for name in names if keys.content(src, name) != keys.content(tree, name)}


def missing(tree: Path, package: Package) -> str:
    """Return why `tree`, the folder of a side, lacks `package`; "" if it has the package."""
    path = tree / (package.path or f"kernels/{package.name}")
    made = bool(package.build if package.path else package.module)  # by a build command, or found by import
    if made or (path.exists() if package.path else path.is_dir() or path.with_suffix(".py").is_file()):
        return ""
    return f"{path.relative_to(tree)} does not exist on this side"


def _build(factory: WorkerFactory, job: Job, say: Say, running: _Running, *, rebuild: bool) -> Build:
    side, tree = job.checkout.side.id, Path(job.checkout.path)
    fresh = Build(side=job.id, kernel=job.package.name, key="")
    if why := missing(tree, job.package):
        return msgspec.structs.replace(fresh, failure=Failure(status="missing", reason=why))
    names = keys.inputs(tree, job.package)
    content = tree_hash(tree, names)
    chain = factory.toolchain[side]
    # {build} stands for the build's folder, whose name depends on the key.
    received = factory.worker_env(job.spec(msgspec.structs.replace(fresh, path="{build}")))
    package = keys.of_side(job.package, side)
    parts = keys.made_of(package, content, chain, keys.counted(received, factory.named, chain.get("prefix", "")))
    hostile = factory.untrusted and side != "base"  # could write into a build that it shares with base
    own = job.second or (side if hostile else "")
    home = factory.cache / "builds" / "-".join(filter(None, (keys.build_key(parts), own)))
    log = factory.logs / f"build-{job.id}-{job.package.name}.log"

    def waits(holder: str) -> None:
        say(job.name, f"waiting for {holder}, which is making the same build")

    with locks.locked(home / "lock", f"[{job.name}] of process {os.getpid()}", waits):
        known = _published(home)
        changed = _changed(factory.cache, home / known.generation, known, strict=hostile) if known else "published.json"
        if changed and (home / "published.json").exists():
            say(job.name, f"made again, because {changed} is not as the cached build left it")
        if known and not rebuild and not changed:
            kept = _printed(home / f"{known.generation}.log")
            files.replace(log, b"[abprof: from the cache; this is the log of the cached build]\n" + kept)
            return msgspec.structs.replace(known.build, side=job.id, cached=True, log=log.name)
        place = _new_generation(home)
        for name in names:
            (place / "src" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, place / "src" / name, follow_symlinks=False)
        fresh = msgspec.structs.replace(fresh, key=home.name, path=str(place), log=log.name)
        fresh = msgspec.structs.replace(fresh, variables=package.env, recipe=package.build)
        files.replace(log, b"")
        made = _Builder(factory, job, say, running, place, log).run(fresh)
        links = [name for name in keys.FOLDERS if (place / name).is_symlink() or not (place / name).is_dir()]
        if links and not made.failure:
            why = f"the build replaced its folder {links[0]}/ by something else"
            made = msgspec.structs.replace(
                made, path="", failure=Failure(status="build_failed", reason=why, log=log.name)
            )
        if made.failure:
            files.refuse_full_disk(made.failure.reason, place)
            remove_tree(place)
            return made
        files.replace(home / f"{place.name}.log", _printed(log))
        for folder in (place / "src", place / "out"):  # remove .pyc files of tools that ignore PYTHONDONTWRITEBYTECODE
            for name in _compiled(folder):
                (folder / name).unlink()
        record = msgspec.json.encode(_Published(place.name, made, parts, inventory(place, keys.FOLDERS)))
        files.put(home / "published.json", _seal(home, record) + record)
        return made


def _published(home: Path) -> _Published | None:
    """Return the content of HOME/published.json; None if that file is unreadable or not sealed by abprof, or the build's
    folder is missing."""
    try:
        seal, record = (text := (home / "published.json").read_bytes())[:32], text[32:]
        known = _PUBLISHED.decode(record) if hmac.compare_digest(seal, _seal(home, record)) else None
    except (OSError, *UNREADABLE):
        return None
    return known if known and (home / known.generation).is_dir() else None


def _seal(home: Path, record: bytes) -> bytes:
    """Return 32 bytes that only who reads the key can compute for the `record` of the builds in `home`."""
    return hmac.digest(paths.build_key_file().read_bytes(), os.fsencode(home.name) + b"\0" + record, "sha256")


def differences(cache: Path, before: str, now: str) -> list[str]:
    """Return what differs between two build keys, such as "variable CC"; [] if the cache lacks the build of a key."""
    old, new = (_published(cache / "builds" / key) for key in (before, now))
    if old is None or new is None:
        return []
    return sorted(name for name in old.parts.keys() | new.parts.keys() if old.parts.get(name) != new.parts.get(name))


def _changed(cache: Path, place: Path, known: _Published, *, strict: bool) -> str:
    """Return the first file for which a cached build cannot be reused; "": it is as it was made. Locks, logs, and in
    caches/ what workers compiled later may have been added; with `strict` no file may."""
    try:
        now = inventory(place, keys.FOLDERS)
        for name in sorted(now.keys() | known.contents.keys()):
            added = name not in known.contents
            harmless = _WRITTEN.search(name) or (name.startswith("caches/") and (added or not name.endswith(keys.CODE)))
            if now.get(name) != known.contents.get(name) and (not harmless or (strict and added)):
                return name
        for one in known.build.artefacts:
            elsewhere = one.path and not one.path.startswith((f"{place}/", f"{cache / 'worktrees'}/"))  # of a run: gone
            if elsewhere and _sha256(Path(one.path), place) != one.sha256:
                return one.path
    except OSError as error:
        return str(error.filename or "a file")
    return ""


def _sha256(path: Path, place: Path) -> str:
    """Return the hash of a file that the build in `place` loaded. Outside of that folder links are followed."""
    return doorway.sha256(path, place) if path.is_relative_to(place) else doorway.sha256(path.resolve())


def _printed(log: Path) -> bytes:
    try:
        return doorway.read(log, LOG_LIMIT)
    except OSError as error:
        return f"[abprof: the log cannot be read: {error.strerror}]\n".encode()


def _compiled(folder: Path) -> list[str]:
    return [name for name in keys.importable(folder, keys.COMPILED) if "__pycache__" in Path(name).parts]


def _new_generation(home: Path) -> Path:
    newest = max((int(p.name) for p in home.iterdir() if p.name.isdigit()), default=-1)
    place = home / str(max(newest, 0) if not (home / "published.json").exists() else newest + 1)
    remove_tree(place)
    for folder in keys.FOLDERS:
        (place / folder).mkdir(parents=True)
    return place


@dataclass(frozen=True)
class _Builder:
    """Builds one package in its own process, then calls its cells there, so that JIT kernels are compiled."""

    factory: WorkerFactory
    job: Job
    say: Say
    running: _Running
    place: Path
    log: Path  # in a folder where the build cannot write

    def run(self, fresh: Build) -> Build:
        """Make the build, and return `fresh` with its results or its failure filled in.

        If a call fails, the build still counts: the measurement will report the failure. If a call kills the process, a
        new process makes the remaining calls.
        """
        calls: list[tuple[Cell, str]] | None = None  # (case, variant) still to call; None: not known yet
        log, name, began = self.log, self.job.name, time.monotonic()
        for left in reversed(range(_MOST_DEATHS + 1)):
            try:
                worker = self.factory.worker(
                    self.job.spec(fresh), log, on_line=lambda line: self.say(name, line), builder=True
                )
                with self.running.entered(worker):
                    built = self._built(worker, self.factory.mount(self.job.spec(fresh)))
                    if calls is None:  # call one case per workload, but every case if the package has no build()
                        cells = {
                            cell.workload if built.has_build else cell.id: cell for cell in reversed(self.job.cells)
                        }
                        calls = [
                            (cell, variant) for cell in reversed(cells.values()) for variant in built.variants or [""]
                        ]
                    elif not left:
                        calls = []
                    while calls and worker.alive:
                        self._call(worker, *calls.pop(0))
                    if worker.alive:
                        return self._outcome(fresh, worker, built, time.monotonic() - began)
            except WorkerHung as hung:
                failure = Failure(status="build_failed", reason=hung.reason, log=fresh.log)
                break
            except (WorkerFault, WorkerDied) as failed:
                absent = isinstance(failed, WorkerFault) and failed.status == "missing"
                reason = failed.reason if absent else _first_error(log) or failed.reason
                if reason.startswith("ModuleNotFoundError"):
                    reason += f" ({self.factory.argv(self.job.checkout.side.id)[0]} lacks it)"
                failure = Failure(status="missing" if absent else "build_failed", reason=reason, log=fresh.log)
                break
        return msgspec.structs.replace(fresh, path="", seconds=time.monotonic() - began, failure=failure)

    def _built(self, worker: Worker, mount: wire.Mount) -> wire.Built:
        factory, id, place = self.factory, self.job.checkout.side.id, self.place
        worker.call(factory.start(id, mount), factory.timeout)
        parts = self.job.package.build
        recipe = [part.format(worktree=place / "src", build_dir=place / "out", side=id) for part in parts]
        try:
            built: wire.Built = worker.call(wire.Build(recipe), factory.build_timeout)
        except WorkerHung as hung:
            raise WorkerHung(f"still building after {factory.build_timeout:.0f} s") from hung
        return built

    def _call(self, worker: Worker, cell: Cell, variant: str) -> None:
        """Call a cell of one variant. A failure is that of the measurement; but say that the call killed the worker."""
        try:
            worker.call(wire.Open(cell.workload, dict(cell.params), "build", variant), self.factory.timeout)
            worker.call(wire.Close(), self.factory.timeout)
        except WorkerFault:
            pass
        except WorkerDied as died:
            self.say(self.job.name, f"{cell.id}: {died.reason}")

    def _outcome(self, fresh: Build, worker: Worker, built: wire.Built, seconds: float) -> Build:
        proved: wire.Proved = worker.call(wire.Prove(), self.factory.timeout)
        compiled = [kernel for kernel in proved.kernels if kernel.seconds is not None]
        return msgspec.structs.replace(
            fresh,
            seconds=seconds,
            variants=tuple(built.variants),
            artefacts=tuple(proved.artefacts),
            facts={kernel.key: kernel.summary() for kernel in compiled},
            compile_seconds={kernel.key: kernel.seconds or 0.0 for kernel in compiled},
            unproved=proved.reason,
        )


def _first_error(log: Path) -> str:
    lines = _printed(log).decode(errors="replace").splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        quoted = _QUOTED.match(before)  # a source line in a traceback may contain "error"
        if _ERROR.search(line) and not quoted and not line.startswith(("Traceback", "ninja:", "$ ")):
            return line.strip()[:300]
    return ""


def identical(
    builds: Sequence[Build], packages: Mapping[str, Package], toolchain: Mapping[str, Mapping[str, str]]
) -> bool:
    """Whether a package is identical on all sides: its sources as checked out, the files that its builds loaded, its
    settings and the toolchain.

    `packages`: side id -> package on that side; `toolchain`: side id -> name of a tool -> version.
    """
    mine = [b for b in builds if b.side in packages and b.kernel == packages[b.side].name]
    if len(mine) < 2 or any(b.failure or b.unproved for b in mine):
        return False
    if len({msgspec.json.encode(keys.of_side(packages[b.side], b.side)) for b in mine}) > 1:
        return False
    if any(toolchain[b.side] != toolchain[mine[0].side] for b in mine):
        return False
    loaded = {frozenset((a.kind, a.name, a.sha256) for a in b.artefacts) for b in mine}
    return len(loaded) == 1 and len({b.sources for b in mine}) == 1


def _sources(tree: Path, package: Package) -> str:
    """Return one hash of all files in `tree`, the folder of a side, that the package may load; "" if it is missing.
    Documentation does not count. For a package in kernels/, packages that it does not use do not count either."""
    if missing(tree, package):
        return ""
    names = [name for name in keys.inputs(tree, package) if not name.endswith((".md", ".rst", ".ipynb"))]
    if not (package.path or package.module):
        unreached = _unreached(tree, package.name, names)
        names = [name for name in names if not name.startswith(unreached)]
    return tree_hash(tree, names)


def _unreached(tree: Path, package: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the folders in kernels/ that the package does not use, directly or indirectly. A file uses a folder if the
    file contains the folder's name."""
    folders = {parts[1] for name in names if len(parts := name.split("/")) > 2}
    reached, todo = {package}, [package]
    while todo:
        mine = f"kernels/{todo.pop()}"
        words = {
            word
            for name in names
            if name.startswith(f"{mine}/") or name == f"{mine}.py"
            for word in re.findall(rb"\w+", _text(tree, name))
        }
        found = {folder for folder in folders - reached if folder.encode() in words}
        reached |= found
        todo += found
    return tuple(f"kernels/{folder}/" for folder in folders - reached)


def _text(tree: Path, name: str) -> bytes:
    link = link_of(tree, name)
    return doorway.read(tree / name, doorway.LARGEST, tree) if link is None else link


@contextlib.contextmanager
def in_use(cache: Path) -> Iterator[None]:
    """Prevent `sweep` from removing builds while the `with` block runs."""
    with locks.locked(cache / "builds" / ".in-use", shared=True):
        yield


def sweep(cache: Path, *, everything: bool) -> list[str]:
    """Remove unfinished builds and, if no run is active, replaced builds. With `everything` remove all builds, or raise
    AbprofError if a run is active. Return a line of text for each removal."""
    homes = sorted(path for path in (cache / "builds").glob("*") if path.is_dir())
    lines = []
    with locks.abandoned(cache / "builds" / ".in-use") as free:
        if everything and not free:
            raise AbprofError("a run is using the builds", where="abprof clean", advice="wait until the run ends")
        for home in homes:
            with locks.abandoned(home / "lock") as mine:
                known = _published(home)
                if not mine:
                    continue
                if everything or not (home / "published.json").exists():
                    remove_tree(home)
                    lines.append(f"removed the {'' if everything else 'unfinished '}build {home.name}")
                elif known and free:
                    for old in sorted(path for path in home.iterdir() if path.name.isdigit()):
                        if old.name != known.generation:
                            remove_tree(old)
                            old.with_suffix(".log").unlink(missing_ok=True)
                            lines.append(f"removed the superseded build {home.name}/{old.name}")
    return lines
