"""Find the commits that the given refs name, and write notes for the user, such as `the sides hold the same files`."""

from __future__ import annotations

import re
import secrets
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from abprof.records import Side, join_spec
from abprof.records.errors import AbprofError
from abprof.records.filters import nearest
from abprof.sides.git import Git, GitError
from abprof.sides.repository import Folder, Repository, unicode
from abprof.sides.toolchains import split
from abprof.system import locks
from abprof.system.trees import remove_tree

_WORKING_TREE = "."
_RANGE = "..."
_HASH = re.compile(r"[0-9a-f]{40}")
_MOST_COMPARED = 5000  # ref names searched for similar spellings; more would take seconds
_LONGEST = 4096  # characters; no file system stores a longer ref
_DEEPER = "run git fetch --unshallow"


def resolve(
    repository: Repository | Folder,
    specs: Sequence[str],
    *,
    kernel_paths: Sequence[str] = ("kernels",),
    known: Mapping[str, tuple[Side, Sequence[str]]] = MappingProxyType({}),
) -> tuple[tuple[Side, ...], tuple[str, ...]]:
    """Return the sides (base, target, target2, ...) that `specs` name, and notes for the user.

    A spec is a branch, tag, commit hash, an expression such as HEAD~2, or `.` for the working tree; ` with REQUIREMENTS`
    may follow, if the side has its own environment (toolchains.py). The first spec may be `base...target`: then the
    base is the merge base of both refs. `known` has a side and notes for each ref that is a release; if all refs are
    releases, `repository` may be a `Folder`. The notes say how many commits the base has gained since the merge base,
    and how many of these change `kernel_paths`. Raises AbprofError for a spec that names no commit.
    """
    refs, needed = zip(*map(split, specs), strict=True)
    if any(_RANGE in ref for ref in refs[1:]):
        raise AbprofError("base...target must be the first ref", advice="write further targets after base...target")
    left, fork, right = refs[0].partition(_RANGE)
    asked = [left or "HEAD", right or "HEAD", *refs[1:]] if fork else list(refs)
    needed = (needed[0], *needed) if fork else needed
    made = dict(known)
    for spec in asked:  # resolve each spec only once, because a branch may move meanwhile
        if spec not in made:
            made[spec] = _side(repository.with_commits(), spec)
    found = [made[spec][0] for spec in asked]
    notes = [line for spec in asked for line in made[spec][1]]
    moved = ""
    if fork:
        tip = found[0]
        found[0] = _merge_base_side(repository.with_commits(), tip, found[1])
        if found[0].commit != tip.commit:
            moved = _moved_by(repository.with_commits(), tip.spec, found[0].commit, tip.commit, kernel_paths)
            moved += "; these are not part of the comparison"
    sides = tuple(_placed(side, place, of) for place, (side, of) in enumerate(zip(found, needed, strict=True)))
    notes += _same(sides)
    if moved:
        notes.append(moved)
    elif not fork and found[0].kind != "dist":
        commits = [side for side in found[1:] if side.kind != "dist"]
        for side in commits:
            notes += _moved_on(repository.with_commits(), found[0], side, kernel_paths)
    return sides, tuple(dict.fromkeys(notes))


def _placed(side: Side, place: int, requirements: Sequence[str]) -> Side:
    """Return `side` at index `place` of the sides, with `requirements` in its environment."""
    spec, label = join_spec(side.spec, requirements), join_spec(side.label, requirements)
    return msgspec.structs.replace(side, id=side_id(place), spec=spec, label=label, requirements=tuple(requirements))


def side_id(place: int) -> str:
    """Return the side id of the spec at index `place`: base, target, target2, ..."""
    return ("base", "target")[place] if place < 2 else f"target{place}"


