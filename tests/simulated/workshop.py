"""A workshop of simulated workers, for tests that drive crews without a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from abprof.builds import WorkerFactory
from tests.simulated.client import WORKER


def workshop(folder: Path) -> WorkerFactory:
    """Its workers play `folder`/scenario.json, whatever stands there when they start, and load builds at `folder`/build."""
    (folder / "build" / "src").mkdir(parents=True)
    argv = [sys.executable, "-P", str(WORKER)]
    return WorkerFactory(
        cache=folder,
        logs=folder,
        scratch=folder,
        workers={"base": argv, "target": argv},
        env={
            "ABPROF_SIMULATED": str(folder / "scenario.json"),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        device="simulated",
        forbidden=(),
        workloads={},
        toolchain={},
        timeout=240.0,
        build_timeout=240.0,
    )
