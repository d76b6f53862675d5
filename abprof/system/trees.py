"""List, hash or remove the files of a folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from abprof.system import doorway


def walk(tree: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through `tree` as os.walk does, but not if `tree` itself is a link."""
    return iter(()) if tree.is_symlink() else os.walk(tree)


def files_of(tree: Path) -> list[str]:
    """Return the sorted relative paths of all files and links below `tree`, without .git and __pycache__."""
    found = []
    for folder, folders, files in walk(tree):
        folders[:] = sorted(name for name in folders if name not in {".git", "__pycache__"})
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        found += [str((Path(folder) / name).relative_to(tree)) for name in (*files, *links) if name != ".git"]
    return sorted(found)


def tree_hash(tree: Path, names: Iterable[str]) -> str:
    """Return a SHA-256 of files: of their names, executable bits and bytes (of a link: its target). Raises OSError."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode("utf-8", "surrogateescape"))
        if (link := link_of(tree, name)) is not None:
            digest.update(b"link\0" + link)
            continue
        with doorway.opened(tree / name, tree) as file:
            digest.update(b"x" if os.fstat(file.fileno()).st_mode & 0o111 else b"-")
            digest.update(bytes.fromhex(doorway.hashed(file)))
    return digest.hexdigest()


def link_of(tree: Path, name: str) -> bytes | None:
    """Return the target of the link `name` below `tree`; None if `name` is no link. Raises OSError."""
    with doorway.entry(tree / name, tree) as (last, folder):
        if stat.S_ISLNK(os.lstat(last, dir_fd=folder).st_mode):
            return os.readlink(os.fsencode(last), dir_fd=folder)
    return None


def inventory(tree: Path, folders: Iterable[str]) -> dict[str, str]:
    """Return the path, relative to `tree`, of every file in its `folders` -> type, mode, size and content.

    Links are not followed, and only regular files are read. Raises OSError.
    """
    found = {}
    for top in folders:
        for folder, inner, names in os.walk(tree / top):
            for path in (f"{folder}/{name}" for name in (*names, *inner)):
                seen = os.lstat(path)
                if stat.S_ISLNK(seen.st_mode):
                    found[os.path.relpath(path, tree)] = f"link {os.fsencode(Path(path).readlink())!r}"
                elif stat.S_ISREG(seen.st_mode):
                    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                        digest = hashlib.file_digest(file, "sha256").hexdigest()
                    found[os.path.relpath(path, tree)] = f"{seen.st_mode:o} {seen.st_size} {digest}"
                elif not stat.S_ISDIR(seen.st_mode):
                    found[os.path.relpath(path, tree)] = f"{seen.st_mode:o}"
    return found


def remove_tree(path: Path) -> bool:
    """Remove a folder and everything in it, also read-only folders. Return False if something is left.

    The folder is renamed first, so that other processes see either the whole folder or nothing.
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
    for _ in range(3):  # a git command whose parent was killed may still write
        _make_writable(path)
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return True
        time.sleep(0.1)
    return False


def _make_writable(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o700)
            for entry in folder.iterdir():
                _make_writable(entry)
