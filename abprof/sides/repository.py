"""Read the user's repository, and keep abprof's bare clone of it. All writes go to the clone.

The clone is in CACHE/repos/HASH and shares the objects of the user's repository (`git clone --bare --shared`). It holds
worktrees and snapshots, so the user's repository may be read-only. A process locks HASH.lock while it creates the clone
or changes worktrees, and HASH.use (with a shared lock) while it uses the clone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.sides.git import Git, GitError
from abprof.system import locks
from abprof.system.trees import remove_tree

SOURCE = "abprof-source"  # file in a clone: path of the object folder that the clone borrows
_ADVICE = "run abprof inside a repository, or name one with --repo PATH"

# For other programs that run git in a worktree, such as a build's version script: no repacking, pruning or hooks.
_CONFIG = """[gc]
\tauto = 0
\tpruneExpire = never
\tworktreePruneExpire = never
[maintenance]
\tauto = false
[core]
\thooksPath = /dev/null
\tlogAllRefUpdates = false
"""


@dataclass(frozen=True)
class Folder:
    """A folder that is not in a git repository, for a run that compares only releases."""

    path: Path
    cache: Path

    def folders(self) -> tuple[str, ...]:
        """Return (), because there is no work tree."""
        return ()

    def with_commits(self) -> Repository:
        """Raise AbprofError, because there is no repository."""
        raise AbprofError("not a git repository", where=str(self.path), advice=_ADVICE)


@dataclass(frozen=True)
class Link:
    """A commit in the history: its hash, the hashes of its parents, and its subject."""

    commit: str
    parents: tuple[str, ...]
    subject: str


@dataclass(frozen=True)
class Repository:
    """The user's repository, and abprof's bare clone of this repository in the cache folder."""

    path: Path  # root of the work tree
    git_dir: Path  # .git, or .git/worktrees/NAME in a linked worktree
    common_dir: Path  # .git
    objects: Path
    shallow: bool
    cache: Path

    @property
    def reader(self) -> Git:
        """Return a `Git` for commands that only read the user's repository."""
        return Git(str(self.path), {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.path)})

    @cached_property
    def store(self) -> Path:
        """Return abprof's clone, made at first use. Raises AbprofError if the user's repository is a partial clone."""
        if self.reader.maybe("config", "--get-regexp", r"^remote\..*\.promisor$"):
            what = "a partial clone (--filter) lacks objects that abprof borrows"
            raise AbprofError(what, where=str(self.path), advice="use a clone without --filter")
        return open_store(self.cache, self.objects)

    @property
    def git(self) -> Git:
        """Return a `Git` that reads the user's repository and writes new objects into abprof's clone."""
        return self.reader.using(GIT_OBJECT_DIRECTORY=str(self.store / "objects"))

    def with_commits(self) -> Repository:
        """Return this repository. The same method of a `Folder` raises AbprofError."""
        return self

    # ---------------------------------------------------------------- files and names

    def folders(self) -> tuple[str, ...]:
        """Return the paths of all linked work trees of this repository, with this work tree first."""
        rows = self.reader.text("worktree", "list", "--porcelain").split("\n")
        found = [row.removeprefix("worktree ") for row in rows if row.startswith("worktree ")]
        return tuple(dict.fromkeys((str(self.path), *found)))

    def tracked(self) -> list[str]:
        """Return the files that the index lists, relative to the work tree's root."""
        return self.reader.records("ls-files", "-z", "--cached")

    def files(self) -> list[str]:
        """Return the work tree's files, relative to its root, without submodules and files that git ignores."""
        names = self.reader.records("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        return [name for name in sorted(set(names)) if (self.path / name).is_file()]

    def ref_names(self) -> list[str]:
        """Return the short names of all branches, tags and remote branches."""
        form = "--format=%(refname:lstrip=2)"
        names = self.reader.text("for-each-ref", form, "refs/heads", "refs/tags", "refs/remotes").splitlines()
        return [name for name in dict.fromkeys(names) if not name.endswith("/HEAD")]

    def read_file(self, commit: str, path: str) -> bytes | None:
        """Return the content of the file `path` in a commit or tree; None if there is none. Follows symbolic links.
        Raises AbprofError if `path` is a folder."""
        out = self.git.raw("cat-file", "--batch", "--follow-symlinks", stdin=f"{commit}:{path}\n".encode())
        head, _, content = out.partition(b"\n")
        words = head.split()
        if len(words) != 3 or words[1] not in {b"blob", b"tree"}:
            return None
        if words[1] == b"tree":
            raise AbprofError(f"a folder, not a file, in commit {commit[:10]}", where=path)
        return content[: int(words[2])]

    def python_files(self, tree: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return {path: hash} of a tree's files, without links, and {path: text} of its Python files in UTF-8."""
        rows = [row.partition("\t") for row in self.git.records("ls-tree", "-r", "-z", "--full-tree", tree)]
        hashes = {path: head.split()[2] for head, _, path in rows if head.startswith("100") and path.isprintable()}
        wanted, found = [path for path in hashes if path.endswith(".py")], dict[str, str]()
        names = "".join(f"{hashes[path]}\n" for path in wanted)
        out = BytesIO(self.git.raw("cat-file", "--batch", stdin=names.encode()))
        for path in wanted:
            size = out.readline().split()[2:]  # empty if the repository lacks the object
            content = out.read(int(size[0]) + 1)[:-1] if size else b"\xff"
            with contextlib.suppress(UnicodeDecodeError):
                found[path] = content.decode("utf-8-sig")
        return hashes, found

    # ---------------------------------------------------------------- history

    def merge_base(self, a: str, b: str) -> str | None:
        """Return the best common ancestor of two commits; None if the repository has no common ancestor."""
        return self.git.maybe("merge-base", a, b) or None

    def between(self, old: str, new: str) -> tuple[Link, ...]:
        """Return the commits reachable from `new` but not from `old`, parents before children."""
        # rev-list rather than log, because the user's configuration changes log's output. NUL separates commits.
        form = "--format=%P%n%B%x00"
        text = self.git.text("rev-list", "--topo-order", "--reverse", form, f"{old}..{new}", "--")
        links = []
        for part in text.split("\0"):
            head, parents, message = [*part.lstrip("\n").split("\n", 2), "", ""][:3]
            subject = unicode(" ".join(message.partition("\n\n")[0].split()))
            shown = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in subject)
            links += [Link(head.removeprefix("commit "), tuple(parents.split()), shown)] if head else []
        return tuple(links)

    def contents(self, commits: Sequence[str], folders: Sequence[str]) -> dict[str, str]:
        """Return {commit: key}. Commits with equal files in `folders` ("": all files) have equal keys."""
        names = [f"{commit}:{folder}" for commit in commits for folder in folders]
        out = self.git.raw("cat-file", "--batch-check=%(objectname)", stdin="\n".join([*names, ""]).encode())
        found = ["-" if line.endswith(b" missing") else line.split()[0].decode() for line in out.splitlines()]
        width = len(folders)
        return {commit: " ".join(found[i * width : (i + 1) * width]) for i, commit in enumerate(commits)}


def open_repository(path: Path, *, cache: Path) -> Repository:
    """Return the git repository that contains the folder `path`. `cache`: abprof's cache folder. Raises AbprofError if
    `path` is not a folder inside a git repository, or if git refuses to read the repository."""
    path = path.expanduser()
    if not path.is_dir():
        raise AbprofError("not a folder" if path.exists() else "no such folder", where=str(path))
    git = Git(str(path.resolve()))
    facts = ("--is-bare-repository", "--is-inside-work-tree", "--is-shallow-repository", "--show-object-format")
    try:
        bare, inside, shallow, *form = git.text("rev-parse", *facts).split()
    except GitError as error:
        what = "not a git repository" if "not a git repository" in error.stderr else error.line_of_git
        raise AbprofError(what, where=str(path), advice=_ADVICE) from error
    if bare == "true" or inside != "true":
        raise AbprofError("a bare repository or a .git folder, not a working tree", where=str(path), advice=_ADVICE)
    if form == ["sha256"]:
        raise AbprofError("SHA-256 repositories are not supported", where=str(path))
    wanted = (("--show-toplevel",), ("--git-dir",), ("--git-common-dir",), ("--git-path", "objects"))
    found = git.text("rev-parse", *(word for flags in wanted for word in flags)).split("\n")
    if len(found) > len(wanted):  # a path contains newlines
        found = [git.text("rev-parse", *flags) for flags in wanted]
    top, git_dir, common_dir, objects = (Path(git.cwd, name).resolve() for name in found)
    return Repository(top, git_dir, common_dir, objects, shallow == "true", cache.expanduser().absolute())


def unicode(text: str) -> str:
    """Return `text` as valid Unicode, as JSON requires: names in git need not be UTF-8."""
    return os.fsencode(text).decode("utf-8", errors="replace")


def open_store(cache: Path, objects: Path) -> Path:
    """Return the path of the bare clone that shares the object folder `objects`; create a missing clone. Raises
    AbprofError if the clone cannot be created in the folder `cache`."""
    store = cache / "repos" / hashlib.sha256(os.fsencode(objects)).hexdigest()[:16]
    with locks.locked(lock_of(store)):
        locks.hold(store.with_name(f"{store.name}.use"), shared=True)
        if store.is_dir():
            return store
        new = store.with_name(f"{store.name}.new")
        remove_tree(new)  # left by a killed process: this process holds the lock
        quoted = str(objects).replace("\\", "\\\\").replace('"', '\\"')
        try:
            Git(str(new.parent)).text("init", "--bare", "--quiet", "--template=", str(new))
            (new / "objects" / "info").mkdir(exist_ok=True)
            (new / "objects" / "info" / "alternates").write_bytes(os.fsencode(f'"{quoted}"\n'))
            (new / SOURCE).write_bytes(os.fsencode(objects))
            (new / "config").write_text((new / "config").read_text() + _CONFIG)
            new.rename(store)
        except (OSError, GitError) as error:
            why = error.line_of_git if isinstance(error, GitError) else error.strerror
            raise AbprofError(f"cannot use the cache folder: {why}", where=str(cache)) from error
    return store


def lock_of(store: Path) -> Path:
    """Return the path of the lock to hold while creating the clone `store` or changing its worktrees."""
    return store.with_name(f"{store.name}.lock")


class NewRepository:
    """A new repository for a demo. Raises AbprofError if the folder exists and is not empty."""

    def __init__(self, path: Path, branch: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise AbprofError("not an empty folder", where=str(path), advice="name another: abprof demo FOLDER")
        self.path = path
        self._git = Git(str(path))
        self._git.text("init", "--quiet", f"--initial-branch={branch}")

    def commit(self, message: str, files: Mapping[str, str]) -> None:
        """Write `files` (path -> text) and commit the whole folder."""
        for name, text in files.items():
            (self.path / name).write_text(text)
        self._git.text("add", "--all")
        self._git.text("commit", "--quiet", "--no-verify", "-m", message)

    def branch(self, name: str) -> None:
        """Create a branch at the current commit and check it out."""
        self._git.text("checkout", "--quiet", "-b", name)

    def switch(self, name: str) -> None:
        """Check out an existing branch."""
        self._git.text("checkout", "--quiet", name)
