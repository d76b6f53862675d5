"""Releases as sides: `dist:NAME==VERSION` is a wheel that pip installs into a folder of the cache, without dependencies.

pip runs with the user's settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf) and takes wheels alone, so nothing is compiled and the
interpreter's torch stays.

- CACHE/dists/files/CONTENT/: the files that a wheel installs; CONTENT is their hash
- CACHE/dists/wheels/SHA256.json: CONTENT of the wheel of that hash
- CACHE/dists/asked/HASH.json: which wheel a release was at the last answer of the index, for when it does not answer
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
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from abprof.records import UNREADABLE, Record, Side
from abprof.records.errors import AbprofError
from abprof.sides.resolve import side_id
from abprof.system import files, locks
from abprof.system import processes as proc
from abprof.system.trees import files_of, tree_hash

PREFIX = "dist:"
# PEP 508's name and extras, PEP 440's version: exactly one version, no range, marker or address.
_ONE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*"
    r"(?:\[(?P<extras>[A-Za-z0-9._,\s-]*)\])?\s*"
    r"===?\s*(?P<version>[A-Za-z0-9]+(?:[.!+_-][A-Za-z0-9]+)*)"
)
_UNREACHED = re.compile(r"Could not fetch URL .*: (?:connection error|.*timed? ?out|There was a problem)|Retrying \(")
_MOST_NAMED = 6  # versions that a message names
_DIGITS = 20  # of a hash, in names of folders
_SCRATCH = "tmp"  # prefix of the folder of one installation

Say = Callable[[str], None]
_R = TypeVar("_R", bound=Record)


class _Unreachable(AbprofError):
    """No index answered: what was installed before may do."""


class _Wheel(Record, frozen=True):
    """The wheel that a release is for one interpreter."""

    file: str
    sha256: str
    yanked: str  # why its authors withdrew it; "" if they did not


class _Installed(Record, frozen=True):
    file: str
    content: str  # hash of the installed files


def is_release(spec: str) -> bool:
    """Whether this spec names a release, valid or not; no git ref contains a colon."""
    return spec.startswith(PREFIX)


def install(
    specs: Sequence[str], python: Callable[[str], str], cache: Path, timeout: float, say: Say
) -> dict[str, tuple[Side, tuple[str, ...]]]:
    """Install those of `specs` that are releases into the cache, and return their sides and notes by spec.

    `python(side id)` is the interpreter that a side runs with. Raises AbprofError.
    """
    return {
        spec: _resolve(spec, python(side_id(place)), cache, timeout, say)
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
        if not free:
            return
        for folder in sorted(home.glob(f"{_SCRATCH}*")):
            shutil.rmtree(folder, ignore_errors=True)
            yield f"removed the unfinished installation {folder.name}"
        if everything:
            for folder in sorted((home / "files").glob("*")):
                yield f"removed the installed release {folder.name}"
            shutil.rmtree(home, ignore_errors=True)


def unmet(release: Path, python: str, packages: Mapping[str, str]) -> tuple[str, ...]:
    """Requirements of the release installed at `release` that its interpreter does not meet, each with the version there.

    `python`: the interpreter's version; `packages`: distribution -> version. Requirements of extras are left out.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    there: dict[str, str] = {canonicalize_name(name): version for name, version in packages.items()}
    if not there:  # unknown
        return ()
    marks = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])} if python else {}
    lines = []
    for metadata in sorted(release.glob("*.dist-info/METADATA")):
        for text in HeaderParser().parsestr(metadata.read_text(errors="replace")).get_all("Requires-Dist", []):
            with contextlib.suppress(InvalidRequirement, InvalidVersion):
                needs = Requirement(text)
                if needs.marker is not None and not needs.marker.evaluate({"extra": "", **marks}):
                    continue
                has = there.get(canonicalize_name(needs.name))
                if has is None or not needs.specifier.contains(Version(has), prereleases=True):
                    lines.append(f"{needs.name}{needs.specifier} ({'not there' if has is None else f'{has} is there'})")
    return tuple(lines)


# ---------------------------------------------------------------- the cache


