"""Releases as sides: `dist:NAME==VERSION` is a wheel that pip installs into a folder of the cache, without dependencies.

pip runs with the user's settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf) and takes wheels alone, so nothing is compiled and the
interpreter's torch stays.

- CACHE/dists/files/CONTENT/: the files that a wheel installs; CONTENT is their hash
- CACHE/dists/asked/HASH.json: what a release was at the last answer of the index, for when it does not answer
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from abprof.records import UNREADABLE, Record, Side
from abprof.records.errors import AbprofError
from abprof.sides.resolve import side_id
from abprof.system import files, locks
from abprof.system import processes as proc
from abprof.system.trees import files_of, tree_hash

_PREFIX = "dist:"
# PEP 508's name and extras, PEP 440's version: exactly one version, no range, marker or address.
_ONE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[A-Za-z0-9._,\s-]*\])?\s*"
    r"===?\s*(?P<version>[A-Za-z0-9]+(?:[.!+_-][A-Za-z0-9]+)*)"
)
_UNREACHED = re.compile(r"Could not fetch URL .*: (?:connection error|.*timed? ?out|There was a problem)|Retrying \(")
_MOST_NAMED = 6  # versions that a message names
_DIGITS = 20  # of a hash, in names of folders
_SCRATCH = "tmp"  # prefix of the folder of one installation
_PIP = (
    "install",
    "--no-deps",
    "--only-binary",
    ":all:",
    "--ignore-installed",
    "--no-compile",
    "--no-input",
    "--no-color",
)


class _Unreachable(AbprofError):
    """No index answered."""


class _Release(Record, frozen=True):
    """What a release is for one interpreter."""

    file: str
    sha256: str
    content: str  # hash of the installed files
    yanked: str  # why its authors withdrew it; "" if they did not


def is_release(spec: str) -> bool:
    """Whether this spec names a release, valid or not; no git ref contains a colon."""
    return spec.startswith(_PREFIX)


def install(
    specs: Sequence[str], python: Callable[[str], str], cache: Path, timeout: float, say: Callable[[str], None]
) -> dict[str, tuple[Side, tuple[str, ...]]]:
    """Install those of `specs` that are releases into the cache, and return their sides and notes by spec.

    `python(side id)` is the interpreter that a side runs with. Raises AbprofError.
    """
    return {
        spec: _resolve(spec, python(side_id(place)), cache / "dists", timeout, say)
        for place, spec in enumerate(specs)
        if is_release(spec)
    }


def put(cache: Path, side: Side, path: Path) -> None:
    """Copy the files of an installed release to `path`. Raises AbprofError if they were changed since."""
    source = _place(cache / "dists", side.commit)
    try:
        shutil.copytree(source, path, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise AbprofError(f"cannot copy {side.label}: {error}", where=str(path)) from error
    if _content(path) != side.commit:
        raise AbprofError(f"the files of {side.label} were changed", where=str(source), advice="run again")


def sweep(cache: Path, *, everything: bool) -> Iterator[str]:
    """Remove what killed installations left, or `everything` that is installed; a line for each."""
    home = cache / "dists"
    if not home.is_dir():
        return
    with locks.abandoned(home / "lock") as free:
        for folder in (
            sorted([*home.glob(f"{_SCRATCH}*"), *(home.glob("files/*") if everything else ())]) if free else ()
        ):
            shutil.rmtree(folder, ignore_errors=True)
            yield f"removed the installed release {folder.name}"
        if free and everything:
            shutil.rmtree(home, ignore_errors=True)


def unmet(release: Path, python: str, packages: Mapping[str, str]) -> tuple[str, ...]:
    """Requirements of the release installed at `release` that its interpreter does not meet, each with the version there.

    `python`: the interpreter's version; `packages`: distribution -> version. Requirements of extras are left out.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    there: dict[str, str] = {canonicalize_name(name): version for name, version in packages.items()}
    marks = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])} if python else {}
    lines = []
    for metadata in sorted(release.glob("*.dist-info/METADATA")) if there else ():
        for text in HeaderParser().parsestr(metadata.read_text(errors="replace")).get_all("Requires-Dist", []):
            with contextlib.suppress(InvalidRequirement, InvalidVersion):
                needs = Requirement(text)
                if needs.marker is not None and not needs.marker.evaluate({"extra": "", **marks}):
                    continue
                has = there.get(canonicalize_name(needs.name))
                if has is None or not needs.specifier.contains(Version(has), prereleases=True):
                    lines.append(f"{needs.name}{needs.specifier} ({'not there' if has is None else f'{has} is there'})")
    return tuple(lines)


