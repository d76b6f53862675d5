"""`python -m tests.why.record` writes tests/data/planted_kernels.json anew: both sides of every planted branch, compiled
for sm_90a and read as a run reads them. Paths and what differs by machine are left out."""

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.planted import COMPILED, marked
from tests.why import listed
from tests.why.cases import RECORDED


def compiled(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of `RECORDED`, made by the installed compilers."""
    recorded = listed.compiled(folder, *COMPILED, *marked.SETS["triton"])
    for part in (part for sides in recorded.values() for part in sides.values()):
        part["kernels"] = [kernel | {"path": "", "seconds": None} for kernel in part["kernels"]]
    return recorded


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        each = [f"{json.dumps(name)}:{json.dumps(of)}" for name, of in compiled(Path(place)).items()]
        RECORDED.write_text("{" + ",\n".join(each) + "}\n")
