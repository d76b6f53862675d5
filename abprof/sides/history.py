"""Questions about commits: what they hold, how they are related, what refs there are."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from abprof.records.errors import AbprofError
from abprof.sides.locate import Repository

REF_LIMIT = 5000  # names that are compared letter by letter; more would take seconds


@dataclass(frozen=True)
class Commit:
    """A commit, by content."""

    commit: str
    tree: str
    subject: str


def read_commit(repository: Repository, commit: str) -> Commit:
    """The commit with this hash. Raises GitError where it is not there."""
    # rev-list rather than log or show, which the user's configuration can bend.
    text = repository.git.text("rev-list", "--max-count=1", "--format=%T%n%s", commit, "--")
    lines = text.split("\n", 2)
    return Commit(commit=commit, tree=lines[1], subject=" ".join("".join(lines[2:]).split()))


def merge_base(repository: Repository, a: str, b: str) -> str | None:
    """The best common ancestor of two commits; None where they have none, or the clone is too shallow to tell."""
    return repository.git.maybe("merge-base", a, b) or None


def commits_between(repository: Repository, a: str, b: str) -> int:
    """How many commits `b` has that `a` has not."""
    return int(repository.git.text("rev-list", "--count", f"{a}..{b}", "--"))


def commits_touching(repository: Repository, a: str, b: str, paths: Sequence[str]) -> int:
    """How many commits that `b` has and `a` has not change something under `paths` (relative to the root).

    Merges are left out: what they bring in has been counted already.
    """
    if not paths:
        return 0
    specs = [f":(top,literal){path}" for path in paths]
    return int(repository.git.text("rev-list", "--count", "--no-merges", "--full-history", f"{a}..{b}", "--", *specs))


def read_file(repository: Repository, commit: str, path: str) -> bytes | None:
    """The content of `path` (relative to the root; links are followed) in a commit or tree; None where there is none.

    Raises AbprofError where `path` is a folder.
    """
    out = repository.git.raw("cat-file", "--batch", "--follow-symlinks", stdin=f"{commit}:{path}\n".encode())
    head, _, content = out.partition(b"\n")
    words = head.split()
    if len(words) != 3 or words[1] not in {b"blob", b"tree"}:
        return None
    if words[1] == b"tree":
        raise AbprofError(f"a folder in commit {commit[:10]}", where=path)
    return content[: int(words[2])]


def ref_names(repository: Repository) -> list[str]:
    """Short names of all branches, tags and remote branches."""
    form = "--format=%(refname:lstrip=2)"
    names = repository.reader.text("for-each-ref", form, "refs/heads", "refs/tags", "refs/remotes").splitlines()
    return [name for name in dict.fromkeys(names) if not name.endswith("/HEAD")]


def nearest_names(repository: Repository, name: str, limit: int = 3) -> tuple[str, ...]:
    """The refs that a person who typed `name` may have meant, best first."""
    names = ref_names(repository)
    # What holds the name typed, such as origin/NAME for a branch that was never checked out here.
    holding = sorted((ref for ref in names if name and name.lower() in ref.lower()), key=len)[:limit]
    names.sort(key=lambda ref: abs(len(ref) - len(name)))
    alike = difflib.get_close_matches(name, names[:REF_LIMIT], n=limit, cutoff=0.6)
    return tuple(dict.fromkeys([*holding, *alike]))[:limit]