def _resolve(spec: str, python: str, cache: Path, timeout: float, say: Say) -> tuple[Side, tuple[str, ...]]:
    match = _ONE.fullmatch(spec.removeprefix(PREFIX).strip())
    if match is None:
        raise AbprofError("not one version of one distribution", where=spec, advice=f"{PREFIX}NAME==VERSION")
    home, notes = cache / "dists", list[str]()
    try:
        with _scratch(home) as scratch:
            pip = _Pip(match["name"], match["version"], python, scratch, timeout)
            name = hashlib.sha256(f"{pip.requirement}\0{python}".encode()).hexdigest()[:_DIGITS]
            answer = home / "asked" / f"{name}.json"
            try:
                wheel = pip.find()
                files.put(answer, msgspec.json.encode(wheel))
            except _Unreachable:
                before = _read(answer, _Wheel)
                if before is None or not _kept(home, before):
                    raise
                wheel = before
                notes.append(f"no package index answers: {pip.requirement} is the {wheel.file} of an earlier run")
            made = _kept(home, wheel) or _install(pip, wheel, home, say)
    except OSError as error:
        raise AbprofError(f"cannot be installed: {error.strerror}", where=spec) from error
    if wheel.yanked:
        notes.append(f"{pip.requirement} was withdrawn by its authors: {wheel.yanked}")
    side = Side(
        id="base",
        spec=spec,
        kind="dist",
        commit=made.content,
        tree=made.content,
        label=pip.requirement,
        subject=f"{made.file} sha256:{wheel.sha256}",
    )
    return side, tuple(notes)


def _install(pip: _Pip, wheel: _Wheel, home: Path, say: Say) -> _Installed:
    say(f"installing {wheel.file} into abprof's cache, without its dependencies")
    target = pip.scratch / "files"
    pip.install(wheel, target)
    made = _Installed(wheel.file, _content(target))
    _publish(target, _place(home, made.content))
    if wheel.sha256:
        files.put(home / "wheels" / f"{wheel.sha256}.json", msgspec.json.encode(made))
    return made


def _kept(home: Path, wheel: _Wheel) -> _Installed | None:
    """What this wheel was installed as, if its files are unchanged. A wheel without a hash cannot be recognised."""
    made = _read(home / "wheels" / f"{wheel.sha256}.json", _Installed)
    return made if made and _content(_place(home, made.content)) == made.content else None


@contextlib.contextmanager
def _scratch(home: Path) -> Iterator[Path]:
    """A folder for one installation, under the cache's lock."""
    home.mkdir(parents=True, exist_ok=True)
    with locks.locked(home / "lock"):
        for left in home.glob(f"{_SCRATCH}*"):  # of killed installations
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=home) as scratch:
            yield Path(scratch)


def _publish(made: Path, place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)  # one whose files were changed
    made.rename(place)


def _place(home: Path, content: str) -> Path:
    return home / "files" / content[:_DIGITS]


def _content(folder: Path) -> str:
    return tree_hash(folder, files_of(folder))


def _read(path: Path, type: type[_R]) -> _R | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, *UNREADABLE):
        return None


# ---------------------------------------------------------------- pip


