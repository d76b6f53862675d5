"""Which interpreter and which torch this worker is."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import sysconfig

import torch


def interpreter() -> dict[str, str]:
    """Which installation this is, by whatever name it was called."""
    return {
        "prefix": os.path.realpath(sys.prefix),
        "base_prefix": os.path.realpath(sys.base_prefix),
        "soabi": str(sysconfig.get_config_var("SOABI") or ""),
    }


@functools.cache
def versions() -> dict[str, str]:
    """Of the interpreter and what decides a build. Imports Triton, and touches no device."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "implementation": sys.implementation.name,
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if getattr(torch.version, "hip", None):
        found["hip"] = torch.version.hip
    with contextlib.suppress(ImportError):
        import triton

        found["triton"] = triton.__version__
    with contextlib.suppress(Exception):
        found["cudnn"] = str(torch.backends.cudnn.version() or "")
    return {name: value for name, value in found.items() if value}
