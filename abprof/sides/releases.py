"""Install releases as sides: for `dist:NAME==VERSION` pip installs one wheel, without dependencies, into the cache.

pip runs with the user's settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf). Only wheels are installed. The files of a
wheel are in CACHE/dists/files/HASH/; HASH is the hash of these files.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from abprof.records import Side
from abprof.records.errors import AbprofError
from abprof.sides.resolve import side_id
from abprof.sides.toolchains import split
from abprof.system import locks
from abprof.system import processes as proc
from abprof.system.trees import files_of, tree_hash

_PREFIX = "dist:"
# PEP 508's name and extras, PEP 440's version: exactly one version, no range, marker or address.
_ONE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[A-Za-z0-9._,\s-]*\])?\s*"
    r"===?\s*(?P<version>[A-Za-z0-9]+(?:[.!+_-][A-Za-z0-9]+)*)"
)
_DIGITS = 20  # number of the content hash's digits in a folder's name
_SCRATCH = "tmp"  # prefix of the temporary folder of one installation
_PIP = (
    "install", "--no-deps", "--only-binary", ":all:", "--ignore-installed", "--no-compile", "--no-input",
    "--no-color",
)  # fmt: skip


def is_release(spec: str) -> bool:
    """Whether `spec` is written as a release: `dist:...`. No git ref contains a colon."""
    return spec.startswith(_PREFIX)


def install(
    specs: Sequence[str], python: Callable[[str], str], cache: Path, timeout: float, say: Callable[[str], None]
) -> dict[str, tuple[Side, tuple[str, ...]]]:
    """Install the releases among `specs` into the cache. Return {release: (side, notes for the user)}. `python` returns
    the interpreter's path for a side id. `timeout` is in seconds. Raises AbprofError if pip fails."""
    return {
        spec: _resolve(spec, python(side_id(place)), cache / "dists", timeout, say)
        for place, (spec, _) in enumerate(map(split, specs))
        if is_release(spec)
    }


def put(cache: Path, side: Side, path: Path) -> None:
    """Copy the files of an installed release to `path`. Raises AbprofError if the installed files have changed."""
    source = _place(cache / "dists", side.commit)
    shutil.copytree(source, path, symlinks=True)
    if _content(path) != side.commit:
        raise AbprofError(f"the files of {side.label} were changed", where=str(source), advice="run abprof again")


def sweep(cache: Path, *, everything: bool) -> Iterator[str]:
    """Remove what killed installations left; with `everything` also all releases. Yield a line for each removal."""
    home = cache / "dists"
    if not home.is_dir():
        return
    with locks.abandoned(home / "lock") as free:
        left = [*home.glob(f"{_SCRATCH}*"), *(home.glob("files/*") if everything else ())]
        for folder in sorted(left) if free else ():
            shutil.rmtree(folder, ignore_errors=True)
            yield f"removed the installed release {folder.name}"
        if free and everything:
            shutil.rmtree(home, ignore_errors=True)


def _resolve(
    spec: str, python: str, home: Path, timeout: float, say: Callable[[str], None]
) -> tuple[Side, tuple[str, ...]]:
    match = _ONE.fullmatch(spec.removeprefix(_PREFIX).strip())
    if match is None:
        raise AbprofError("not a release with one exact version", where=spec, advice=f"write {_PREFIX}NAME==VERSION")
    release = f"{match['name']}=={match['version']}"
    say(f"installing {release} into abprof's cache, without its dependencies")
    home.mkdir(parents=True, exist_ok=True)
    with locks.locked(home / "lock"), tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=home) as scratch:
        wheel, withdrawn = _install(release, python, Path(scratch), timeout)
        content = _content(Path(scratch, "files"))
        place = _place(home, content)
        place.parent.mkdir(exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        Path(scratch, "files").rename(place)
    side = Side(id="base", spec=spec, kind="dist", commit=content, tree=content, label=release, subject=wheel)
    return side, (f"{release} was withdrawn by its authors: {withdrawn}",) if withdrawn else ()


def _place(home: Path, content: str) -> Path:
    return home / "files" / content[:_DIGITS]


def _content(folder: Path) -> str:
    return tree_hash(folder, files_of(folder))


def _install(release: str, python: str, scratch: Path, timeout: float) -> tuple[str, str]:
    """Install a wheel into `scratch`. Return "FILE sha256:HASH", and why the authors withdrew the release (or "")."""
    report, target = scratch / "report.json", scratch / "files"
    code, log = _pip(python, ["--report", str(report), "--target", str(target), release], scratch, timeout)
    if code:
        line = re.search(r"^ERROR: (.*)$", log, re.MULTILINE)
        advice = "PIP_INDEX_URL and PIP_FIND_LINKS set where pip searches"
        raise AbprofError(f"pip: {line[1]}" if line else "pip failed without a message", where=release, advice=advice)
    (item,) = msgspec.json.decode(report.read_bytes())["install"]
    file = unquote(Path(urlsplit(item["download_info"]["url"]).path).name)
    sha256 = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
    # Equal wheels must give equal folders: remove pip's records of this installation.
    for info in target.glob("*.dist-info"):
        for written in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            (info / written).unlink(missing_ok=True)
    if not (target / "bin" / "__init__.py").exists():  # scripts: their first line names the interpreter
        shutil.rmtree(target / "bin", ignore_errors=True)
    yanked = re.search(r"^Reason for being yanked: (.*)$", log, re.MULTILINE)
    return f"{file} sha256:{sha256}", yanked[1] if yanked else ""


def _pip(python: str, options: Sequence[str], scratch: Path, timeout: float) -> tuple[int, str]:
    log = scratch / "log"
    # Override settings of the user that conflict with --target.
    env = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PIP_USER": "0", "LC_ALL": "C.UTF-8"}
    # The second command serves an environment without pip, such as uv's.
    for command in ((python, "-P", "-m", "pip"), (sys.executable, "-P", "-m", "pip", "--python", python)):
        log.unlink(missing_ok=True)
        argv = [*command, *_PIP, "--disable-pip-version-check", *options]
        try:
            code = proc.logged(argv, env=env, cwd=scratch, log=log, timeout=timeout)
        except proc.WorkerDied as died:
            raise AbprofError(died.reason, where="pip") from died
        text = log.read_text(errors="replace")
        if "No module named pip" not in text:
            return code, text
    raise AbprofError("pip is not installed", where=python, advice=f"run {python} -m ensurepip")