def _side(repository: Repository, spec: str) -> tuple[Side, Sequence[str]]:
    try:
        commit = commit_of(repository, "HEAD" if spec == _WORKING_TREE else spec)
    except AbprofError as error:
        named = [ref for ref in repository.ref_names() if ref.partition("/")[2] == spec]
        remote = [ref for ref in named if _verify(repository, f"refs/remotes/{ref}")]
        if len(remote) != 1:
            raise
        return _side(repository, remote[0])[0], [f"{error.what}: took {remote[0]}"]
    if spec != _WORKING_TREE:
        name = repository.git.maybe("rev-parse", "--symbolic-full-name", spec) or ""
        match = re.fullmatch(r"refs/(?:heads/|tags/|remotes/)?(.+)", name)
        return _of_commit(repository, spec, commit, match[1] if match else commit[:10]), ()
    tree, notes = _snapshot(repository)
    side = _of_commit(repository, spec, commit, "working-tree")
    return msgspec.structs.replace(side, kind="worktree", tree=tree), notes


def _merge_base_side(repository: Repository, base: Side, target: Side) -> Side:
    common = repository.merge_base(base.commit, target.commit)
    if common is None:
        advice = _DEEPER if repository.shallow else "give two refs to compare their tips"
        raise AbprofError(f"{base.spec!r} and {target.spec!r} have no merge base in this clone", advice=advice)
    label = base.label if common == base.commit else common[:10]
    return _of_commit(repository, f"{base.spec}{_RANGE}{target.spec}", common, label)


def _of_commit(repository: Repository, spec: str, commit: str, label: str) -> Side:
    # rev-list rather than log or show, because the user's configuration changes their output.
    lines = repository.git.text("rev-list", "--max-count=1", "--format=%T%n%s", commit, "--").split("\n", 2)
    subject = unicode(" ".join("".join(lines[2:]).split()))
    tree, spec, label = lines[1], unicode(spec), unicode(label)
    return Side(id="base", spec=spec, kind="commit", commit=commit, tree=tree, label=label, subject=subject)


def _snapshot(repository: Repository) -> tuple[str, list[str]]:
    """Copy the working tree, without ignored files, to abprof's clone. Return its tree's hash, and notes for the user.
    The user's index, refs, stash and objects do not change. Raises AbprofError if git cannot read a file."""
    folder = repository.cache / "index" / secrets.token_hex(6)
    lock = folder.with_name(f"{folder.name}.lock")  # `sweep` removes a folder whose lock no process holds
    locks.hold(lock)
    try:
        folder.mkdir()
        if (repository.git_dir / "index").exists():
            # copy2 keeps the index's time: git skips reading files older than the index.
            shutil.copy2(repository.git_dir / "index", folder / "index")
        git = repository.git.using(GIT_INDEX_FILE=str(folder / "index"))
        marked = [(line[0], line[2:]) for line in git.records("ls-files", "-z", "-v")]
        here = repository.path
        if hidden := [name for mark, name in marked if mark.islower() or (mark == "S" and (here / name).exists())]:
            advice = "run git update-index --no-assume-unchanged --no-skip-worktree FILE"
            raise AbprofError("git is configured to ignore changes of this file", where=hidden[0], advice=advice)
        git.raw("add", "--all")
        return _without_nested(git)
    except (GitError, OSError) as error:
        why = error.line_of_git if isinstance(error, GitError) else str(error)
        what = f"the working tree cannot be read: {why}"
        advice = "make the file readable, or add the file to .gitignore"
        raise AbprofError(what, where=str(repository.path), advice=advice) from error
    finally:
        remove_tree(folder)
        locks.drop(lock)


