"""Programs that tests put into a folder on PATH."""

import sys
from pathlib import Path

ABPROF = f'exec {sys.executable} -P -m abprof "$@"'


def program(path: Path, script: str) -> Path:
    """Write an executable shell script, or one with its own first line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
