"""Where built libraries lie."""

from __future__ import annotations

import os
from pathlib import Path


def build_folder(key: str) -> Path:
    """$ABPROF_BUILD_DIR where abprof set it; else a folder of the user's cache named by the content's key."""
    folder = os.environ.get("ABPROF_BUILD_DIR")
    if folder is not None:
        return Path(folder)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "ffa" / key