def _without_nested(git: Git) -> tuple[str, list[str]]:
    """Remove nested repositories (not submodules) from the index. Return the git tree's hash, and notes."""
    links = {line.split("\t", 1)[1] for line in git.records("ls-files", "-z", "--stage") if line.startswith("160000 ")}
    listed = git.maybe("config", "-z", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$") or ""
    nested = sorted(links - {entry.partition("\n")[2] for entry in listed.split("\0")})
    if nested:
        git.raw("update-index", "--force-remove", "--", *nested)
    notes = [f"'.' leaves out the nested repository {path}" for path in nested]
    options = ("--porcelain=v2", "-z", "--untracked-files=no", "--ignore-submodules=none")
    # "1 XY SCMU ... path": U or M in the third word says untracked or modified content inside the submodule
    rows = [line.split(" ", 8) for line in (git.records("status", *options) if links else ()) if line[0] == "1"]
    dirty = [words[8] for words in rows if words[2].startswith("S") and {*words[2]} & {"M", "U"}]
    notes += [f"uncommitted changes in submodule {path} are not part of '.'" for path in dirty]
    return git.text("write-tree"), notes


def _same(sides: Sequence[Side]) -> list[str]:
    """Return a note for each target whose files equal the files of the base or of an earlier target."""
    notes = []
    for place, two in enumerate(sides):
        one = next((one for one in sides[:place] if _content(one) == _content(two)), None)
        if one:
            notes.append(f"{one.id} ({one.label}) and {two.id} ({two.label}) hold the same files")
    return [f"{line}: this is an A/A run" for line in notes] if len({*map(_content, sides)}) == 1 else notes


def _content(side: Side) -> tuple[str, tuple[str, ...]]:
    return side.tree, side.requirements


def _moved_on(repository: Repository, base: Side, side: Side, kernel_paths: Sequence[str]) -> list[str]:
    """Return a note that says how many commits `base` has gained since the merge base with `side`."""
    common = repository.merge_base(base.commit, side.commit)
    if common is None:
        why = "in this shallow clone" if repository.shallow else "at all"
        return [f"{base.label} and {side.label} have no common history {why}"]
    if common in {base.commit, side.commit}:
        return []
    line = _moved_by(repository, base.label, common, base.commit, kernel_paths)
    if base.spec == _WORKING_TREE:
        return [line]
    return [f"{line}; this run compares the tips, {base.spec}{_RANGE}{side.spec} compares with the merge base"]


def _moved_by(repository: Repository, name: str, common: str, tip: str, kernel_paths: Sequence[str]) -> str:
    count = int(repository.git.text("rev-list", "--count", f"{common}..{tip}", "--"))
    where = ""
    if kernel_paths:
        # Leave out merges, because the merged commits themselves are counted already.
        options = ("--count", "--no-merges", "--full-history", f"{common}..{tip}", "--")
        touching = repository.git.text("rev-list", *options, *(f":(top,literal){path}" for path in kernel_paths))
        where = f" ({touching} touching {', '.join(kernel_paths)})"
    commits = "1 commit" if count == 1 else f"{count} commits"
    return f"{name} has moved on by {commits}{where} since the merge base {common[:10]}"


def commit_of(repository: Repository, spec: str) -> str:
    """Return the commit that `spec` names: a branch, remote branch, tag, hash or expression such as HEAD~2. Raises
    AbprofError if `spec` names no commit; the message suggests similar names."""
    if not spec.strip():
        raise AbprofError("a ref cannot be empty")
    if spec.startswith(("-", "^")) or len(spec) > _LONGEST or any(unicodedata.category(sign) == "Cc" for sign in spec):
        raise AbprofError(f"invalid ref {spec[:80]!r}")
    # First try with the suffix, for an abbreviation that fits a commit and a file; then without the suffix, for `:/words`.
    commit = _verify(repository, f"{spec}^{{commit}}")
    found = None if commit else _verify(repository, spec)
    commit = commit or (found and _verify(repository, f"{found}^{{commit}}"))
    if commit:
        return commit
    kind = repository.git.maybe("cat-file", "-t", found) if found else None  # rev-parse accepts a full hash unseen
    if kind is not None:
        raise AbprofError(f"{spec!r} is a {kind}, not a commit")
    raise _unknown(repository, spec)


def _verify(repository: Repository, spec: str) -> str | None:
    found = repository.git.maybe("rev-parse", "--verify", "--quiet", spec)
    return found if found and _HASH.fullmatch(found) else None


def _unknown(repository: Repository, spec: str) -> AbprofError:
    refs = repository.ref_names()
    if _verify(repository, "HEAD") is None and (spec in {"HEAD", "@"} or not refs):
        advice = "run git add --all && git commit"
        return AbprofError("the repository has no commits yet", where=str(repository.path), advice=advice)
    if repository.shallow:
        return AbprofError(f"{spec!r} is not in this shallow clone", advice=_DEEPER)
    several = "give base and target as two words, or base...target for the merge base"
    advice = several if ".." in spec else nearest(spec, refs[:_MOST_COMPARED])
    return AbprofError(f"unknown ref {spec!r}", advice=advice)
