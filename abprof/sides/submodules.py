"""Submodules of a worktree: each is a worktree of a clone that borrows from the user's copy, or is fetched from its URL."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from abprof.records.errors import AbprofError
from abprof.sides.git import Git, GitError
from abprof.sides.repository import lock_of, open_store
from abprof.system import locks

_ADVICE = "git submodule update --init --recursive in your checkout, then run again"


@dataclass(frozen=True)
class Origin:
    """Where a superproject's submodules come from: the user's copies, or URLs relative to the superproject's."""

    git_dirs: tuple[Path, ...]  # the superproject's git folders, each perhaps with modules/NAME
    work_tree: Path | None  # the user's checkout of the superproject
    url: str
    object_format: str = "sha1"


@dataclass(frozen=True)
class Submodule:
    """One link of a superproject's tree."""

    name: str
    path: str
    url: str
    commit: str


def add_submodules(worktree: Path, origin: Origin, cache: Path) -> None:
    """Check out every submodule of `worktree`, recursively. Raises AbprofError that names one without a source."""
    for module in modules_of(worktree):
        place = worktree / module.path
        try:
            store, source = _clone(module, origin, cache)
            with locks.locked(lock_of(store)):
                Git(str(store)).text("worktree", "add", "--detach", "--force", str(place), module.commit)
        except GitError as error:
            raise AbprofError(error.line_of_git, where=_called(module), advice=_ADVICE) from error
        add_submodules(place, source, cache)


def _called(module: Submodule) -> str:
    where = "" if module.path == module.name else f" ({module.path})"
    return f"submodule {module.name!r}{where} at {module.commit[:10]}"


def modules_of(worktree: Path) -> Iterator[Submodule]:
    """Yield the submodules of the commit checked out. Raises AbprofError for one that .gitmodules does not list."""
    git = Git(str(worktree))
    links = {}
    for record in git.records("ls-tree", "-r", "-z", "HEAD"):
        head, _, path = record.partition("\t")
        if head.startswith("160000 "):
            links[path] = head.split()[2]
    if not links:
        return
    settings: dict[str, dict[str, str]] = {}
    pattern = r"^submodule\..*\.(path|url)$"
    listed = git.maybe("config", "-z", "--blob", "HEAD:.gitmodules", "--get-regexp", pattern) or ""
    for entry in listed.split("\0"):
        key, _, value = entry.partition("\n")
        name, _, variable = key.removeprefix("submodule.").rpartition(".")
        settings.setdefault(name, {})[variable] = value
    names = {values.get("path", ""): name for name, values in settings.items()}
    for path, commit in links.items():
        if path not in names:
            raise AbprofError("not listed in .gitmodules", where=f"submodule {path!r}")
        name = names[path]
        if ".." in PurePosixPath(name).parts or name.startswith(("/", "-")):
            raise AbprofError("its name is not a safe folder name", where=f"submodule {name!r}")
        yield Submodule(name=name, path=path, url=settings[name].get("url", ""), commit=commit)


def _clone(module: Submodule, origin: Origin, cache: Path) -> tuple[Path, Origin]:
    """Return a clone that holds the submodule's commit, and where that commit's own submodules may be found."""
    url = submodule_url(module, origin)
    work_tree = origin.work_tree / module.path if origin.work_tree else None
    for git_dir in _copies(module, origin, work_tree):
        store = open_store(cache, objects=str(git_dir / "objects"), object_format=origin.object_format)
        if _holds(store, module.commit):
            return store, Origin((git_dir,), work_tree, url, origin.object_format)
    if not url:
        raise AbprofError("no copy here, and .gitmodules gives no URL", where=_called(module), advice=_ADVICE)
    store = open_store(cache, url=url, object_format=origin.object_format)
    with locks.locked(lock_of(store)):
        if not _holds(store, module.commit):
            _fetch(store, url, module.commit)
        if not _holds(store, module.commit):
            raise AbprofError("its repository does not have that commit", where=_called(module), advice=_ADVICE)
    return store, Origin((), work_tree, url, origin.object_format)


def _copies(module: Submodule, origin: Origin, work_tree: Path | None) -> Iterator[Path]:
    places = [git_dir / "modules" / module.name for git_dir in origin.git_dirs]
    if work_tree is not None:
        link = work_tree / ".git"
        if link.is_file():  # "gitdir: PATH"
            link = Path(work_tree, link.read_text(errors="surrogateescape").strip().removeprefix("gitdir: "))
        places.append(link)
    yield from (place.resolve() for place in places if (place / "objects").is_dir())


def _holds(store: Path, commit: str) -> bool:
    return Git(str(store)).maybe("cat-file", "-e", f"{commit}^{{commit}}") is not None


def _fetch(store: Path, url: str, commit: str) -> None:
    """Fetch the commit alone if the server allows it, else all branches and tags."""
    # As `git submodule` does: a URL that a commit brought along must not read local files or start programs.
    git = Git(str(store), {"GIT_PROTOCOL_FROM_USER": "0"}, {"http.lowSpeedLimit": "1000", "http.lowSpeedTime": "60"})
    options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
    status, _, _ = git.status("fetch", *options, "--depth=1", "--", url, commit)
    if status != 0:
        git.text("fetch", *options, "--", url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def submodule_url(module: Submodule, origin: Origin) -> str:
    """Return the user's own setting, or the URL in .gitmodules, resolved against the superproject's."""
    for git_dir in origin.git_dirs:
        setting = f"submodule.{module.name}.url"
        chosen = Git(str(git_dir)).maybe("config", "--file", str(git_dir / "config"), "--get", setting)
        if chosen is not None:
            return chosen
    if not module.url.startswith(("./", "../")):
        return module.url
    # Before the path: `https://host`, `host:` or nothing.
    match = re.match(r"([a-z][a-z0-9+.-]*://[^/]*|[^/:]+:)(.*)", origin.url, re.IGNORECASE)
    head, path = (match[1], match[2]) if match else ("", origin.url)
    return head + posixpath.normpath(posixpath.join(path, module.url))
