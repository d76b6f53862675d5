"""JIT builds: every package of every side in a process of its own, its compiler's output on show, cached by content.

CACHE/builds/KEY/GENERATION/ holds src/ (a copy of the package's inputs), out/ ($ABPROF_BUILD_DIR), caches/ (Triton's,
torch's, ...) and build.log. The folder's path is part of what is built (ninja, rpath), so a build is made in place and
published by atomically replacing KEY/published.json, under a lock, after a second look whether someone else has.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from abprof.builds import environment, keys
from abprof.builds.builder import Builder, Job, Published, Say, Site
from abprof.builds.worker_factory import Workshop
from abprof.records import UNREADABLE, Build, Failure, Package
from abprof.system.trees import tree_hash

_LOOK = 0.5  # seconds: a signal that another thread takes is handled when this one next looks


def build_all(shop: Workshop, jobs: Sequence[Job], *, slots: int, rebuild: bool, say: Say) -> tuple[Build, ...]:
    """Build everything that is not in the cache. A failure is a record, and the others go on."""
    site = Site()
    pool = ThreadPoolExecutor(max_workers=max(1, slots))
    try:
        made = [pool.submit(build, shop, job, rebuild=rebuild, say=say, site=site) for job in jobs]
        while wait(made, _LOOK).not_done:
            pass
        return tuple(future.result() for future in made)
    finally:  # after ^C a compiler is not waited for
        site.close()
        pool.shutdown(cancel_futures=True)


def build(shop: Workshop, job: Job, *, rebuild: bool, say: Say, site: Site | None = None) -> Build:
    """One package of one side, from the cache or made now."""
    side = job.checkout.side.id
    tree = Path(job.checkout.path)
    if not exists(tree, job.package):
        missing = Failure(status="missing", reason=absent(job.package))
        return Build(side=side, kernel=job.package.name, key="", failure=missing)
    names = keys.inputs(tree, job.package)
    content = tree_hash(tree, names)
    settings, chain = keys.of_side(job.package, side), shop.toolchain[side]
    # The folders that are the builder's own follow from the key.
    received = shop.worker_env(job.checkout, job.package, Path("{build}"))
    env = keys.counted(received, shop.named, chain.get("prefix", ""))
    parts = keys.made_of(settings, content, chain, env)
    key = keys.build_key(parts)
    home = shop.cache / "builds" / key
    home.mkdir(parents=True, exist_ok=True)
    log = shop.logs / f"build-{side}-{job.package.name}.log"
    with _alone(home, job, say):
        keys.remember(home, parts)
        known = published(home)
        if known and not rebuild and _untouched(shop.cache, home / known.generation, known, names, content):
            _keep_log(home / known.generation / "build.log", log, cached=True)
            say(job.name, f"cached, {known.seconds:.1f} s when it was built")
            return _record(job, key, home / known.generation, known, log, cached=True)
        return _make(Builder(shop, job, say, site or Site()), key, home, names, log)


@contextlib.contextmanager
def _alone(home: Path, job: Job, say: Say) -> Iterator[None]:
    """The folder of this key for this build alone; who has it in hand is said before it is waited for."""
    lock, owner = FileLock(home / "lock"), home / "owner"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        whom = owner.read_text(errors="replace") if owner.exists() else "another abprof"
        say(job.name, f"waiting for {whom}, which makes the same build")
        lock.acquire()
    try:
        owner.write_text(f"[{job.name}] of process {os.getpid()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def exists(tree: Path, package: Package) -> bool:
    """Whether a side, or a working tree, has this package: configured, a folder of kernels/ or a file there."""
    if package.path:
        return (tree / package.path).exists() or bool(package.build)  # a recipe may make it
    if package.module:
        return True
    folder = tree / "kernels" / package.name
    return folder.is_dir() or folder.with_suffix(".py").is_file()


def absent(package: Package) -> str:
    """Why a side that has no such package has none."""
    return f"{package.path or 'kernels/' + package.name} does not exist on this side"


def published(home: Path) -> Published | None:
    """What is whole under this key, or None; a record that cannot be read counts as not there."""
    try:
        known = msgspec.json.decode((home / "published.json").read_bytes(), type=Published)
    except (OSError, *UNREADABLE):
        return None
    return known if (home / known.generation).is_dir() else None


def _untouched(cache: Path, place: Path, known: Published, names: Sequence[str], content: str) -> bool:
    """Whether a cached build still is what was published: its copy of the inputs with nothing put beside them that could be
    imported, and every file it loads, also those of its environment (PYTHONPATH); but not those of a run's worktrees, which
    are gone by now."""
    try:
        if keys.importable(place / "src") != known.importable or _compiled(place / "out"):
            return False
        return tree_hash(place / "src", names) == content and all(
            hashlib.sha256(Path(a.path).read_bytes()).hexdigest() == a.sha256
            for a in known.artefacts
            if a.path and not a.path.startswith(f"{cache / 'worktrees'}/")
        )
    except OSError:
        return False


def _make(builder: Builder, key: str, home: Path, names: Sequence[str], log: Path) -> Build:
    job = builder.job
    place = home / _next_generation(home)
    shutil.rmtree(place, ignore_errors=True)  # left by a build that was killed
    for folder in ("src", "out", "caches"):
        (place / folder).mkdir(parents=True)
    _copy(Path(job.checkout.path), place / "src", names)
    began = time.monotonic()
    outcome = builder.run(place, place / "build.log")
    seconds = time.monotonic() - began
    _keep_log(place / "build.log", log, cached=False)
    if isinstance(outcome, Failure):
        shutil.rmtree(place, ignore_errors=True)
        failed = msgspec.structs.replace(outcome, log=log.name)
        return Build(
            side=job.checkout.side.id, kernel=job.package.name, key=key, seconds=seconds, log=log.name, failure=failed
        )
    for made in (place / "src", place / "out"):  # where a tool compiles that minds no variables
        for name in _compiled(made):
            (made / name).unlink()
    lies = keys.importable(place / "src")
    fresh = msgspec.structs.replace(outcome, generation=place.name, seconds=seconds, importable=lies)
    temporary = home / "published.json.partial"
    temporary.write_bytes(msgspec.json.encode(fresh))
    temporary.replace(home / "published.json")
    return _record(job, key, place, fresh, log, cached=False)


def _compiled(folder: Path) -> list[str]:
    """Python's compiled files in the places where it looks for them itself, beside their source."""
    return [name for name in keys.importable(folder, keys.COMPILED) if "__pycache__" in Path(name).parts]


