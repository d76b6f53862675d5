"""Removing folders that other programs wrote."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path


def remove_tree(path: Path) -> bool:
    """Remove a folder with all it holds, read-only folders included. False where something is left.

    It goes out of the way under another name first, so that whoever meets the name finds either all of it or nothing.
    A git command whose parent was killed may still be writing into it, hence the second and third try.
    """
    if not path.name.startswith(".gone-"):
        gone = path.with_name(f".gone-{os.getpid()}-{path.name}")
        try:
            path.rename(gone)
        except FileNotFoundError:
            return True
        except OSError:
            gone = path
        path = gone
    for _ in range(3):
        _make_writable(path)
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return True
        time.sleep(0.1)
    return False


def _make_writable(top: Path) -> None:
    """Folders must be writable for their entries to be removed."""
    _allow(top)
    for parent, folders, _ in os.walk(top):
        for folder in folders:
            _allow(Path(parent, folder))


def _allow(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if not folder.is_symlink() and folder.stat().st_mode & 0o700 != 0o700:
            folder.chmod(0o700)
