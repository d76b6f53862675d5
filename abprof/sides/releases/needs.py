"""What a release asks for, and its side's interpreter has not: nothing installs it. The only place of packaging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


def unmet(files: Path, python: str, packages: Mapping[str, str]) -> tuple[str, ...]:
    """Of the release that is installed at `files`, each requirement that an interpreter does not meet, with what it has.

    `python`: its version; `packages`: distribution -> version there. What extras ask for is left out.
    """
    there: dict[str, str] = {canonicalize_name(name): version for name, version in packages.items()}
    if not there:  # it could not say
        return ()
    return tuple(line for asked in _required(files, python) if (line := _missing(asked, there)))


def _required(files: Path, python: str) -> Iterator[Requirement]:
    here = (
        {"extra": "", "python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
        if python
        else {}
    )
    for metadata in sorted(files.glob("*.dist-info/METADATA")):
        for text in HeaderParser().parsestr(metadata.read_text(errors="replace")).get_all("Requires-Dist", []):
            try:
                asked = Requirement(text)
            except InvalidRequirement:
                continue  # older than the standard; pip reads it as it likes
            if asked.marker is None or asked.marker.evaluate(here):
                yield asked


def _missing(asked: Requirement, there: Mapping[str, str]) -> str:
    has = there.get(canonicalize_name(asked.name))
    wanted = f"{asked.name}{asked.specifier}"
    if has is None:
        return f"{wanted} (not there)"
    try:
        meets = asked.specifier.contains(Version(has), prereleases=True)
    except InvalidVersion:  # nobody can say
        return ""
    return "" if meets else f"{wanted} ({has} is there)"
