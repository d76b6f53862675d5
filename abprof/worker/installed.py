"""Which installed files are the code of the repository under test: another tree's, although they lie beside torch."""

from __future__ import annotations

import json
import os
import sys
from functools import cache, lru_cache
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import url2pathname

# What site brought in before anything was asked of this worker: the finder of an editable install is of that install,
# and does no harm unless something is imported through it.
_AT_START = tuple(sys.modules)


@lru_cache(maxsize=8)
def installed_from(
    sources: tuple[str, ...], own: tuple[str, ...], path: tuple[str, ...], package: str = ""
) -> dict[str, str]:
    """Real path of a file -> its distribution, in words; of those distributions on the import `path` that were
    installed from a folder or archive below `sources` and not below `own` (PEP 610), editable or not, and of those that
    are copies of the package: they hold `package`, its path below a folder of installed packages.

    `sources` and `own` end with a slash. What was imported when the worker started is left out.
    """
    found: dict[str, str] = {}
    for distribution in metadata.distributions(path=list(path)) if sources or package else ():
        origin = _origin(distribution) if sources else ""
        from_sources = origin.startswith(sources) and not origin.startswith(own) if origin else False
        if from_sources or (package and _holds(distribution, package)):
            why = f"was installed from {origin[:-1]}" if from_sources else "is an installed copy of the package"
            what = f"{distribution.metadata['Name']}, which {why}"
            files = distribution.files or ()
            found |= dict.fromkeys((os.path.realpath(str(distribution.locate_file(file))) for file in files), what)
    return {file: what for file, what in found.items() if file not in _at_start()} if found else {}


def _holds(distribution: metadata.Distribution, package: str) -> bool:
    """Whether it has this folder or module. The text is searched as it is: torch's has fifteen thousand lines."""
    text = "\n" + (distribution.read_text("RECORD") or "")
    return any(f"\n{package}{end}" in text for end in ("/", ".py,", ".so,", ".cpython-", ".abi3."))


def _origin(distribution: metadata.Distribution) -> str:
    """The folder or archive that this was installed from, with a slash at its end; "" for an index or another host."""
    try:
        url = urlsplit(json.loads(distribution.read_text("direct_url.json") or "{}")["url"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    if url.scheme != "file":
        return ""
    return os.path.join(os.path.realpath(url2pathname(url.path)), "")  # noqa: PTH118


@cache
def _at_start() -> frozenset[str]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _AT_START)
    return frozenset(os.path.realpath(file) for file in files if file)
