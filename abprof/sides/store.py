"""abprof's own bare clone of a repository: worktrees hang off it and snapshots are written into it, so that nothing
is registered, locked or written in the user's .git and a read-only repository will do.

It is a `git clone --bare --shared` without the refs: an empty object store whose alternates name the user's.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.sides.git import Git, GitError
from abprof.system import locks as leases
from abprof.system.trees import remove_tree

SOURCE = "abprof-source"  # file with the path of the object folder a clone borrows from

# For whatever else runs git in a worktree (a build's version script): it must not repack, prune or fire hooks either.
CONFIG = """[gc]
\tauto = 0
\tpruneExpire = never
\tworktreePruneExpire = never
[maintenance]
\tauto = false
[core]
\thooksPath = /dev/null
\tlogAllRefUpdates = false
"""


def lock_of(store: Path) -> Path:
    """Held while the clone is made or its worktrees change."""
    return store.with_name(f"{store.name}.lock")


def use_of(store: Path) -> Path:
    """Held, shared, by every process that uses the clone."""
    return store.with_name(f"{store.name}.use")


def open_store(cache: Path, *, objects: str = "", url: str = "", object_format: str = "sha1", extra: str = "") -> Path:
    """The bare clone that borrows from the object folder `objects`, or stands alone and is filled from `url`.

    Made if need be; `extra` is appended to its configuration. Raises AbprofError for an unusable cache folder.
    """
    key = f"{objects}\n{url}\n{object_format}\n{extra}".encode(errors="surrogateescape")
    store = cache / "repos" / hashlib.sha256(key).hexdigest()[:16]
    with leases.locked(lock_of(store)):
        leases.hold(use_of(store), shared=True)
        if not store.is_dir():
            try:
                _make(store, objects, object_format, extra)
            except OSError as error:
                raise AbprofError(f"cannot use the cache folder: {error.strerror}", where=str(cache)) from error
            except GitError as error:
                raise AbprofError(f"cannot use the cache folder: {error.said}", where=str(cache)) from error
    return store


def half_made(store: Path) -> Path:
    """Where a clone is put together before it gets its name."""
    return store.with_name(f"{store.name}.new")


def _make(store: Path, objects: str, object_format: str, extra: str) -> None:
    new = half_made(store)
    if new.exists():
        remove_tree(new)  # its maker was killed: we hold the lock
    form = [] if object_format == "sha1" else [f"--object-format={object_format}"]
    Git(str(store.parent)).text("init", "--bare", "--quiet", "--template=", *form, str(new))
    if objects:
        info = new / "objects" / "info"
        info.mkdir(exist_ok=True)
        # Git unquotes a line that starts with a double quote, C style.
        quoted = objects.replace("\\", "\\\\").replace('"', '\\"')
        (info / "alternates").write_text(f'"{quoted}"\n', errors="surrogateescape")
        (new / SOURCE).write_text(objects, errors="surrogateescape")
    with open(new / "config", "a", errors="surrogateescape") as config:
        config.write(CONFIG + extra)
    (new / "config").chmod(0o600)  # a remote's URL may hold a token
    new.rename(store)


def source_of(store: Path) -> Path | None:
    """The object folder a clone borrows from; None for one that stands alone."""
    with contextlib.suppress(FileNotFoundError):
        return Path((store / SOURCE).read_text(errors="surrogateescape"))
    return None
