"""A whole run: what was requested, where it was measured, and its results."""

from __future__ import annotations

from typing import Literal

from abprof.records.base import Record
from abprof.records.blocks import Trace
from abprof.records.builds import Build, Kernel, Proof
from abprof.records.cells import Arm, Cell, Command, Side, Workload
from abprof.records.options import Night, Options
from abprof.records.profiles import Profile
from abprof.records.results import Advice, Comparison, Header, Observation
from abprof.records.samples import Sampled


class Waiver(Record, frozen=True, kw_only=True):
    """A slow-down that somebody has accepted (abprof/verdict/waivers.py)."""

    cells: str  # pattern of cell ids
    most_pct: float  # the largest that is accepted
    reason: str
    owner: str
    expires: str  # the last day, ISO 8601


class Touched(Record, frozen=True, kw_only=True):
    """A file that changed while code under test ran and must not change (abprof/builds/tampering.py)."""

    path: str
    how: Literal["changed", "removed", "added"]
    moment: str  # "while kernels were built", "in epoch 2"
    falsifies: bool = True  # what it holds is measured, or judges; False: elsewhere, and no verdict rests on it


class Ceilings(Record, frozen=True, kw_only=True):
    """The most that plain torch got out of the device in this run (abprof/worker/ceilings.py); None: not measured."""

    tflops: float | None = None
    tflops_by: str = ""  # of what, in words: "bfloat16 matrix products of 8192 x 8192 x 8192, the best of 9 readings"
    gbps: float | None = None  # 1e9 bytes a second, read and written
    gbps_by: str = ""
    why_not: str = ""  # why one or both are missing


class Machine(Record, frozen=True, kw_only=True):
    """A machine, and the device of it that was measured on."""

    host: str
    device: str  # "NVIDIA H200" or the processor's name
    kind: Literal["cpu", "cuda", "simulated"]
    uuid: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    facts: dict[str, str] = {}
    ceilings: Ceilings | None = None  # in a run on several devices: of each by itself
    builds: tuple[Build, ...] = ()  # what its workers load, where its architecture is another than the first's


class Toolchain(Record, frozen=True, kw_only=True):
    """What a side was built and run with."""

    versions: dict[str, str]  # interpreter, torch, Triton, CUDA, compilers, architecture: what decides a build
    packages: dict[str, str] = {}  # installed for the side's interpreter: distribution -> version


class Loss(Record, frozen=True, kw_only=True):
    """A shard that ended before its cells were decided. What it measured of these cells does not stand: they were measured
    again, whole."""

    shard: int
    device: str
    cells: tuple[str, ...]
    reason: str


class Run(Record, frozen=True, kw_only=True):
    """run.json: one run, whole. Its head (all but the lists of results) and rounds.jsonl rebuild everything else."""

    schema: int
    id: str
    status: Literal["running", "complete", "interrupted"]
    began: str  # ISO 8601, UTC
    ended: str | None = None
    options: Options
    sides: tuple[Side, ...]
    workloads: tuple[Workload, ...]
    workloads_from: str = ""  # folder and content hash
    command: Command | None = None  # in the place of workloads: a run of a command that times itself
    waivers: tuple[Waiver, ...] = ()  # of base's commit
    night: Night | None = None  # of `abprof nightly`
    arms: tuple[Arm, ...]
    cells: tuple[Cell, ...]
    builds: tuple[Build, ...] = ()
    machine: Machine  # of several, the first
    machines: dict[str, Machine] = {}  # by the lease's name, in a run on several devices; {}: `machine` alone
    losses: tuple[Loss, ...] = ()
    versions: dict[str, str] = {}
    toolchains: dict[str, Toolchain] = {}  # by side; {} in older runs
    ceilings: Ceilings | None = None  # None: not measured, or an older run
    environment: dict[str, str] = {}
    withheld: tuple[str, ...] = ()  # names of environment variables kept from the workers
    notes: tuple[str, ...] = ()  # lines about the sides: merge base moved on, same ref twice, ...
    touched: tuple[Touched, ...] = ()  # what changed that should not have
    header: Header | None = None
    observations: tuple[Observation, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # base with targets, peers with every side
    within: tuple[Comparison, ...] = ()  # variants of one side with each other; runs of before have none
    controls: tuple[Comparison, ...] = ()
    proofs: tuple[Proof, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    traces: tuple[Trace, ...] = ()  # of --probe torch
    profiles: tuple[Profile, ...] = ()  # under Nsight Compute: --probe ncu, `abprof profile`, `abprof memory`
    sampled: tuple[Sampled, ...] = ()  # of --probe perf
    warnings: tuple[Advice, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command line."""
        return self.options.arguments

    def side(self, id: str) -> Side:
        """The side with this id. Raises KeyError."""
        for side in self.sides:
            if side.id == id:
                return side
        raise KeyError(id)

    def builds_of(self, device: str) -> tuple[Build, ...]:
        """What this device's workers load; the run's with ""."""
        machine = self.machines.get(device)
        return (machine.builds if machine else ()) or self.builds

    def ceilings_of(self, device: str) -> Ceilings | None:
        """What this device does at its best; of the run's only one with ""."""
        machine = self.machines.get(device)
        return machine.ceilings if machine else self.ceilings
