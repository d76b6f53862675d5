"""What `dist:NAME==VERSION` asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from abprof.records.errors import AbprofError

PREFIX = "dist:"
# PEP 508's name and extras, PEP 440's version; one version, so no range, no marker and no address.
_ONE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*"
    r"(?:\[(?P<extras>[A-Za-z0-9._,\s-]*)\])?\s*"
    r"===?\s*(?P<version>[A-Za-z0-9]+(?:[.!+_-][A-Za-z0-9]+)*)"
)


@dataclass(frozen=True)
class Wanted:
    """One release of one distribution."""

    name: str
    version: str

    @property
    def requirement(self) -> str:
        """As pip is asked for it, and as people say it."""
        return f"{self.name}=={self.version}"

    def says(self, name: str) -> bool:
        """Whether `name` is this distribution's (PEP 503)."""
        return _plain(name) == _plain(self.name)


def is_one(spec: str) -> bool:
    """Whether this spec names a release, well or badly; no git ref holds a colon."""
    return spec.startswith(PREFIX)


def parse(spec: str) -> Wanted:
    """The release that `dist:...` names. Raises AbprofError for what is not one version of one distribution.

    Extras are read and change nothing: they name dependencies, and a side's dependencies are its interpreter's.
    """
    found = _ONE.fullmatch(spec.removeprefix(PREFIX).strip())
    if found is None:
        raise AbprofError("not one version of one distribution", where=spec, advice=f"{PREFIX}NAME==VERSION")
    return Wanted(found["name"], found["version"])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
