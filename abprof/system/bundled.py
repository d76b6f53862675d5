"""Where the bundled kernels, workloads and templates are: inside an installed wheel, or at the top of a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def bundled(kind: Literal["kernels", "workloads", "templates"]) -> Path:
    """The folder of this kind: `abprof/_bundled/KIND` of a wheel, else the checkout's top-level folder."""
    package = Path(__file__).resolve().parent.parent
    carried = package / "_bundled" / kind
    return carried if carried.is_dir() else package.parent / kind