def _next_generation(home: Path) -> str:
    """A number that no generation in use has. What a killed build left behind, before anything was published under
    this key, is wiped and made again at the same path."""
    newest = max((int(p.name) for p in home.iterdir() if p.name.isdigit()), default=-1)
    return str(max(newest, 0) if not (home / "published.json").exists() else newest + 1)


def _copy(tree: Path, src: Path, names: Sequence[str]) -> None:
    for name in names:
        place = src / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / name, place, follow_symlinks=False)


def _keep_log(source: Path, log: Path, *, cached: bool) -> None:
    text = source.read_bytes() if source.exists() else b""
    log.write_bytes((b"[abprof: from the cache; the log of the build that was published]\n" if cached else b"") + text)


def _record(job: Job, key: str, place: Path, known: Published, log: Path, *, cached: bool) -> Build:
    package, where = job.package, f"abprof.toml [kernels.{job.package.name}]"
    named = {"worktree": "{worktree}", "build_dir": "{build_dir}", "side": job.checkout.side.id}
    return Build(
        side=job.checkout.side.id,
        kernel=job.package.name,
        key=key,
        path=str(place),
        cached=cached,
        seconds=known.seconds,
        log=log.name,
        variants=known.variants,
        artefacts=known.artefacts,
        facts=known.facts,
        variables=environment.fill(package.env, where, **named),
        recipe=tuple(part.format(**named) for part in package.build),
        unproved=known.unproved,
        compile_seconds=known.compile_seconds,
    )


# ---------------------------------------------------------------- identical code


def identical(
    builds: Sequence[Build], packages: Mapping[str, Package], toolchain: Mapping[str, Mapping[str, str]]
) -> bool:
    """Whether all sides load the same bytes for a package (`packages`: where each side has it, by its id), under the
    same settings and by the same `toolchain` (of each side), and nothing that they may not. What a case imports or
    reads lazily may not have been loaded by the builder, so the sources that the package can reach must agree too."""
    mine = [b for b in builds if b.side in packages and b.kernel == packages[b.side].name]
    if len(mine) < 2 or any(b.failure or b.unproved for b in mine):
        return False
    if len({msgspec.json.encode(keys.of_side(packages[b.side], b.side)) for b in mine}) > 1:
        return False
    if any(toolchain[b.side] != toolchain[mine[0].side] for b in mine):  # another torch runs the same sources
        return False
    return len({_loaded(b) for b in mine}) == 1 and len({package_content(b, packages[b.side]) for b in mine}) == 1


def _loaded(build: Build) -> frozenset[tuple[str, str, str]]:
    return frozenset((a.kind, a.name, a.sha256) for a in build.artefacts)


def package_content(build: Build, package: Package) -> str:
    """SHA-256 of the files in this build's copy that the package can reach, prose left out.

    Of the conventional layout's kernels/ these are all but the folders of other packages that no file of this one
    names; of a configured package, all its inputs.
    """
    src = Path(build.path) / "src"
    names = [name for name in keys.inputs(src, package) if not name.endswith((".md", ".rst", ".ipynb"))]
    if not (package.path or package.module):
        unreached = _unreached(src, package.name, names)
        names = [name for name in names if not name.startswith(unreached)]
    return tree_hash(src, names)


def _unreached(src: Path, package: str, names: Sequence[str]) -> tuple[str, ...]:
    """Folders of kernels/ whose name is a word in no file of this package, nor of those that it names in turn."""
    folders = {parts[1] for name in names if len(parts := name.split("/")) > 2}
    reached, todo = {package}, [package]
    while todo:
        mine = f"kernels/{todo.pop()}"
        words = {
            word
            for name in names
            if name.startswith(f"{mine}/") or name == f"{mine}.py"
            for word in re.findall(rb"\w+", (src / name).read_bytes())
        }
        found = {folder for folder in folders - reached if folder.encode() in words}
        reached |= found
        todo += found
    return tuple(f"kernels/{folder}/" for folder in folders - reached)
