"""The worker's code, copied by content to a folder of its own, so that nothing else of abprof's installation (or of a
branch that has an abprof/ folder too) is importable beside the kernels under test."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from abprof.records.errors import AbprofError

_SOURCE = Path(__file__).parent.parent
_FILES = ("__init__.py", "kit.py")
_ROOMS = ("records/messages", "worker")
_RUN = """import gc, os, sys
gc.disable()
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from abprof.worker.main import main
sys.exit(main())
"""


def install(cache: Path) -> Path:
    """The script that starts a worker: CACHE/harness/HASH/run_worker.py. Made once per content, by rename.

    A copy that holds anything else than the source (code under test may have written to it) is put away and made anew.
    """
    # records/ itself needs msgspec: the worker gets its messages alone.
    files = {"run_worker.py": _RUN.encode(), "abprof/records/__init__.py": b""}
    for file in [_SOURCE / name for name in _FILES] + [f for room in _ROOMS for f in (_SOURCE / room).rglob("*.py")]:
        files[f"abprof/{file.relative_to(_SOURCE)}"] = file.read_bytes()
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0".encode() + files[name])
    home = cache / "harness" / digest.hexdigest()[:16]
    if not _holds(home, files):
        _publish(home, files)
    return home / "run_worker.py"


def _holds(home: Path, files: Mapping[str, bytes]) -> bool:
    """Whether these files are there, with these bytes, and nothing beside them: no link and no compiled Python either."""
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    try:
        for path in [home, *home.rglob("*")]:
            name = str(path.relative_to(home))
            if path.is_symlink() or name not in (folders if path.is_dir() else files):
                return False
        return all((home / name).read_bytes() == text for name, text in files.items())
    except OSError:
        return False


def _publish(home: Path, files: Mapping[str, bytes]) -> None:
    fresh = home.with_name(f"{home.name}.{os.getpid()}.{secrets.token_hex(4)}")
    for name, text in files.items():
        place = fresh / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)
    if _moved(fresh, home):
        return
    # Another process published the same content first, or what lies there is not the source's.
    aside = fresh.with_name(f"{fresh.name}.old")
    if not _holds(home, files) and _moved(home, aside):
        _moved(fresh, home)
    for left in (aside, fresh):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    if not _holds(home, files):
        raise AbprofError("the worker's code is not what was put there", where=str(home), advice="remove it by hand")


def _moved(place: Path, to: Path) -> bool:
    try:
        place.rename(to)
    except OSError:
        return False
    return True
