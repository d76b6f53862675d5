"""List, hash or remove the files of a folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from secrets import token_hex

from abprof.system import doorway


def walk(tree: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through `tree` as os.walk does, however deep it is. Links count as files; nothing if `tree` is one."""
    todo = [] if tree.is_symlink() else [str(tree)]
    while todo:
        folder, folders, files = todo.pop(), list[str](), list[str]()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        yield folder, folders, files
        todo += [f"{folder}/{name}" for name in folders]


def files_of(tree: Path) -> list[str]:
    """Return the sorted relative paths of all files and links below `tree`, without .git and __pycache__."""
    found = []
    for folder, folders, files in walk(tree):
        folders[:] = [name for name in folders if name not in {".git", "__pycache__"}]
        found += [str((Path(folder) / name).relative_to(tree)) for name in files if name != ".git"]
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
    """Return the path, relative to `tree`, of every file in its `folders` -> type, mode, size and content. Links are
    not followed, and only regular files are read. Raises OSError."""
    found = {}
    for folder, _, names in (each for top in folders for each in walk(tree / top)):
        for path in (Path(folder, name) for name in names):
            seen, name = path.lstat(), os.path.relpath(path, tree)
            found[name] = f"{seen.st_mode:o}"
            if stat.S_ISLNK(seen.st_mode):
                found[name] += f" {os.fsencode(path.readlink())!r}"
            elif stat.S_ISREG(seen.st_mode):
                found[name] += f" {seen.st_size} {doorway.sha256(path, tree)}"
    return found


def remove_tree(path: Path) -> bool:
    """Remove a folder and everything in it, also read-only folders. Return False if something is left. The folder is
    renamed first, so that other processes see either the whole folder or nothing."""
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
        with contextlib.suppress(OSError):
            _remove(path)
            return True
        if not path.exists():
            return True
        time.sleep(0.1)
    return False


def _remove(top: Path) -> None:
    """Remove a folder. Moves inner folders up first, because code under test can nest them deeper than a path may be
    long. Raises OSError."""
    if top.is_symlink():
        top.unlink()
        return
    top.chmod(0o700)
    while folders := _emptied(top):
        for folder in folders:
            for inner in _emptied(folder):
                inner.rename(top / token_hex(8))
            folder.rmdir()
    top.rmdir()


def _emptied(folder: Path) -> list[Path]:
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
                folders[-1].chmod(0o700)
            else:
                Path(entry.path).unlink()
    return folders
