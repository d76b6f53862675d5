"""Specs to sides: each name the user typed is resolved once, with notes on what a person should know about the comparison."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from abprof.records import Side
from abprof.records.errors import AbprofError
from abprof.sides.repository import Folder, Repository, unicode
from abprof.sides.snapshot import snapshot

_WORKING_TREE = "."
_RANGE = "..."
_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_HEX = re.compile(r"[0-9a-fA-F]{4,64}")
_MOST_NAMED = 6  # refs that a message lists
_MOST_COMPARED = 5000  # ref names that are compared letter by letter; more would take seconds
_LONGEST = 4096  # characters; no file system holds a longer ref
_DEEPER = "git fetch --unshallow, or git fetch --depth=N with a larger N"
_ALIKE = {
    "commit": "are the same commit {}",
    "worktree": "are the same working tree",
    "dist": "are the same release",
}


def resolve(
    repository: Repository | Folder,
    specs: Sequence[str],
    *,
    kernel_paths: Sequence[str] = ("kernels",),
    known: Mapping[str, tuple[Side, Sequence[str]]] = MappingProxyType({}),
) -> tuple[tuple[Side, ...], tuple[str, ...]]:
    """Return the sides (base, target, target2, ...) that `specs` name, and notes about them.

    A spec is a branch, remote branch, tag, commit (abbreviated too), an expression such as HEAD~2, or `.` for the working tree
    as it is. The first may be `base...target`: their merge base and the target. The notes count commits that touch
    `kernel_paths`, relative to the root. `known` has the sides of specs that are no refs, with their notes; if it has all, a
    folder will do. Raises AbprofError for a spec that names no commit.
    """
    if not specs:
        raise AbprofError("no ref given", advice="abprof BASE TARGET, or abprof run REF")
    for spec in specs[1:]:
        if _RANGE in spec:
            raise AbprofError(f"{spec!r} can only come first", advice="base...target stands for base and target")
    names = _Specs(repository, {spec: (side, list(notes)) for spec, (side, notes) in known.items()})
    fork = _fork(names, specs[0]) if _RANGE in specs[0] else None
    found: list[tuple[Side, list[str]]] = [] if fork is None else [(_merge_base_side(names.repository, fork), [])]
    found += [names.side(spec) for spec in (specs if fork is None else [fork.target, *specs[1:]])]
    sides = tuple(msgspec.structs.replace(side, id=side_id(place)) for place, (side, _) in enumerate(found))
    notes = [line for _, lines in found for line in lines]
    alike = [line for side in sides[1:] for line in _same(sides[0], side)]
    notes += [f"{line}: this is an A/A run" for line in alike] if len(alike) == len(sides) - 1 else alike
    if len(alike) < len(sides) - 1:
        pairs = ((one, two) for n, two in enumerate(sides[2:], 2) for one in sides[1:n])
        notes += [f"{line}: measured twice" for one, two in pairs for line in _same(one, two)]
    if fork is not None and fork.commit != fork.tip:
        line = _moved_by(names.repository, fork.base, fork.commit, fork.tip, kernel_paths)
        notes.append(f"{line}; these are not part of the comparison")
    elif fork is None and sides[0].kind != "dist":
        commits = [side for side in sides[1:] if side.kind != "dist"]
        notes += [line for side in commits for line in _moved_on(names.repository, sides[0], side, kernel_paths)]
    return sides, tuple(dict.fromkeys(notes))


def side_id(place: int) -> str:
    """Id of the spec in this place: base, target, target2, ..."""
    return ("base", "target")[place] if place < 2 else f"target{place}"


@dataclass
class _Specs:
    """Each spec's side, resolved once: a branch may move meanwhile."""

    place: Repository | Folder
    sides: dict[str, tuple[Side, list[str]]]
    commits: dict[str, str] = field(default_factory=dict)

    @property
    def repository(self) -> Repository:
        return self.place.with_commits()

    def commit(self, spec: str) -> str:
        name = "HEAD" if spec == _WORKING_TREE else spec
        if name not in self.commits:
            self.commits[name] = commit_of(self.repository, name)
        return self.commits[name]

    def side(self, spec: str) -> tuple[Side, list[str]]:
        if spec not in self.sides:
            repository, commit = self.repository, self.commit(spec)
            if spec == _WORKING_TREE:
                tree, notes = snapshot(repository, commit)
                side = _side(repository, spec, commit, "working-tree")
                self.sides[spec] = msgspec.structs.replace(side, kind="worktree", tree=tree), notes
            else:
                side = _side(repository, spec, commit, _label(repository, spec, commit))
                self.sides[spec] = side, _ambiguity(repository, spec)
        return self.sides[spec]