def _resolve(
    spec: str, python: str, home: Path, timeout: float, say: Callable[[str], None]
) -> tuple[Side, tuple[str, ...]]:
    match = _ONE.fullmatch(spec.removeprefix(_PREFIX).strip())
    if match is None:
        raise AbprofError("not one version of one distribution", where=spec, advice=f"{_PREFIX}NAME==VERSION")
    requirement, notes = f"{match['name']}=={match['version']}", list[str]()
    key = hashlib.sha256(f"{requirement}\0{python}".encode()).hexdigest()[:_DIGITS]
    answer = home / "asked" / f"{key}.json"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locks.locked(home / "lock"), tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=home) as scratch:
            try:
                say(f"installing {requirement} into abprof's cache, without its dependencies")
                release = _install(match["name"], match["version"], python, Path(scratch), timeout)
                place = _place(home, release.content)
                place.parent.mkdir(exist_ok=True)
                shutil.rmtree(place, ignore_errors=True)
                Path(scratch, "files").rename(place)
                files.put(answer, msgspec.json.encode(release))
            except _Unreachable:
                earlier = _earlier(answer, home)
                if earlier is None:
                    raise
                release = earlier
                notes.append(f"no package index answers: {requirement} is the {release.file} of an earlier run")
    except OSError as error:
        raise AbprofError(f"cannot be installed: {error.strerror}", where=spec) from error
    if release.yanked:
        notes.append(f"{requirement} was withdrawn by its authors: {release.yanked}")
    side = Side(
        id="base",
        spec=spec,
        kind="dist",
        commit=release.content,
        tree=release.content,
        label=requirement,
        subject=f"{release.file} sha256:{release.sha256}",
    )
    return side, tuple(notes)


def _earlier(answer: Path, home: Path) -> _Release | None:
    """What the release was in an earlier run, if its files are unchanged."""
    with contextlib.suppress(OSError, *UNREADABLE):
        release = msgspec.json.decode(answer.read_bytes(), type=_Release)
        if _content(_place(home, release.content)) == release.content:
            return release
    return None


def _place(home: Path, content: str) -> Path:
    return home / "files" / content[:_DIGITS]


def _content(folder: Path) -> str:
    return tree_hash(folder, files_of(folder))


# ---------------------------------------------------------------- pip


def _install(name: str, version: str, python: str, scratch: Path, timeout: float) -> _Release:
    """Install the wheel's files into scratch/files. Raises AbprofError, _Unreachable if no index answers."""
    requirement, report, target = f"{name}=={version}", scratch / "report.json", scratch / "files"
    code, log = _pip(python, ["--report", str(report), "--target", str(target), requirement], scratch, timeout)
    if code:
        raise _refusal(name, version, log)
    try:
        (item,) = msgspec.json.decode(report.read_bytes())["install"]
        download = item["download_info"]
        file = unquote(Path(urlsplit(download["url"]).path).name)
        sha256 = str(download.get("archive_info", {}).get("hashes", {}).get("sha256", ""))
    except (OSError, ValueError, KeyError, TypeError, *UNREADABLE) as error:
        what = "pip did not say which wheel it took"
        raise AbprofError(what, where=requirement, advice="pip 22.2 or later does") from error
    # Equal wheels make equal folders: remove what pip writes about this installation.
    for info in target.glob("*.dist-info"):
        for written in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            (info / written).unlink(missing_ok=True)
    if not (target / "bin" / "__init__.py").exists():  # scripts, whose first line names the interpreter
        shutil.rmtree(target / "bin", ignore_errors=True)
    yanked = re.search(r"^Reason for being yanked: (.*)$", log, re.MULTILINE)
    return _Release(file=file, sha256=sha256, content=_content(target), yanked=yanked[1] if yanked else "")


def _pip(python: str, options: Sequence[str], scratch: Path, timeout: float) -> tuple[int, str]:
    """Run `pip install`, and return its exit code and log. Raises AbprofError without pip."""
    log = scratch / "log"
    # Settings that do not go with a folder of ours.
    env = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0", "LC_ALL": "C.UTF-8"}
    # The second serves an environment without pip, as uv's.
    for command in ((python, "-P", "-m", "pip"), (sys.executable, "-P", "-m", "pip", "--python", python)):
        log.unlink(missing_ok=True)
        argv = [*command, *_PIP, "--disable-pip-version-check", "-vv", *options]
        try:
            code = proc.logged(argv, env=env, cwd=scratch, log=log, timeout=timeout)
        except proc.WorkerDied as died:
            raise AbprofError(died.reason, where="pip") from died
        text = log.read_text(errors="replace")
        if "No module named pip" not in text:
            return code, text
    raise AbprofError("there is no pip", where=python, advice=f"{python} -m ensurepip")


def _refusal(name: str, version: str, log: str) -> AbprofError:
    """Pip's log as one line."""
    where = f"{name}=={version}"
    listed = re.search(r"\(from versions: (.*)\)", log)
    if listed is None:
        line = re.search(r"^ERROR: (.*)$", log, re.MULTILINE)
        return AbprofError(f"pip: {line[1]}" if line else "pip failed without a message", where=where)
    versions = [] if listed[1] == "none" else listed[1].split(", ")
    if versions:
        more = "..., " if len(versions) > _MOST_NAMED else ""
        advice = f"there are {more}{', '.join(versions[-_MOST_NAMED:])}"
        return AbprofError(f"{name} has no wheel of version {version} for this interpreter", where=where, advice=advice)
    if _UNREACHED.search(log):
        return _Unreachable(
            "pip cannot reach its package index", where=where, advice="PIP_INDEX_URL and PIP_FIND_LINKS name others"
        )
    advice = "is its name right? PIP_INDEX_URL and PIP_FIND_LINKS say where pip looks"
    return AbprofError("pip finds no wheel of this distribution", where=where, advice=advice)
