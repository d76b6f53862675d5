"""The doorway to pip: which wheel a release is, and its files in a folder of ours.

It is the user's pip with the user's settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf), told to take wheels alone and no
dependencies: nothing is compiled, and the interpreter's torch stays.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError
from abprof.sides.releases.wanted import Wanted
from abprof.system import processes as proc

_MOST_NAMED = 6  # versions that a message names
_UNREACHED = re.compile(r"Could not fetch URL .*: (?:connection error|.*timed? ?out|There was a problem)|Retrying \(")


class Unreachable(AbprofError):
    """No index answered: what was installed before may do."""


class Found(msgspec.Struct, frozen=True):
    """The wheel that a release is for one interpreter."""

    file: str
    sha256: str
    yanked: str  # why its authors have withdrawn it; "" for one that stands


class _Hashes(msgspec.Struct):
    sha256: str = ""


class _Archive(msgspec.Struct):
    hashes: _Hashes = msgspec.field(default_factory=_Hashes)


class _Download(msgspec.Struct):
    url: str
    archive_info: _Archive = msgspec.field(default_factory=_Archive)


class _Item(msgspec.Struct):
    download_info: _Download
    is_yanked: bool = False


class _Report(msgspec.Struct):
    """What is read of pip's installation report (pip 22.2 and later)."""

    install: list[_Item]


def find(wanted: Wanted, python: str, scratch: Path, timeout: float) -> Found:
    """Ask the index, or the folders that pip was told of. Raises AbprofError, Unreachable where nothing answered."""
    report, log = scratch / "report.json", scratch / "find.log"
    asked = ["--dry-run", "--ignore-installed", "--report", str(report), wanted.requirement]
    if _pip(asked, python, log, timeout):
        raise _refused(wanted, log, python)
    item = _item(wanted, report)
    why = re.search(r"^Reason for being yanked: (.*)$", log.read_text(errors="replace"), re.MULTILINE)
    yanked = (why[1] if why else "no reason given") if item.is_yanked else ""
    file = unquote(Path(urlsplit(item.download_info.url).path).name)
    return Found(file, item.download_info.archive_info.hashes.sha256, yanked)


def install(wanted: Wanted, found: Found, python: str, target: Path, scratch: Path, timeout: float) -> None:
    """Put the files of the wheel that was found into `target`. Raises AbprofError, also where pip took another by now."""
    report, log = scratch / "installed.json", scratch / "install.log"
    asked = ["--no-compile", "--report", str(report), "--target", str(target), wanted.requirement]
    if _pip(asked, python, log, timeout):
        raise _refused(wanted, log, python)
    if _item(wanted, report).download_info.archive_info.hashes.sha256 != found.sha256:
        what = f"was another wheel when it was installed than when it was found ({found.file})"
        raise AbprofError(what, where=wanted.requirement, advice="run again, when its index has settled")


def _item(wanted: Wanted, report: Path) -> _Item:
    """What pip says that it took. Raises AbprofError."""
    try:
        (item,) = msgspec.json.decode(report.read_bytes(), type=_Report).install
    except (OSError, ValueError, *UNREADABLE) as error:
        raise AbprofError(
            "pip did not say which wheel it is", where=wanted.requirement, advice="pip 22.2 or later does"
        ) from error
    return item


def _pip(asked: Sequence[str], python: str, log: Path, timeout: float) -> int:
    """Pip's exit code; what it says, all of it, is in `log`. Raises AbprofError where there is no pip, or no end of it."""
    fixed = ("--no-deps", "--only-binary", ":all:", "--no-input", "--no-color", "--disable-pip-version-check", "-vv")
    # A user's habits that do not go with a folder of ours.
    env = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0", "LC_ALL": "C.UTF-8"}
    own = (python, "-P", "-m", "pip")
    others = (sys.executable, "-P", "-m", "pip", "--python", python)  # an environment without one, such as uv's
    for command in dict.fromkeys((own, others)):
        log.unlink(missing_ok=True)
        try:
            code = proc.logged([*command, "install", *fixed, *asked], env=env, cwd=log.parent, log=log, timeout=timeout)
        except proc.WorkerDied as died:
            raise AbprofError(died.reason, where="pip") from died
        if "No module named pip" not in log.read_text(errors="replace"):
            return code
    raise AbprofError("there is no pip", where=python, advice=f"{python} -m ensurepip")


def _refused(wanted: Wanted, log: Path, python: str) -> AbprofError:
    """What pip's log says in many lines, as one."""
    text = log.read_text(errors="replace")
    where = wanted.requirement
    listed = re.search(r"\(from versions: (.*)\)", text)
    if listed is None:
        said = re.search(r"^ERROR: (.*)$", text, re.MULTILINE)
        return AbprofError(f"pip: {said[1]}" if said else "pip failed and did not say why", where=where)
    versions = [] if listed[1] == "none" else listed[1].split(", ")
    if _skipped(wanted, text, r"No sources permitted for \S+"):
        advice = "make a wheel of it (pip wheel --no-deps) and name its folder in PIP_FIND_LINKS"
        return AbprofError("has no wheel, only sources, and abprof compiles no release", where=where, advice=advice)
    if _skipped(wanted, text, r"none of the wheel's tags \(.*\) are compatible.*?"):
        return AbprofError("has no wheel that fits this interpreter", where=where, advice=f"it is {python}")
    needs = _skipped(wanted, text, r".*requires a different Python.*?|.*Requires-Python.*?")
    if needs:
        return AbprofError("is not for this Python", where=where, advice=f"it is {python}")
    if _UNREACHED.search(text) and not versions:
        advice = "PIP_INDEX_URL and PIP_FIND_LINKS name others"
        return Unreachable("pip cannot reach its package index", where=where, advice=advice)
    if not versions:
        advice = "is its name right? PIP_INDEX_URL and PIP_FIND_LINKS say where pip looks"
        return AbprofError("pip finds no such distribution", where=where, advice=advice)
    return AbprofError(f"{wanted.name} has no version {wanted.version}", where=where, advice=_nearest(versions))


def _skipped(wanted: Wanted, log: str, why: str) -> bool:
    """Whether pip passed over a file of exactly this release for that reason."""
    for link in re.findall(rf"Skipping link: (?:{why}):? (\S+://\S+)", log):
        file = unquote(Path(urlsplit(link).path).name)
        match = re.match(r"(.+?)-(\d[^-]*?)(-.*\.whl|\.tar\.\w+|\.tgz|\.zip)$", file)
        if match and wanted.says(match[1]) and match[2] == wanted.version:
            return True
    return False


def _nearest(versions: Sequence[str]) -> str:
    more = "..., " if len(versions) > _MOST_NAMED else ""
    return f"there are {more}{', '.join(versions[-_MOST_NAMED:])}"


def without_traces(target: Path) -> None:
    """Take away what pip wrote about this installation rather than of the release: equal wheels are equal folders."""
    for info in target.glob("*.dist-info"):
        for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            (info / name).unlink(missing_ok=True)
    scripts = target / "bin"  # their first line names the interpreter
    if not (scripts / "__init__.py").exists():
        shutil.rmtree(scripts, ignore_errors=True)
