"""`abprof clean`: what killed runs left in abprof's own folders, and builds that others have superseded.

A run folder that has a run.json is never touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from abprof import sides as repo
from abprof import store
from abprof.builds.build import published
from abprof.devices import sweep_leases
from abprof.fleet import bundle
from abprof.records.errors import AbprofError
from abprof.system import locks as leases
from abprof.system import paths

BUILDS_IN_USE = Path("builds", ".in-use")  # under the cache folder; every run that builds and measures holds it


def clean(*, builds: bool, everything: bool) -> list[str]:
    """Remove what no living run uses; a line for each thing removed.

    Raises AbprofError when builds are to be removed while a run may be using them: a worker loads them as it goes.
    """
    state = paths.state_dir()
    return [*store.sweep(state), *sweep_leases(state), *_cache(builds=builds, everything=everything)]


def _cache(*, builds: bool, everything: bool) -> list[str]:
    cache = paths.cache_dir()
    with leases.abandoned(cache / BUILDS_IN_USE) as free:
        if builds and not free:
            raise AbprofError("a run is using the builds", where="abprof clean", advice="wait for its end")
        lines = [*repo.sweep(cache, everything=everything), *_builds(cache / "builds", everything=builds)]
        lines += [*bundle.sweep(cache, everything=everything)]
        # Workers load the generation that was published when their run began, whatever was published since.
        return [*lines, *(_superseded(cache / "builds") if free else ())]


def _builds(folder: Path, *, everything: bool) -> Iterator[str]:
    """Builds that were never published, or all of them; a build whose lock is held is somebody's."""
    for home in sorted(path for path in folder.glob("*") if path.is_dir()):
        try:
            with FileLock(home / "lock", timeout=0):
                if everything:
                    shutil.rmtree(home, ignore_errors=True)
                    yield f"removed the build {home.name}"
                elif not (home / "published.json").exists():
                    shutil.rmtree(home, ignore_errors=True)
                    yield f"removed the unfinished build {home.name}"
        except (Timeout, OSError):
            continue


def _superseded(folder: Path) -> Iterator[str]:
    """Generations in whose place another was published. Only while no run is using any build."""
    for home in sorted(path for path in folder.glob("*") if path.is_dir()):
        known = published(home)
        for place in sorted(path for path in home.iterdir() if path.name.isdigit()):
            if known and place.name != known.generation:
                shutil.rmtree(place, ignore_errors=True)
                yield f"removed the superseded build {home.name}/{place.name}"
