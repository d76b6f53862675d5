"""From what the user typed to a commit: each name is resolved once, here."""

from __future__ import annotations

import os
import re
import unicodedata

from abprof.records.errors import AbprofError
from abprof.sides.git import Git
from abprof.sides.history import nearest_names, ref_names
from abprof.sides.locate import Repository

HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
HEX = re.compile(r"[0-9a-fA-F]{4,64}")
MOST_NAMED = 6
LONGEST = 4096  # characters; no file system holds a longer ref
PREFIXES = ("refs/heads/", "refs/tags/", "refs/remotes/", "refs/")


def commit_of(repository: Repository, spec: str) -> str:
    """The commit a branch, remote branch, tag, hash or expression such as HEAD~2 stands for.

    Raises AbprofError, with the nearest names, for one that stands for none.
    """
    _refuse_odd(spec)
    git = repository.git
    # With the suffix first: it settles an abbreviation that a commit shares with a file. `:/words` cannot bear one.
    commit = _verify(git, f"{spec}^{{commit}}")
    if commit is not None:
        return commit
    found = _verify(git, spec)
    commit = _verify(git, f"{found}^{{commit}}") if found else None
    if commit is not None:
        return commit
    kind = git.maybe("cat-file", "-t", found) if found else None  # a full hash is taken at its word up to here
    if kind is None:
        raise unknown(repository, spec)
    raise AbprofError(f"{spec!r} is a {kind}, not a commit")


def _verify(git: Git, spec: str) -> str | None:
    found = git.maybe("rev-parse", "--verify", "--quiet", spec)
    return found if found and HASH.fullmatch(found) else None


def watched_branch(repository: Repository) -> str:
    """The branch that others push to: the remote's HEAD (`origin/main`), of origin where there are several; without a remote the
    branch that is checked out. Raises AbprofError where git knows of none."""
    git = repository.git
    remotes = git.text("remote").split()
    for remote in [name for name in ("origin", *remotes[:1]) if name in remotes]:
        head = git.maybe("symbolic-ref", "--quiet", "--short", f"refs/remotes/{remote}/HEAD")
        usual = [f"{remote}/{name}" for name in ("main", "master") if _verify(git, f"refs/remotes/{remote}/{name}")]
        if head or usual:
            return head or usual[0]
    current = git.maybe("symbolic-ref", "--quiet", "--short", "HEAD") if not remotes else None
    if not current:
        what = "git does not know which branch others push to" if remotes else "no branch is checked out"
        raise AbprofError(what, where="--branch", advice="name it, or: git remote set-head origin --auto")
    return current


def ref_of(repository: Repository, spec: str) -> str:
    """The full name of the ref that `spec` is; "" where it is a hash or an expression."""
    git = repository.git
    name = git.maybe("rev-parse", "--symbolic-full-name", spec) or ""
    if name.startswith("refs/"):
        return name
    tag = f"refs/tags/{spec}"  # git does not say which one it took where there is a branch as well
    return tag if _verify(git, tag) else ""


def label_of(repository: Repository, spec: str, commit: str) -> str:
    """The branch or tag name as people say it, else the commit's first 10 digits."""
    ref = ref_of(repository, spec)
    for prefix in PREFIXES:
        if ref.startswith(prefix):
            return ref.removeprefix(prefix)
    return commit[:10]


def ambiguity(repository: Repository, spec: str) -> str:
    """A line that says so where `spec` is both a tag and a branch, and these differ; else ""."""
    git = repository.git
    branch = _verify(git, f"refs/heads/{spec}^{{commit}}")
    tag = _verify(git, f"refs/tags/{spec}^{{commit}}") if branch else None
    if not branch or not tag or branch == tag:
        return ""
    return f"{spec} is a tag ({tag[:10]}) and a branch ({branch[:10]}): the tag was taken, heads/{spec} is the branch"


def unknown(repository: Repository, spec: str) -> AbprofError:
    """Why `spec` stands for no commit, and what the user may have meant."""
    git = repository.git
    if _verify(git, "HEAD") is None and (spec in {"HEAD", "@"} or not ref_names(repository)):
        return AbprofError("the repository has no commit yet", where=str(repository.path))
    if HEX.fullmatch(spec) and len(git.text("rev-parse", f"--disambiguate={spec}").split()) > 1:
        return AbprofError(f"several objects begin with {spec!r}", advice="give more digits")
    near = nearest_names(repository, spec)
    hints = [f"nearest: {', '.join(near)}"] if near else _some(repository)
    if "/" in spec and os.path.isdir(os.path.expanduser(spec)):  # noqa: PTH111, PTH112 - which raise nothing
        hints = ["a folder is no ref: . is the working tree, --repo names another repository"]
    elif ".." in spec:
        hints = ["give base and target as two words, or base...target for the merge base"]
    elif repository.shallow:
        return AbprofError(f"{spec!r} is not in this shallow clone", advice="; ".join([*hints, _deepen(spec)]))
    return AbprofError(f"unknown ref {spec!r}", advice="; ".join(hints))


def _some(repository: Repository) -> list[str]:
    """What there is, for somebody who typed nothing like it; branches come first."""
    names = ref_names(repository)
    more = ", ..." if len(names) > MOST_NAMED else ""
    return [f"there are {', '.join(names[:MOST_NAMED])}{more}"] if names else []


def _deepen(spec: str) -> str:
    if HEX.fullmatch(spec) or re.search(r"[~^@:]", spec):
        return "git fetch --unshallow, or git fetch --depth=N with a larger N"
    return f"git fetch --unshallow origin '+refs/heads/*:refs/remotes/origin/*', then origin/{spec}"


def _refuse_odd(spec: str) -> None:
    if not spec.strip():
        raise AbprofError("an empty name is no ref")
    if spec.startswith("-"):
        raise AbprofError(f"{spec!r} is no ref: it starts with '-'")
    if spec.startswith("^") or len(spec) > LONGEST or any(unicodedata.category(sign) == "Cc" for sign in spec):
        raise AbprofError(f"{spec[:80]!r} is no ref")
