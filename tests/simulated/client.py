"""An example scenario, and a factory of simulated workers for tests of rooms that start workers."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from abprof.builds import WorkerFactory
from abprof.records import messages as wire
from tests.simulated.scenario import Fault, Scenario, Workload

WORKER = Path(__file__).parent / "worker.py"
CASE: dict[str, wire.Value] = {"n": 1, "mask": "full"}
LOAD = Workload(
    kernel="k",
    presets={"default": {"n": [1, 2], "mask": ["full"]}, "zipped": {"a,b": [[1, 2], [3, 4]]}},
    variants=["v1"],
    peers=["lib"],
    phases=[("run", "k.run", "the kernel itself", 0.75), ("cast", "k.cast", "never runs", None)],
    seed_columns=["n"],
    flops=1e9,
    bytes=1e6,
    convention="simulated",
    skips={"w/n=2,*": "too large here"},
)
SCENARIO = Scenario(workloads={"w": LOAD}, clock_ns=1000)


def faulty(*faults: Fault) -> Scenario:
    """The example scenario with these faults."""
    return replace(SCENARIO, faults=list(faults))


def worker_factory(folder: Path) -> WorkerFactory:
    """A factory of simulated workers that play `folder`/scenario.json and load builds at `folder`/build."""
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
