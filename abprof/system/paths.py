"""Find the folders that outlive a run, cache (clones, builds, releases) and state (locks, self-checks), and
those that come with abprof."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Literal

from abprof.records.errors import AbprofError
from abprof.system import files


def bundled(kind: Literal["kernels", "workloads", "templates"]) -> Path:
    """Return the folder `abprof/_bundled/KIND` of an installed wheel, or KIND at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    carried = package / "_bundled" / kind
    return carried if carried.is_dir() else package.parent / kind


def cache_dir() -> Path:
    """Return $ABPROF_CACHE_DIR, or abprof's folder in the user's cache. Raises AbprofError if not writable."""
    return _folder("ABPROF_CACHE_DIR", "user_cache_path")


def state_dir() -> Path:
    """Return $ABPROF_STATE_DIR, or abprof's folder in the user's state folder. Raises AbprofError if not writable."""
    return _folder("ABPROF_STATE_DIR", "user_state_path")


def build_key_file() -> Path:
    """Return the file with the key that authenticates builds, made if missing. Sandboxes hide it. Raises AbprofError."""
    file = state_dir() / "build-key"
    with files.refusals(file):
        if not file.exists():
            fresh = file.with_name(f".{secrets.token_hex(8)}.partial")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
                written.write(secrets.token_bytes(32))
            with contextlib.suppress(FileExistsError):  # another abprof may make it now
                os.link(fresh, file)
            fresh.unlink()
    return file


def home() -> Path | None:
    """Return the user's home folder; None if the user has neither an account nor $HOME, as in some containers."""
    with contextlib.suppress(RuntimeError):
        if Path.home().is_absolute():
            return Path.home()
    return None


def _homeless(variable: str) -> Path:
    path = Path(tempfile.gettempdir()) / f"abprof-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        what = "there is no home folder, and another user owns this temporary folder"
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
        raise AbprofError(error.strerror or "cannot be created", where=str(path), advice=f"set {variable}") from error
    if not os.access(path, os.W_OK):
        raise AbprofError("not writable", where=str(path), advice=f"set {variable} to a writable folder")
    return path
