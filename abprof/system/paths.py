"""Folders that outlive a run: cache (clones, builds, releases) and state (locks, heartbeats, self-checks)."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from abprof.records.errors import AbprofError


def cache_dir() -> Path:
    """$ABPROF_CACHE_DIR, or abprof's folder in the user's cache. Raises AbprofError when it cannot be written."""
    return _folder("ABPROF_CACHE_DIR", "user_cache_path")


def state_dir() -> Path:
    """$ABPROF_STATE_DIR, or abprof's folder in the user's state folder. Raises AbprofError when it cannot be written."""
    return _folder("ABPROF_STATE_DIR", "user_state_path")


def home() -> Path | None:
    """The user's home folder; None for a container's user without a name and without $HOME."""
    with contextlib.suppress(RuntimeError):
        if Path.home().is_absolute():
            return Path.home()
    return None


def _homeless(variable: str) -> Path:
    """A temporary folder of this user's own, for a container's user without a home. Raises AbprofError for another user's."""
    path = Path(tempfile.gettempdir()) / f"abprof-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        what = "there is no home folder, and this one is another user's"
        raise AbprofError(what, where=str(path), advice=f"set {variable}")
    return path


def _folder(variable: str, default: str) -> Path:
    import platformdirs

    there = home()
    if os.environ.get(variable) or (there and there.is_dir()):
        path = Path(os.environ.get(variable) or getattr(platformdirs, default)("abprof")).absolute()
    else:
        path = _homeless(variable) / default.split("_")[1]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AbprofError(error.strerror or "cannot be made", where=str(path), advice=f"set {variable}") from error
    if not os.access(path, os.W_OK):
        raise AbprofError("cannot be written", where=str(path), advice=f"set {variable} to a folder that can")
    return path
