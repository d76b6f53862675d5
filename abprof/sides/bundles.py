"""Git bundles that carry exactly some commits, without their history, and files beside them to another machine.

A commit ties a bundle together: its parents are the commits that travel, its tree holds the files. Its hash names the whole
content, so a machine that has it needs no second copy, and the receiver can verify what arrived.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.sides.git import ENVIRONMENT, Git, GitError
from abprof.sides.repository import init_bare
from abprof.sides.submodules import modules_of

_MODULES = ".abprof/modules"  # a file of the bundle: git folders of submodules, relative to .git, one a line
_CARGO = "refs/abprof/cargo"
_COMMITS = "refs/abprof/commits"
# Files are written as they were packed, whatever attributes lie among them.
_RAW = "* -text -eol -filter -ident -working-tree-encoding\n"


@dataclass(frozen=True)
class Carried:
    """A file of a bundle."""

    data: bytes
    mode: str = "100644"  # 100755: executable, 120000: a link


def carried(path: Path) -> Carried:
    """Read a file for a bundle, a link as a link. Raises OSError."""
    if path.is_symlink():
        return Carried(os.fsencode(path.readlink()), "120000")
    return Carried(path.read_bytes(), "100755" if os.access(path, os.X_OK) else "100644")


def head(tree: Path) -> str:
    """Return the commit checked out in a worktree; for a side that is `.`, its snapshot's. Raises GitError."""
    return Git(str(tree)).text("rev-parse", "HEAD")


def pack(
    trees: Sequence[Path],
    files: Mapping[str, Carried],
    file: Path,
    *,
    submodules: bool = False,
    object_format: str = "sha1",
) -> str:
    """Write the bundle `file` of the commits checked out in `trees` (and in their submodules, if `submodules`) and of `files`.

    Returns the hash that names its content. Raises AbprofError if git fails.
    """
    modules = [found for tree in trees for found in _checked_out(tree)] if submodules else []
    every = [*trees, *(path for _, path in modules)]
    names = sorted({git_dir for git_dir, _ in modules})
    listed = Carried("".join(f"{name}\n" for name in names).encode(errors="surrogateescape"))
    try:
        commits = sorted({head(tree) for tree in every})
        with tempfile.TemporaryDirectory(prefix="abprof-bundle-") as folder:
            bare = Path(folder, "git")
            git = init_bare(bare, sorted({_objects(tree) for tree in every}), object_format)
            (bare / "shallow").write_text("".join(f"{commit}\n" for commit in commits))  # they travel without parents
            refs = "".join(f"create {_COMMITS}/{commit} {commit}\n" for commit in commits)
            git.raw("update-ref", "--stdin", stdin=refs.encode())
            git.raw("fast-import", "--quiet", "--force", stdin=_commit(commits, {**files, _MODULES: listed}))
            git.raw("bundle", "create", "--quiet", str(file.absolute()), "--all")
            return git.text("rev-parse", _CARGO)
    except GitError as error:
        raise AbprofError(f"cannot be bundled: {error.line_of_git}", where=", ".join(map(str, trees))) from error


def unpack(file: Path, place: Path, name: str, *, object_format: str = "sha1") -> None:
    """Create the repository `place` from a bundle: its commits, with its files as the working tree.

    Raises AbprofError if `file` is not the bundle called `name`.
    """
    try:
        form = [] if object_format == "sha1" else [f"--object-format={object_format}"]
        Git(str(place.parent)).text("init", "--quiet", "--template=", *form, str(place))
        git, git_dir = Git(str(place)), place / ".git"
        heads = dict(line.split(" ")[::-1] for line in git.text("bundle", "list-heads", str(file)).split("\n"))
        if heads.pop(_CARGO, "") != name:
            raise AbprofError(f"this is not the bundle {name[:12]}", where=str(file))
        (git_dir / "info").mkdir(exist_ok=True)
        (git_dir / "info" / "attributes").write_text(_RAW)
        (git_dir / "shallow").write_text("".join(f"{commit}\n" for commit in sorted(heads.values())))
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        git.raw("fetch", *options, str(file), "+refs/abprof/*:refs/abprof/*")
        git.raw("checkout", "--quiet", "--detach", name)
        _lend_to_modules(git_dir, (place / _MODULES).read_text(errors="surrogateescape").split("\n")[:-1])
    except GitError as error:
        raise AbprofError(f"the bundle cannot be read: {error.line_of_git}", where=str(file)) from error


def _checked_out(tree: Path) -> Iterator[tuple[str, Path]]:
    """(git folder relative to the superproject's, path) of each submodule, to any depth."""
    for module in modules_of(tree):
        path = tree / module.path
        yield f"modules/{module.name}", path
        yield from ((f"modules/{module.name}/{name}", inner) for name, inner in _checked_out(path))


def _objects(tree: Path) -> str:
    git = Git(str(tree))
    return str(Path(git.cwd, git.text("rev-parse", "--git-path", "objects")).resolve())


def _commit(parents: Sequence[str], files: Mapping[str, Carried]) -> bytes:
    """What `git fast-import` makes the commit of that ties a bundle together: the same for the same content, always."""
    who = f"{ENVIRONMENT['GIT_COMMITTER_NAME']} <{ENVIRONMENT['GIT_COMMITTER_EMAIL']}>"
    lines = [f"commit {_CARGO}\ncommitter {who} 946684800 +0000\ndata 6\nabprof\n".encode()]
    lines += [f"{'merge' if place else 'from'} {parent}\n".encode() for place, parent in enumerate(parents)]
    lines.append(b"deleteall\n")
    for name, file in sorted(files.items()):
        lines += [f"M {file.mode} inline ".encode(), _quoted(name), f"\ndata {len(file.data)}\n".encode()]
        lines += [file.data, b"\n"]
    return b"".join(lines)


def _quoted(name: str) -> bytes:
    raw = name.encode(errors="surrogateescape")
    return b'"' + raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _lend_to_modules(git_dir: Path, names: Sequence[str]) -> None:
    """Each submodule's git folder, as `git submodule` would have it, with the same objects."""
    for name in names:
        folder = git_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "objects").symlink_to(os.path.relpath(git_dir / "objects", folder))
