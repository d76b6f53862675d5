"""What lies between two commits: each with its parents, and what it holds under given folders. For `abprof bisect`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from abprof.sides.locate import Repository

_REVERTS = re.compile(r"\bThis reverts commit ([0-9a-f]{7,64})\b")


@dataclass(frozen=True)
class Link:
    """A commit as part of a history. `reverts`: commits that its message says it takes back."""

    commit: str
    parents: tuple[str, ...]
    subject: str
    reverts: tuple[str, ...] = ()


def is_ancestor(repository: Repository, old: str, new: str) -> bool:
    """Whether `new` can be reached from `old`; a commit is its own ancestor."""
    # Counting what rev-list shows errs where commits are dated before their parents.
    return repository.git.status("merge-base", "--is-ancestor", old, new)[0] == 0


def between(repository: Repository, old: str, new: str) -> tuple[Link, ...]:
    """Every commit that `new` has and `old` has not, parents before children. Raises GitError."""
    # rev-list rather than log, which the user's configuration can bend. NUL ends a commit, for a message may hold anything.
    text = repository.git.text("rev-list", "--topo-order", "--reverse", "--format=%P%n%B%x00", f"{old}..{new}", "--")
    return tuple(_link(part.lstrip("\n")) for part in text.split("\0") if part.strip())


def _link(text: str) -> Link:
    head, parents, message = [*text.split("\n", 2), "", ""][:3]
    subject = " ".join(message.partition("\n\n")[0].split())
    text = os.fsencode(subject).decode("utf-8", errors="replace")  # what goes into JSON must be UTF-8
    shown = "".join(
        sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text
    )  # a terminal obeys others
    return Link(head.removeprefix("commit "), tuple(parents.split()), shown, tuple(_REVERTS.findall(message)))


def contents(repository: Repository, commits: Sequence[str], folders: Sequence[str]) -> dict[str, str]:
    """What each commit holds under `folders` (relative to the root, "" for all of it): equal texts, equal files.

    One question to git for all of them, by the hashes of its trees.
    """
    asked = [f"{commit}:{folder}" for commit in commits for folder in folders]
    out = repository.git.raw("cat-file", "--batch-check=%(objectname)", stdin="\n".join([*asked, ""]).encode())
    answers = [line.split()[0] if not line.endswith(b" missing") else b"-" for line in out.splitlines()]
    found = [answer.decode() for answer in answers]
    width = len(folders)
    return {commit: " ".join(found[i * width : (i + 1) * width]) for i, commit in enumerate(commits)}
