"""Find the folders of the bundled kernels, workloads and templates."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def bundled(kind: Literal["kernels", "workloads", "templates"]) -> Path:
    """Return the folder `abprof/_bundled/KIND` of an installed wheel, or KIND at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    carried = package / "_bundled" / kind
    return carried if carried.is_dir() else package.parent / kind