@dataclass(frozen=True)
class _Pip:
    """pip for one release and one interpreter."""

    name: str
    version: str
    python: str
    scratch: Path
    timeout: float

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    def find(self) -> _Wheel:
        """Find the wheel. Raises AbprofError, _Unreachable if no index answers."""
        item, log = self._run("find", "--dry-run", "--ignore-installed")
        why = re.search(r"^Reason for being yanked: (.*)$", log, re.MULTILINE)
        yanked = why[1] if why else "no reason given" if item.get("is_yanked") else ""
        file = unquote(Path(urlsplit(item["download_info"]["url"]).path).name)
        return _Wheel(file, _hash(item), yanked)

    def install(self, wheel: _Wheel, target: Path) -> None:
        """Install the wheel's files into `target`. Raises AbprofError, also if pip took another wheel."""
        item, _ = self._run("install", "--no-compile", "--target", str(target))
        if _hash(item) != wheel.sha256:
            what = f"was another wheel when it was installed than when it was found ({wheel.file})"
            raise AbprofError(what, where=self.requirement, advice="run again, when its index has settled")
        # Equal wheels make equal folders: remove what pip writes about this installation.
        for info in target.glob("*.dist-info"):
            for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
                (info / name).unlink(missing_ok=True)
        scripts = target / "bin"  # their first line names the interpreter
        if not (scripts / "__init__.py").exists():
            shutil.rmtree(scripts, ignore_errors=True)

    def _run(self, what: str, *options: str) -> tuple[dict[str, Any], str]:
        """Run pip; return the only item of its report, and its log. Raises AbprofError."""
        report, log = self.scratch / f"{what}.json", self.scratch / f"{what}.log"
        fixed = (
            "--no-deps",
            "--only-binary",
            ":all:",
            "--no-input",
            "--no-color",
            "--disable-pip-version-check",
            "-vv",
        )
        # Settings that do not go with a folder of ours.
        env = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0", "LC_ALL": "C.UTF-8"}
        own = (self.python, "-P", "-m", "pip")
        others = (sys.executable, "-P", "-m", "pip", "--python", self.python)  # for an environment without pip, as uv's
        for command in dict.fromkeys((own, others)):
            argv = [*command, "install", *fixed, "--report", str(report), *options, self.requirement]
            log.unlink(missing_ok=True)
            try:
                code = proc.logged(argv, env=env, cwd=log.parent, log=log, timeout=self.timeout)
            except proc.WorkerDied as died:
                raise AbprofError(died.reason, where="pip") from died
            text = log.read_text(errors="replace")
            if "No module named pip" not in text:
                break
        else:
            raise AbprofError("there is no pip", where=self.python, advice=f"{self.python} -m ensurepip")
        if code:
            raise self._refusal(text)
        try:
            (item,) = msgspec.json.decode(report.read_bytes())["install"]
        except (OSError, ValueError, KeyError, TypeError, *UNREADABLE) as error:
            what = "pip did not say which wheel it took"
            raise AbprofError(what, where=self.requirement, advice="pip 22.2 or later does") from error
        return item, text

    def _refusal(self, log: str) -> AbprofError:
        """Pip's log as one line."""
        where = self.requirement
        listed = re.search(r"\(from versions: (.*)\)", log)
        if listed is None:
            line = re.search(r"^ERROR: (.*)$", log, re.MULTILINE)
            return AbprofError(f"pip: {line[1]}" if line else "pip failed without a message", where=where)
        versions = [] if listed[1] == "none" else listed[1].split(", ")
        if self._skipped(log, r"No sources permitted for \S+"):
            advice = "make a wheel of it (pip wheel --no-deps) and name its folder in PIP_FIND_LINKS"
            return AbprofError("has no wheel, only sources, and abprof compiles no release", where=where, advice=advice)
        if self._skipped(log, r"none of the wheel's tags \(.*\) are compatible.*?|.*[Rr]equires.*Python.*?"):
            return AbprofError("has no wheel that fits this interpreter", where=where, advice=f"it is {self.python}")
        if _UNREACHED.search(log) and not versions:
            advice = "PIP_INDEX_URL and PIP_FIND_LINKS name others"
            return _Unreachable("pip cannot reach its package index", where=where, advice=advice)
        if not versions:
            advice = "is its name right? PIP_INDEX_URL and PIP_FIND_LINKS say where pip looks"
            return AbprofError("pip finds no such distribution", where=where, advice=advice)
        more = "..., " if len(versions) > _MOST_NAMED else ""
        advice = f"there are {more}{', '.join(versions[-_MOST_NAMED:])}"
        return AbprofError(f"{self.name} has no version {self.version}", where=where, advice=advice)

    def _skipped(self, log: str, why: str) -> bool:
        """Whether pip passed over a file of exactly this release for that reason."""
        for link in re.findall(rf"Skipping link: (?:{why}):? (\S+://\S+)", log):
            file = unquote(Path(urlsplit(link).path).name)
            match = re.match(r"(.+?)-(\d[^-]*?)(-.*\.whl|\.tar\.\w+|\.tgz|\.zip)$", file)
            if match and _plain(match[1]) == _plain(self.name) and match[2] == self.version:
                return True
        return False


def _hash(item: dict[str, Any]) -> str:
    return str(item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", ""))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()  # PEP 503
