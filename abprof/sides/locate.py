"""Finding a repository, and the record of where its parts lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.sides.git import Git, GitError
from abprof.sides.store import open_store

ADVICE = "run abprof inside a repository, or name one with --repo PATH"


@dataclass(frozen=True)
class Folder:
    """A folder in the place of a repository, for a run of releases alone: no commit is asked for."""

    path: Path
    cache: Path


@dataclass(frozen=True)
class Repository:
    """The user's repository, which is only ever read, and the cache folder where abprof's clone of it lives."""

    path: Path  # root of the work tree
    git_dir: Path  # .git, or .git/worktrees/NAME in a linked worktree
    common_dir: Path  # .git
    objects: Path
    object_format: str  # sha1, sha256
    shallow: bool
    cache: Path

    @property
    def reader(self) -> Git:
        """Git on the user's repository, before there is a clone."""
        return Git(str(self.path), {"GIT_DIR": str(self.git_dir), "GIT_WORK_TREE": str(self.path)})

    @cached_property
    def store(self) -> Path:
        """The clone, made on first use."""
        return open_store(
            self.cache,
            objects=str(self.objects),
            object_format=self.object_format,
            extra=_promisors(self.reader),
        )

    @property
    def git(self) -> Git:
        """Git on the user's repository, where every object that is written lands in abprof's clone.

        Also what a partial clone fetches when it misses something lands there.
        """
        return self.reader.using(GIT_OBJECT_DIRECTORY=str(self.store / "objects"))


def folders(repository: Repository | Folder) -> tuple[str, ...]:
    """The folders of the user's repository: its own work tree first, then those of `git worktree add`."""
    if isinstance(repository, Folder):
        return ()
    rows = repository.reader.text("worktree", "list", "--porcelain").split("\n")
    found = [row.removeprefix("worktree ") for row in rows if row.startswith("worktree ")]
    return tuple(dict.fromkeys((str(repository.path), *found)))


def present(repository: Repository) -> list[str]:
    """Files of the work tree that are tracked, or not ignored, relative to its root: what `.` holds, without submodules."""
    names = repository.reader.records("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return [name for name in sorted(set(names)) if (repository.path / name).is_file()]


def open_repository(path: Path, *, cache: Path) -> Repository:
    """The repository that `path` (a folder, at any depth) belongs to. `cache` is abprof's cache folder.

    Raises AbprofError: no such folder, not a repository, bare, or git refuses to read it.
    """
    path = path.expanduser()
    if not path.is_dir():
        raise AbprofError("not a folder" if path.exists() else "no such folder", where=str(path))
    git = Git(str(path.resolve()))
    try:
        kind = git.text("rev-parse", "--is-bare-repository", "--is-inside-work-tree").split()
    except GitError as error:
        raise _unreadable(path, error) from error
    if kind[0] == "true":
        raise AbprofError("a bare repository has no working tree", where=str(path), advice="clone it first")
    if kind[1] != "true":
        raise AbprofError("inside a .git folder, not a working tree", where=str(path), advice=ADVICE)

    def place(*flags: str) -> Path:
        # Asked one by one, because a path may hold newlines; relative ones are relative to where git ran.
        return Path(git.cwd, git.text("rev-parse", *flags)).resolve()

    return Repository(
        path=place("--show-toplevel"),
        git_dir=place("--git-dir"),
        common_dir=place("--git-common-dir"),
        objects=place("--git-path", "objects"),
        object_format="sha256" if git.maybe("rev-parse", "--show-object-format") == "sha256" else "sha1",
        shallow=git.text("rev-parse", "--is-shallow-repository") == "true",
        cache=cache.expanduser().absolute(),
    )


def _unreadable(path: Path, error: GitError) -> AbprofError:
    if "not a git repository" in error.stderr:
        return AbprofError("not a git repository", where=str(path), advice=ADVICE)
    if "dubious ownership" in error.stderr or "unsafe repository" in error.stderr:
        # git older than 2.38 takes safe.directory from a configuration file only
        advice = f"git config --global --add safe.directory '{path}'"
        return AbprofError("another user owns the repository, so git refuses it", where=str(path), advice=advice)
    return AbprofError(error.said, where=str(path))


def _promisors(git: Git) -> str:
    """Configuration that lets a clone of a partial clone fetch what is missing from where the user's would."""
    remotes: dict[str, list[str]] = {}
    pattern = r"^remote\..*\.(url|promisor|partialclonefilter)$"
    status, out, _ = git.status("config", "-z", "--get-regexp", pattern)
    for entry in out.decode(errors="surrogateescape").split("\0") if status == 0 else ():
        key, _, value = entry.partition("\n")
        name, _, variable = key.removeprefix("remote.").rpartition(".")
        if name:
            remotes.setdefault(name, []).append(f'\t{variable} = "{_escaped(value)}"\n')
    partial = {name: lines for name, lines in remotes.items() if any("promisor = " in line for line in lines)}
    text = "".join(f'[remote "{_escaped(name)}"]\n{"".join(lines)}' for name, lines in partial.items())
    first = next(iter(partial), "")
    return text + f'[extensions]\n\tpartialClone = "{_escaped(first)}"\n' if partial else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
