"""The working tree as it is, tracked and unignored files, as a tree in abprof's clone.

It is made as `git add --all` would make it, on a copy of the index. The user's index, refs, stash and objects stay untouched: git
uses the copy through GIT_INDEX_FILE and writes its objects into the clone.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.sides.git import Git, GitError
from abprof.sides.repository import Repository
from abprof.system import locks
from abprof.system.trees import remove_tree

_GITLINK = "160000"


def snapshot(repository: Repository, head: str) -> tuple[str, list[str]]:
    """Return the tree of the working tree's content, and notes on what it leaves out. `head` is the commit checked out.

    Raises AbprofError if git cannot read it.
    """
    folder = repository.cache / "index" / secrets.token_hex(6)
    lock = folder.with_name(f"{folder.name}.lock")  # `sweep` removes a folder whose lock no process holds
    locks.hold(lock)
    root = repository.path
    try:
        folder.mkdir()
        index = folder / "index"
        if (repository.git_dir / "index").exists():
            # With its times: git trusts what is older than the index, and must not trust more because of the copy.
            shutil.copy2(repository.git_dir / "index", index)
        git = repository.git.using(GIT_INDEX_FILE=str(index))
        _look_at_all(git, root)
        git.raw("add", "--all")
        notes = [f"'.' leaves out the nested repository {path}" for path in _drop_nested(git, head)]
        if (root / ".gitmodules").exists():
            notes += [f"uncommitted changes in submodule {path} are not part of '.'" for path in _dirty_submodules(git)]
        return git.text("write-tree"), notes
    except GitError as error:
        what = f"the working tree cannot be read: {error.line_of_git}"
        raise AbprofError(what, where=str(root), advice="mend or ignore it") from error
    except OSError as error:
        raise AbprofError(f"the working tree cannot be read: {error}", where=str(root)) from error
    finally:
        remove_tree(folder)
        locks.drop(lock)


def _look_at_all(git: Git, root: Path) -> None:
    """Clear the marks by which a user makes git overlook a file (assume-unchanged, skip-worktree).

    A file that is absent and marked skip-worktree stays as committed: that is a sparse checkout.
    """
    assumed, skipped = [], []
    for record in git.records("ls-files", "-z", "-v"):
        mark, path = record[0], record[2:]
        if mark.islower():
            assumed.append(path)
        if mark in "Ss" and (root / path).exists():
            skipped.append(path)
    for option, paths in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)):
        if paths:
            git.raw("update-index", option, "-z", "--stdin", stdin=_joined(paths))


def _drop_nested(git: Git, head: str) -> list[str]:
    """Remove repositories that lie in the tree without being submodules: git adds them as bare links. Returns their paths."""
    options = ("-z", "--cached", "--diff-filter=A", "--no-renames", "--ignore-submodules=none")
    added = git.records("diff-index", *options, head, "--")
    pairs = list(zip(added[0::2], added[1::2], strict=True))  # ":oldmode newmode oldhash newhash A", path
    links = [path for head, path in pairs if head.split()[1] == _GITLINK]
    if not links:
        return []
    known = git.maybe("config", "-z", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$") or ""
    submodules = {entry.partition("\n")[2] for entry in known.split("\0")}
    nested = [path for path in links if path not in submodules]
    if nested:
        git.raw("update-index", "--force-remove", "-z", "--stdin", stdin=_joined(nested))
    return nested


def _dirty_submodules(git: Git) -> list[str]:
    dirty = []
    for record in git.records("status", "--porcelain=v2", "-z", "--untracked-files=no", "--ignore-submodules=none"):
        # "1 XY SCMU ...": U or M in the third field says untracked or modified content inside the submodule
        words = record.split(" ", 8)
        if words[0] == "1" and words[2].startswith("S") and set(words[2]) & {"M", "U"}:
            dirty.append(words[8])
    return dirty


def _joined(paths: list[str]) -> bytes:
    return b"".join(path.encode(errors="surrogateescape") + b"\0" for path in paths)
