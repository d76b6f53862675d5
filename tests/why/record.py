"""`python -m tests.why.record` writes tests/data/planted_kernels.json anew: both sides of every planted branch, compiled
for sm_90a and read as a run reads them. Paths and what differs by machine are left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from abprof.evidence import machine_code
from abprof.records import Kernel
from tests import blocks
from tests.planted import COMPILED, marked
from tests.why.cases import RECORDED

ROOT = Path(__file__).resolve().parents[2]


def compiled(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of `RECORDED`, made by the installed compilers."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.planted.offline", str(folder), *COMPILED, *marked.SETS["triton"]],
        env=os.environ | {"TRITON_CACHE_DIR": str(folder / "cache")},
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    recorded = json.loads(done.stdout.splitlines()[-1])
    for sides in recorded.values():
        for side, part in sides.items():
            raw = [msgspec.convert(one | {"side": side, "package": "ffa", "kind": "triton"}, Kernel)
                   for one in part["kernels"]]  # fmt: skip
            read = machine_code.read_kernels(blocks.head(), raw, folder / "read")
            kept = [msgspec.structs.replace(kernel, path="", seconds=None) for kernel in read]
            part["kernels"] = [msgspec.to_builtins(kernel) for kernel in kept]
    return recorded


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        each = [f"{json.dumps(name)}:{json.dumps(of)}" for name, of in compiled(Path(place)).items()]
        RECORDED.write_text("{" + ",\n".join(each) + "}\n")