@dataclass(frozen=True)
class _Fork:
    """`base...target`: two specs, and the best commit they have in common."""

    base: str
    target: str
    tip: str  # commit of `base`
    commit: str


def _fork(names: _Specs, spec: str) -> _Fork:
    left, _, right = spec.partition(_RANGE)
    base, target = left or "HEAD", right or "HEAD"
    tip = names.commit(base)
    common = names.repository.merge_base(tip, names.commit(target))
    if common is not None:
        return _Fork(base=base, target=target, tip=tip, commit=common)
    if names.repository.shallow:
        raise AbprofError(f"{base!r} and {target!r} have no merge base in this shallow clone", advice=_DEEPER)
    raise AbprofError(f"{base!r} and {target!r} have no merge base", advice="as two words their tips are compared")


def _merge_base_side(repository: Repository, fork: _Fork) -> Side:
    label = _label(repository, fork.base, fork.tip) if fork.commit == fork.tip else fork.commit[:10]
    return _side(repository, f"{fork.base}{_RANGE}{fork.target}", fork.commit, label)


def _side(repository: Repository, spec: str, commit: str, label: str) -> Side:
    # rev-list rather than log or show, which the user's configuration can bend.
    lines = repository.git.text("rev-list", "--max-count=1", "--format=%T%n%s", commit, "--").split("\n", 2)
    subject = unicode(" ".join("".join(lines[2:]).split()))
    tree, spec, label = lines[1], unicode(spec), unicode(label)
    return Side(id="base", spec=spec, kind="commit", commit=commit, tree=tree, label=label, subject=subject)


# ---------------------------------------------------------------- notes


def _same(base: Side, side: Side) -> list[str]:
    if base.tree != side.tree:
        return []
    same = base.kind == side.kind and base.commit == side.commit
    what = _ALIKE[base.kind].format(base.commit[:10]) if same else "hold the same files"
    return [f"{base.id} ({base.label}) and {side.id} ({side.label}) {what}"]


def _moved_on(repository: Repository, base: Side, side: Side, kernel_paths: Sequence[str]) -> list[str]:
    """Tips are compared: what base got since the fork looks like the target's doing."""
    common = repository.merge_base(base.commit, side.commit)
    if common is None and repository.shallow:
        return [f"this clone is too shallow to tell whether {base.label} has moved on since {side.label} branched off"]
    if common is None:
        return [f"{base.label} and {side.label} have no common history"]
    if common in {base.commit, side.commit}:
        return []
    line = _moved_by(repository, base.label, common, base.commit, kernel_paths)
    if base.spec == _WORKING_TREE:
        return [line]
    return [f"{line}; tip is compared with tip, {base.spec}{_RANGE}{side.spec} compares with the merge base"]


def _moved_by(repository: Repository, name: str, common: str, tip: str, kernel_paths: Sequence[str]) -> str:
    count = int(repository.git.text("rev-list", "--count", f"{common}..{tip}", "--"))
    where = ""
    if kernel_paths:
        # Without merges: what they bring in has been counted already.
        options = ("--count", "--no-merges", "--full-history", f"{common}..{tip}", "--")
        touching = repository.git.text("rev-list", *options, *(f":(top,literal){path}" for path in kernel_paths))
        where = f" ({touching} touching {', '.join(kernel_paths)})"
    commits = "1 commit" if count == 1 else f"{count} commits"
    return f"{name} has moved on by {commits}{where} since the merge base {common[:10]}"


# ---------------------------------------------------------------- refs


