"""Builds of kernel packages, and the files and kernels that workers loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from abprof.records.base import Record, Status
from abprof.records.listings import Lines
from abprof.records.messages import Artefact, Value, Workload


class Failure(Record, frozen=True, kw_only=True):
    """A failed build or workload: status, reason, and the log that has the details."""

    status: Status
    reason: str
    log: str = ""  # file name inside the run folder's logs/
    at: str = ""  # the workload file that could not be described; "": no workload file is at fault


class Build(Record, frozen=True, kw_only=True):
    """The build of one kernel package on one side, made in this run or taken from the cache."""

    side: str  # a side's id, or `control`
    kernel: str
    key: str  # hash of what the build depends on; `-SIDE` follows in a second build of the same inputs
    sources: str = ""  # hash of the files that the package may load, as checked out
    path: str = ""  # build folder; "" when the build failed
    cached: bool = False
    seconds: float = 0.0  # of the build process; if `cached`, in the run that built
    log: str = ""
    failure: Failure | None = None
    variants: tuple[str, ...] = ()
    artefacts: tuple[Artefact, ...] = ()  # files and kernels that the build process loaded
    facts: dict[str, str] = {}  # compiler, flags, kernel resources
    variables: dict[str, str] = {}  # the package's `env` for this side; {worktree} and {build_dir} are not filled in
    recipe: tuple[str, ...] = ()  # the package's build command for this side, braces not filled in
    unproved: str = ""  # why a file that the build process loaded is not allowed; "": all files are allowed
    compile_seconds: dict[str, float] = {}  # Kernel.key of each kernel that Triton compiled -> seconds


def variants_of(load: Workload, builds: Sequence[Build]) -> tuple[str, ...]:
    """Return the variants that the workload names; without any, those of the builds of all sides."""
    return load.variants or tuple(dict.fromkeys(v for b in builds if b.kernel == load.kernel for v in b.variants))


class Proof(Record, frozen=True, kw_only=True):
    """Result of checking that a worker has loaded only files that its side may load."""

    epoch: int
    side: str
    kernel: str
    ok: bool
    reason: str = ""
    artefacts: tuple[Artefact, ...] = ()  # loaded at the last check
    looks: int = 1  # checks in this epoch with this result: 2 if the worker survived the timing
    forked: bool = False  # the worker was forked off a server that had imported torch
    device: str = ""  # the device's lease in a run on several devices: the proof covers its cells only
    shard: int = 0


class Function(Record, frozen=True, kw_only=True):
    """A function of a shared object: a hash of its instructions, and how many there are of each class."""

    name: str
    code: str
    classes: dict[str, int]
    calls: tuple[str, ...] = ()  # names of functions that this function calls
    lines: Lines = {}  # of `classes`, by line of source; {}: not recorded


class Kernel(Record, frozen=True, kw_only=True):
    """A compiled kernel, or a shared object of the kernel package, that a worker of this side loaded. A field that was
    not recorded is None. `missing` says why the machine code was not read; "": it was read."""

    side: str
    package: str
    name: str
    kind: Literal["triton", "cuda", "object"]
    key: str  # Launch.compiled of its launches; the file name of an object
    path: str = ""
    sha256: str = ""  # hash of the file
    code: str = ""  # hash of machine code and constants: equal hashes mean the same code
    seconds: float | None = None  # time to compile
    warps: int | None = None
    stages: int | None = None
    ctas: int | None = None
    shared_bytes: int | None = None
    registers: int | None = None  # per thread
    stack_bytes: int | None = None  # per thread
    constants: dict[str, Value] = {}
    classes: dict[str, int] | None = None  # class -> number of instructions (abprof/evidence/machine_code.py)
    lines: Lines = {}  # of `classes`, by line of source; {}: not recorded
    functions: tuple[Function, ...] = ()  # an object's functions that differ between the sides
    compiler: str = ""  # in older runs only, like `flags`
    flags: str = ""
    missing: str = "not read"
