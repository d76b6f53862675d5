"""The worker's code, copied by content to a folder of its own, so that nothing else of abprof's installation (or of a
branch that has an abprof/ folder too) is importable beside the kernels under test."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

_SOURCE = Path(__file__).parent
_FILES = ("__init__.py", "kit.py")
_ROOMS = ("adapters", "wire", "worker")
_RUN = """import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from abprof.worker.main import main
sys.exit(main())
"""


def install(cache: Path) -> Path:
    """The script that starts a worker: CACHE/harness/HASH/run_worker.py. Made once per content, by rename."""
    files = [_SOURCE / name for name in _FILES] + [
        file for room in _ROOMS for file in sorted((_SOURCE / room).rglob("*.py"))
    ]
    digest = hashlib.sha256(_RUN.encode())
    for file in files:
        digest.update(f"{file.relative_to(_SOURCE)}\0".encode() + file.read_bytes())
    home = cache / "harness" / digest.hexdigest()[:16]
    script = home / "run_worker.py"
    if not script.exists():
        fresh = home.with_name(f"{home.name}.{os.getpid()}")
        for file in files:
            place = fresh / "abprof" / file.relative_to(_SOURCE)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
        (fresh / "run_worker.py").write_text(_RUN)
        try:
            fresh.rename(home)
        except OSError:
            shutil.rmtree(fresh)  # another process published the same content first
    return script