def commit_of(repository: Repository, spec: str) -> str:
    """Return the commit that a branch, remote branch, tag, hash or expression such as HEAD~2 names.

    Raises AbprofError, with the nearest names, if it names none.
    """
    if not spec.strip():
        raise AbprofError("a ref cannot be empty")
    if spec.startswith("-"):
        raise AbprofError(f"invalid ref {spec!r}: it starts with '-'")
    if spec.startswith("^") or len(spec) > _LONGEST or any(unicodedata.category(sign) == "Cc" for sign in spec):
        raise AbprofError(f"invalid ref {spec[:80]!r}")
    # With the suffix first: it settles an abbreviation that a commit shares with a file. `:/words` cannot bear one.
    commit = _verify(repository, f"{spec}^{{commit}}")
    if commit is not None:
        return commit
    found = _verify(repository, spec)
    commit = _verify(repository, f"{found}^{{commit}}") if found else None
    if commit is not None:
        return commit
    kind = repository.git.maybe("cat-file", "-t", found) if found else None  # git does not look for a full hash before
    if kind is None:
        raise _unknown(repository, spec)
    raise AbprofError(f"{spec!r} is a {kind}, not a commit")


def _verify(repository: Repository, spec: str) -> str | None:
    found = repository.git.maybe("rev-parse", "--verify", "--quiet", spec)
    return found if found and _HASH.fullmatch(found) else None


def _label(repository: Repository, spec: str, commit: str) -> str:
    """The branch or tag name as people say it, else the commit's first 10 digits."""
    name = repository.git.maybe("rev-parse", "--symbolic-full-name", spec) or ""
    tag = f"refs/tags/{spec}"  # git names no ref where a tag and a branch share the name
    if not name.startswith("refs/"):
        name = tag if _verify(repository, tag) else ""
    for prefix in ("refs/heads/", "refs/tags/", "refs/remotes/", "refs/"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return commit[:10]


def _ambiguity(repository: Repository, spec: str) -> list[str]:
    """A note if `spec` is both a tag and a branch that differ."""
    branch = _verify(repository, f"refs/heads/{spec}^{{commit}}")
    tag = _verify(repository, f"refs/tags/{spec}^{{commit}}") if branch else None
    if not branch or not tag or branch == tag:
        return []
    return [f"{spec} is a tag ({tag[:10]}) and a branch ({branch[:10]}): the tag was taken, heads/{spec} is the branch"]


def _unknown(repository: Repository, spec: str) -> AbprofError:
    """Why `spec` names no commit, and what the user may have meant."""
    refs = repository.ref_names()
    if _verify(repository, "HEAD") is None and (spec in {"HEAD", "@"} or not refs):
        return AbprofError("the repository has no commit yet", where=str(repository.path))
    if _HEX.fullmatch(spec) and len(repository.git.text("rev-parse", f"--disambiguate={spec}").split()) > 1:
        return AbprofError(f"several objects begin with {spec!r}", advice="give more digits")
    if near := _nearest(refs, spec):
        hints = [f"nearest: {', '.join(near)}"]
    else:
        more = ", ..." if len(refs) > _MOST_NAMED else ""
        hints = [f"there are {', '.join(refs[:_MOST_NAMED])}{more}"] if refs else []
    if "/" in spec and os.path.isdir(os.path.expanduser(spec)):  # noqa: PTH111, PTH112 - these raise nothing
        hints = ["a folder is not a ref: . is the working tree, --repo names another repository"]
    elif ".." in spec:
        hints = ["give base and target as two words, or base...target for the merge base"]
    elif repository.shallow:
        deeper = f"git fetch --unshallow origin '+refs/heads/*:refs/remotes/origin/*', then origin/{spec}"
        hints.append(_DEEPER if _HEX.fullmatch(spec) or re.search(r"[~^@:]", spec) else deeper)
        return AbprofError(f"{spec!r} is not in this shallow clone", advice="; ".join(hints))
    return AbprofError(f"unknown ref {spec!r}", advice="; ".join(hints))


def _nearest(refs: Sequence[str], name: str, limit: int = 3) -> tuple[str, ...]:
    """The refs that a person who typed `name` may have meant, best first."""
    # Refs that contain the name, such as origin/NAME for a branch that was never checked out here.
    holding = sorted((ref for ref in refs if name.lower() in ref.lower()), key=len)[:limit]
    near = sorted(refs, key=lambda ref: abs(len(ref) - len(name)))[:_MOST_COMPARED]
    return tuple(dict.fromkeys([*holding, *difflib.get_close_matches(name, near, n=limit, cutoff=0.6)]))[:limit]
