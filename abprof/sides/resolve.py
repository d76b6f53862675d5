"""The sides of a comparison: what the user typed, resolved once, and what a person should know about it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from abprof.records import Side
from abprof.records.errors import AbprofError
from abprof.sides.history import commits_between, commits_touching, merge_base, read_commit
from abprof.sides.locate import ADVICE, Folder, Repository
from abprof.sides.refs import ambiguity, commit_of, label_of
from abprof.sides.snapshot import snapshot

WORKING_TREE = "."
RANGE = "..."
_ALIKE = {
    "commit": "are the same commit {}",
    "worktree": "are the same working tree",
    "dist": "are the same release",
}


@dataclass(frozen=True)
class Fork:
    """`base...target`: two specs, and the best commit they have in common."""

    base: str
    target: str
    tip: str  # commit of `base`
    commit: str


@dataclass
class _Specs:
    """Remembers what each spec stood for, because a branch may move while we look."""

    place: Repository | Folder
    sides: dict[str, tuple[Side, list[str]]]
    commits: dict[str, str] = field(default_factory=dict)

    @property
    def repository(self) -> Repository:
        if isinstance(self.place, Folder):
            raise AbprofError("not a git repository", where=str(self.place.path), advice=ADVICE)
        return self.place

    def commit(self, spec: str) -> str:
        name = "HEAD" if spec == WORKING_TREE else spec
        if name not in self.commits:
            self.commits[name] = commit_of(self.repository, name)
        return self.commits[name]

    def side(self, spec: str) -> tuple[Side, list[str]]:
        if spec not in self.sides:
            self.sides[spec] = self._side(spec)
        return self.sides[spec]

    def _side(self, spec: str) -> tuple[Side, list[str]]:
        commit = self.commit(spec)
        if spec == WORKING_TREE:
            shot = snapshot(self.repository, commit)
            side = _record(self.repository, spec, commit, "working-tree")
            return msgspec.structs.replace(side, kind="worktree", tree=shot.tree), list(shot.notes)
        line = ambiguity(self.repository, spec)
        return _record(self.repository, spec, commit, label_of(self.repository, spec, commit)), [line] if line else []


def resolve(
    repository: Repository | Folder,
    specs: Sequence[str],
    *,
    kernel_paths: Sequence[str] = ("kernels",),
    known: Mapping[str, tuple[Side, Sequence[str]]] = MappingProxyType({}),
) -> tuple[tuple[Side, ...], tuple[str, ...]]:
    """The sides (base, target, target2, ...) that `specs` name, and lines of notes about them.

    A spec is a branch, remote branch, tag, commit (abbreviated too), an expression such as HEAD~2, or `.` for the
    working tree as it is. The first may be `base...target`, which means their merge base and the target.
    `kernel_paths`, relative to the root, are what "touch the kernels" means in the notes. `known`: the sides of specs
    that are no refs, with their notes; where all are, a folder will do.
    Raises AbprofError for a spec that stands for no commit.
    """
    if not specs:
        raise AbprofError("no ref given", advice="abprof BASE TARGET, or abprof run REF")
    for spec in specs[1:]:
        if RANGE in spec:
            raise AbprofError(f"{spec!r} can only come first", advice="base...target stands for base and target")
    names = _Specs(repository, {spec: (side, list(notes)) for spec, (side, notes) in known.items()})
    fork = _fork(names, specs[0]) if RANGE in specs[0] else None
    found: list[tuple[Side, list[str]]] = [] if fork is None else [(_merge_base_side(names, fork), [])]
    words = specs if fork is None else [fork.target, *specs[1:]]
    found += [names.side(spec) for spec in words]
    sides = tuple(msgspec.structs.replace(side, id=side_id(place)) for place, (side, _) in enumerate(found))
    notes = [line for _, lines in found for line in lines]
    alike = [line for side in sides[1:] for line in _same(sides[0], side)]
    notes += [f"{line}: this is an A/A run" for line in alike] if len(alike) == len(sides) - 1 else alike
    if len(alike) < len(sides) - 1:
        pairs = ((one, two) for n, two in enumerate(sides[2:], 2) for one in sides[1:n])
        notes += [f"{line}: measured twice" for one, two in pairs for line in _same(one, two)]
    if fork is not None:
        notes += _left_behind(names.repository, fork, kernel_paths)
    elif sides[0].kind != "dist":
        commits = [side for side in sides[1:] if side.kind != "dist"]
        notes += [line for side in commits for line in _moved_on(names.repository, sides[0], side, kernel_paths)]
    return sides, tuple(dict.fromkeys(notes))


def side_id(place: int) -> str:
    """base, target, target2, ...: what the spec in this place is called."""
    return ("base", "target")[place] if place < 2 else f"target{place}"


def _fork(names: _Specs, spec: str) -> Fork:
    left, _, right = spec.partition(RANGE)
    base, target = left or "HEAD", right or "HEAD"
    tip = names.commit(base)
    common = merge_base(names.repository, tip, names.commit(target))
    if common is not None:
        return Fork(base=base, target=target, tip=tip, commit=common)
    if names.repository.shallow:
        advice = "git fetch --unshallow, or git fetch --depth=N with a larger N"
        raise AbprofError(f"{base!r} and {target!r} have no merge base in this shallow clone", advice=advice)
    raise AbprofError(f"{base!r} and {target!r} have no merge base", advice="as two words their tips are compared")


def _merge_base_side(names: _Specs, fork: Fork) -> Side:
    label = label_of(names.repository, fork.base, fork.tip) if fork.commit == fork.tip else fork.commit[:10]
    return _record(names.repository, f"{fork.base}{RANGE}{fork.target}", fork.commit, label)


def _record(repository: Repository, spec: str, commit: str, label: str) -> Side:
    found = read_commit(repository, commit)
    return Side(
        id="base",
        spec=_unicode(spec),
        kind="commit",
        commit=commit,
        tree=found.tree,
        label=_unicode(label),
        subject=_unicode(found.subject),
    )


def _unicode(text: str) -> str:
    """Names need not be UTF-8; what goes into JSON must be."""
    return os.fsencode(text).decode("utf-8", errors="replace")


def _same(base: Side, side: Side) -> list[str]:
    if base.tree != side.tree:
        return []
    if base.kind == side.kind and base.commit == side.commit:
        what = _ALIKE[base.kind].format(base.commit[:10])
    else:
        what = "hold the same files"
    return [f"{base.id} ({base.label}) and {side.id} ({side.label}) {what}"]


def _moved_on(repository: Repository, base: Side, side: Side, kernel_paths: Sequence[str]) -> list[str]:
    """Tips are compared: what base got since the fork counts as the target's doing, and a person should know."""
    common = merge_base(repository, base.commit, side.commit)
    if common is None and repository.shallow:
        return [f"this clone is too shallow to tell whether {base.label} has moved on since {side.label} branched off"]
    if common is None:
        return [f"{base.label} and {side.label} have no common history"]
    if common in {base.commit, side.commit}:
        return []
    line = _commits(repository, base.label, common, base.commit, kernel_paths)
    if base.spec == WORKING_TREE:
        return [line]
    return [f"{line}; tip is compared with tip, {base.spec}{RANGE}{side.spec} compares with the merge base"]


def _left_behind(repository: Repository, fork: Fork, kernel_paths: Sequence[str]) -> list[str]:
    if fork.commit == fork.tip:
        return []
    return [f"{_commits(repository, fork.base, fork.commit, fork.tip, kernel_paths)}; no part of this comparison"]


def _commits(repository: Repository, name: str, common: str, tip: str, kernel_paths: Sequence[str]) -> str:
    count = commits_between(repository, common, tip)
    touching = commits_touching(repository, common, tip, kernel_paths)
    commits = "1 commit" if count == 1 else f"{count} commits"
    where = f" ({touching} touching {', '.join(kernel_paths)})" if kernel_paths else ""
    return f"{name} has moved on by {commits}{where} since the merge base {common[:10]}"
