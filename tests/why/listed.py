"""Rows of planted changes, compiled for sm_90a here, with the listings that a run keeps."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from abprof.builds import environment
from abprof.evidence import explained, keep_listings, machine_code
from abprof.records import Artefact, Build, Checkout, Kernel, Proof, Run
from tests import blocks
from tests.why import cases

ROOT = Path(__file__).resolve().parents[2]


def compiled(folder: Path, *branches: str) -> dict[str, dict[str, Any]]:
    """branch -> side -> grid and kernels, whose machine code is read. The sides' files are in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.planted.offline", str(folder), *branches],
        env=environment.worker(os.environ, folder / "cache", "cuda:0", {}),
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    made: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    for sides in made.values():
        for side, part in sides.items():
            raw = [msgspec.convert(one | {"side": side, "package": "ffa", "kind": "triton"}, Kernel)
                   for one in part["kernels"]]  # fmt: skip
            read = machine_code.read_kernels(blocks.head(), raw, folder / "read")
            part["kernels"] = [msgspec.to_builtins(kernel) for kernel in read]
    return made


def run_of(folder: Path, branch: str, sides: dict[str, Any], pct: float = 30.0, **more: Any) -> tuple[Run, Path]:
    """The judged run of a branch that is `pct` slower, with causes, and its folder."""
    run, home = cases.run(sides["base"], sides["target"], pct), folder / f"run_{branch}"
    home.mkdir(exist_ok=True)
    proofs, builds = [], []
    for side in ("base", "target"):  # as in a run, a build has its copy of the sources, and workers load that
        build = folder / f"build_{branch}_{side}"
        shutil.copytree(folder / f"{branch}_{side}", build / "src", dirs_exist_ok=True)
        loaded = tuple(Artefact("module", path.stem, str(path), "") for path in (build / "src").rglob("*.py"))
        proofs.append(Proof(epoch=1, side=side, kernel="ffa", ok=True, artefacts=loaded))
        builds.append(Build(side=side, kernel="ffa", key="", path=str(build)))
    run = msgspec.structs.replace(run, proofs=tuple(proofs), builds=tuple(builds), **more)
    checkouts = [Checkout(side=side, path=str(folder / f"{branch}_{side.id}")) for side in run.sides]
    return explained(keep_listings(run, checkouts, home)), home
