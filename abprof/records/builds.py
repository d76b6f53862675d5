"""What was built of a side, and what its workers had loaded."""

from __future__ import annotations

from typing import Literal

from abprof.records.base import Record, Status
from abprof.records.messages import Artefact, Value


class Failure(Record, frozen=True, kw_only=True):
    """A typed outcome other than ok: what happened, where, and where to read on."""

    status: Status
    reason: str
    log: str = ""  # file name inside the run folder's logs/
    at: str = ""  # the workload's file that could not say what it is; "": not the workload's doing


class Build(Record, frozen=True, kw_only=True):
    """One kernel package of one side, built (or found in the cache) under a content key."""

    side: str
    kernel: str
    key: str
    path: str = ""  # build folder; "" when the build failed
    cached: bool = False
    seconds: float = 0.0
    log: str = ""
    failure: Failure | None = None
    variants: tuple[str, ...] = ()
    artefacts: tuple[Artefact, ...] = ()  # what a worker of this build loads
    facts: dict[str, str] = {}  # compiler, flags, kernel resources
    variables: dict[str, str] = {}  # what the package's `env` sets for this side, the places left as {worktree}
    recipe: tuple[str, ...] = ()  # the package's own build command for this side, likewise
    unproved: str = ""  # why a file that its builder had loaded may not be there; "" when all may
    compile_seconds: dict[str, float] = {}  # of each kernel that Triton compiled, by Kernel.key


class Proof(Record, frozen=True, kw_only=True):
    """What a worker had loaded, before and after timing."""

    epoch: int
    side: str
    kernel: str
    ok: bool
    reason: str = ""
    artefacts: tuple[Artefact, ...] = ()  # at the last look
    looks: int = 1  # number of checks in this epoch with this answer: 2 if the worker lived through the timing
    device: str = ""  # the lease's name, in a run on several devices; it says nothing of another's cells
    shard: int = 0


class Function(Record, frozen=True, kw_only=True):
    """A function of a shared object: hash of its instructions, and how many there are of each class."""

    name: str
    code: str
    classes: dict[str, int]
    calls: tuple[str, ...] = ()  # of the functions that differ too, those that it calls


class Kernel(Record, frozen=True, kw_only=True):
    """A compiled kernel, or a shared object of the side's own, that a worker of this side had loaded.

    What is None was not recorded; `missing` says why its machine code was not read.
    """

    side: str
    package: str
    name: str
    kind: Literal["triton", "cuda", "object"]
    key: str  # what launches call it by; of an object its file's name
    path: str = ""
    sha256: str = ""  # of its file
    code: str = ""  # hash of its machine code and constants: equal on both sides means the same code
    seconds: float | None = None  # to compile
    warps: int | None = None
    stages: int | None = None
    ctas: int | None = None
    shared_bytes: int | None = None
    registers: int | None = None  # a thread's
    stack_bytes: int | None = None  # a thread's
    constants: dict[str, Value] = {}
    classes: dict[str, int] | None = None  # instructions of each class (abprof/evidence/machine_code.py)
    functions: tuple[Function, ...] = ()  # of an object: those that are not the same on all sides
    compiler: str = ""  # in older runs, as `flags`
    flags: str = ""
    missing: str = "not read"
