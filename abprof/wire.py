"""The worker's messages: newline JSON on two descriptors of their own. Standard library only, because the worker
runs in the interpreter under test, where abprof's own dependencies need not be installed.

The parent sends one `Request` a line and reads one reply a line, in strict turns:
    {"id": 7, "do": "turn", "args": {...}}      ->  {"id": 7, "reply": {...}}  |  {"id": 7, "fault": {...}}
`args` and `reply` are the records below, named in VERBS. docs/schemas/wire.schema.json is made from this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

PROTOCOL = 1
CALL_RANGE = "abprof_call"  # around each call that is not a turn (abprof/worker/nvtx.py)
LONG_CALL = 5e7  # ns: a call that takes so long is made no oftener than it must, and needs little to be warm
Value = str | int | float | bool


@dataclass(frozen=True)
class Mount:
    """A kernel package as one worker sees it."""

    name: str
    root: str  # folder put in front of the import path
    module: str  # import name; "abprof_side.NAME" for a private mount, whose root is the folder that holds NAME/
    build_dir: str  # $ABPROF_BUILD_DIR
    allowed: list[str]  # folders that the package's modules and shared objects may come from
    forbidden: list[str] = field(default_factory=list)  # folders that nothing else may come from
    sources: list[str] = field(default_factory=list)  # nor what was installed from one of these


@dataclass(frozen=True)
class Start:
    """First request. Fixes what this worker is."""

    device: str  # "cpu", "cuda", "cuda:UUID"
    side: str
    mount: Mount | None = None
    workloads: dict[str, str] = field(default_factory=dict)  # name -> file
    scratch: str = ""  # folder for expected values and outputs, shared by the workers of a run
    epoch: int = 0  # 0 outside measuring (describe, build, profile)


@dataclass(frozen=True)
class Ready:
    protocol: int
    pid: int
    kind: str  # cpu, cuda
    device: str  # the device's name
    uuid: str = ""
    memory_bytes: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Describe:
    workload: str


@dataclass(frozen=True)
class Sweep:
    """A workload's SWEEP; a band is (density from, to, speed-up from, to)."""

    axes: list[str]
    density: str
    against: str
    bands: list[tuple[float, float, float, float]]


@dataclass(frozen=True)
class Described:
    """A workload module's declarations. `presets[NAME]` is a list of (axis or zipped axes, values) in file order."""

    api: int
    kernel: str
    suite: str
    text: str
    judge: str  # "" when the workload leaves it to the device
    presets: dict[str, list[tuple[list[str], list[Any]]]]
    variants: list[str]
    peers: list[str]
    phases: list[tuple[str, str, str]]
    seed_columns: list[str]
    scaled: str = ""
    ladder: list[str] = field(default_factory=list)
    sweep: Sweep | None = None
    default_peers: list[str] | None = None  # those measured without being asked for; None: all


@dataclass(frozen=True)
class Screen:
    workload: str
    cases: list[dict[str, Value]]


@dataclass(frozen=True)
class Screened:
    """For each case: why it is left out ("" when it is not) and its work."""

    skips: list[str]
    flops: list[float | None]
    bytes: list[float | None]
    conventions: list[str]


@dataclass(frozen=True)
class Reach:
    """Measure what the device does at its best, by plain torch, in about so many seconds (abprof/worker/ceilings.py)."""

    seconds: float


@dataclass(frozen=True)
class Reached:
    """The highest rates read, and of what in words; None where nothing could be measured."""

    tflops: float | None
    gbps: float | None
    tflops_by: str = ""
    gbps_by: str = ""


@dataclass(frozen=True)
class Inventory:
    """List the packages installed where this interpreter finds them."""


@dataclass(frozen=True)
class Listed:
    """Distribution -> version."""

    packages: dict[str, str]


@dataclass(frozen=True)
class Build:
    """Import the kernel package and call its `build(verbose=...)`, if it has one. What it prints is the build log."""

    verbose: bool = True
    recipe: list[str] = field(default_factory=list)  # argv of the repository's own build recipe, run first
    recipe_cwd: str = ""


@dataclass(frozen=True)
class Built:
    has_build: bool  # False: the parent opens every distinct case once instead, so that the JIT compiles it now
    seconds: float
    variants: list[str] = field(default_factory=list)  # the package's VARIANTS


@dataclass(frozen=True)
class Open:
    """Make inputs and the operation of one cell on one arm, and call it once."""

    workload: str
    case: dict[str, Value]
    arm: str
    variant: str = ""
    peer: str = ""
    seed: int = 0
    usual_ns: float = 0.0  # a warm call in an earlier epoch: a long one is then made once, and not timed again
    placement: int = 0  # seeds the random offset at which inputs are allocated; re-drawn by Turn.placement


@dataclass(frozen=True)
class Opened:
    """How the first calls went. `status` is ok, unsupported, missing, oom or crash."""

    status: str
    reason: str = ""
    call_ns: float = 0.0  # a warm call, by the judged clock
    open_ns: float = 0.0  # what a re-allocation costs
    peak_mem_bytes: int | None = None


@dataclass(frozen=True)
class Check:
    """Compare the open arm's outputs with the reference. The first caller makes `expected`, others read it."""

    arm: str
    expected: str  # file name in scratch
    sample: str  # file name in scratch for this arm's sampled outputs
    against: str = ""  # file name of the base's sampled outputs


@dataclass(frozen=True)
class Checked:
    ok: bool
    reason: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    digest: str = ""
    base_max_abs: float | None = None
    facts: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Hand:
    """Call the open arm on inputs of this seed and keep its outputs in scratch, for a judge to check (abprof/outside.py).

    With `again` a first call is made, and then that seed's values are put into the inputs in place; with `anew` the
    operation is prepared once more on them.
    """

    arm: str
    seed: int
    outputs: str  # file name in scratch
    again: int | None = None
    anew: bool = False


@dataclass(frozen=True)
class Handed:
    """The outputs are there."""


@dataclass(frozen=True)
class Examine:
    """To a worker without a package: check outputs that another one handed over. Answered as `Check` is."""

    workload: str
    case: dict[str, Value]
    seed: int
    outputs: str
    again: int | None = None


@dataclass(frozen=True)
class Turn:
    arm: str
    calls: int
    timer: str  # cpu_clock, cuda_event, wall_clock, do_bench, sustained
    cold: bool = True  # flush the cache before each call
    placement: int | None = None  # re-allocate the inputs first, untimed
    empties: int = 0  # empty launches to time after the calls


@dataclass(frozen=True)
class Turned:
    """ns per call: `value` by the turn's timer, `wall` by the host's clock. `start`/`end`: time.monotonic_ns().

    `empty`: what the same timer reads of a launch that does nothing; 0 where that was not timed (abprof/turns.py).
    `mhz`: the device's mean clock over the calls; 0 where it is not known.
    """

    value: float
    wall: float
    start: int
    end: int
    empty: float = 0.0
    mhz: float = 0.0


@dataclass(frozen=True)
class Phases:
    """A profiled pass of `calls` calls, after `discarded` more that are not read."""

    arm: str
    calls: int
    discarded: int = 2


@dataclass(frozen=True)
class Launch:
    """One kernel within a call (on a CPU one of torch's operations), as often as it ran with this grid.

    `ns` is the median over calls of all its launches together. What is None, or empty, was not told.
    """

    name: str
    count: int
    ns: float
    compiled: str = ""  # Compiled.key: which of the kernels that Triton compiled
    choice: str = ""  # what its autotuner chose for this call
    offered: str = ""  # hash of what its autotuner chose from
    grid: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    registers: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class Range:
    """One range of a profiler's within a call. `ns` is its own time, without that of ranges inside it."""

    name: str
    count: int
    ns: float


@dataclass(frozen=True)
class Census:
    """What one call launched. `missing`: why that is not known; then there are no launches here."""

    launches: list[Launch] = field(default_factory=list)
    hidden_ns: float | None = None  # of the kernels' time that which ran beside another kernel
    missing: str = ""
    on_device: bool = False  # of a device's kernels; False: of torch's operations on a CPU
    ranges: list[Range] | None = None  # that the package marks; None: not told, or calls differ


@dataclass(frozen=True)
class Phased:
    """Median ns per call of each declared phase in a separate profiled pass; None: the range never ran."""

    phases: dict[str, float | None]
    total: float
    census: Census = field(default_factory=lambda: Census(missing="not told"))


@dataclass(frozen=True)
class Trace:
    """A profiled pass as `Phases`, kept as a Chrome trace in scratch under this file name, of at most so many bytes."""

    arm: str
    name: str
    calls: int
    discarded: int
    most_bytes: int


@dataclass(frozen=True)
class Traced:
    """What the calls launched. `missing`: why there is no file; `left_out`: events that it had no room for."""

    census: Census
    left_out: int = 0
    missing: str = ""


@dataclass(frozen=True)
class Load:
    """List the kernels that were compiled for this worker."""


@dataclass(frozen=True)
class Compiled:
    """One kernel that Triton compiled, or found compiled in its cache."""

    key: str  # its name and the first digits of its compile hash
    name: str
    path: str  # its machine code's file, "" when there is none
    sha256: str
    seconds: float | None  # to compile; None: it came from the cache
    warps: int | None = None
    stages: int | None = None
    ctas: int | None = None
    shared_bytes: int | None = None
    constants: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    kernels: list[Compiled]


@dataclass(frozen=True)
class Close:
    """Forget every open arm of the cell."""


@dataclass(frozen=True)
class Closed:
    peak_mem_bytes: int | None = None


@dataclass(frozen=True)
class Prove:
    """List what is loaded. Raised by nothing: `reason` names the first that is neither from `Mount.allowed` nor of the
    environment that the worker had when it started (abprof/worker/proof.py)."""


@dataclass(frozen=True)
class Proved:
    ok: bool
    reason: str
    artefacts: list[dict[str, str]]  # kind, name, path, sha256
    compiles: int = 0  # kernels compiled since Start
    facts: dict[str, str] = field(default_factory=dict)  # compiled kernel -> compile time and resources, in words


@dataclass(frozen=True)
class Stop:
    """Last request; the worker answers with Closed and exits."""


@dataclass(frozen=True)
class Fault:
    """A request that could not be answered: the exception's class and last line. The worker lives on."""

    status: str  # unsupported, missing, oom, crash
    reason: str


@dataclass(frozen=True)
class Foreground:
    """What a worker in the foreground reads from its file, in the place of requests (abprof/worker/foreground.py)."""

    start: Start
    open: Open
    warmup: int
    runs: int
    told: str  # file that it writes `Told` to
    facts: bool = False  # ask the workload and the operation for theirs, after the calls


@dataclass(frozen=True)
class Told:
    """How a worker in the foreground ended. `status` as in Opened."""

    status: str
    reason: str = ""
    facts: dict[str, Value] = field(default_factory=dict)


VERBS: dict[str, tuple[type, type]] = {
    "start": (Start, Ready),
    "describe": (Describe, Described),
    "screen": (Screen, Screened),
    "reach": (Reach, Reached),
    "inventory": (Inventory, Listed),
    "build": (Build, Built),
    "open": (Open, Opened),
    "check": (Check, Checked),
    "hand": (Hand, Handed),
    "examine": (Examine, Checked),
    "turn": (Turn, Turned),
    "phases": (Phases, Phased),
    "trace": (Trace, Traced),
    "load": (Load, Loaded),
    "close": (Close, Closed),
    "prove": (Prove, Proved),
    "stop": (Stop, Closed),
}
NAMES = {args: verb for verb, (args, _) in VERBS.items()}


def cell_id(workload: str, case: Mapping[str, Value]) -> str:
    """WORKLOAD/axis=value,...: what a cell is called on both ends."""
    return f"{workload}/" + ",".join(f"{axis}={shown(value)}" for axis, value in case.items())


def shown(value: Value) -> str:
    """An axis's value as a cell's id has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def pack(record: Any) -> dict[str, Any]:
    """A record as plain JSON values. Raises ValueError later, in `dump`, on NaN or infinity."""
    return asdict(record)


def dump(message: dict[str, Any]) -> bytes:
    """One line of the wire. Raises ValueError on NaN or infinity: a worker must send None."""
    return _ENCODER.encode(message).encode() + b"\n"


def load(line: bytes) -> dict[str, Any]:
    """One line of the wire. Raises ValueError for anything but a JSON object (NaN and infinity included)."""
    message = _DECODER.decode(line.decode())
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Made once: json.dumps and json.loads make one a call, which costs more than the message.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def unpack(kind: type, loose: Any) -> Any:
    """The loose dictionary as a record of `kind`, nested records too.

    What a worker sends is not to be trusted: its process also runs the code under test. Raises TypeError on unknown or
    missing keys and on a value of another type than the record's (an int may stand for a float, a bool for neither),
    ValueError on an infinite number (JSON's 1e999).
    """
    if not isinstance(loose, dict):
        raise TypeError(f"{kind.__name__} must be an object")
    hints = _hints(kind)
    if unknown := loose.keys() - hints.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{name: _value(f"{kind.__name__}.{name}", value, hints[name]) for name, value in loose.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(name: str, value: Any, hint: Any) -> Any:
    """The value as the hint has it. Raises TypeError or ValueError, which name the field and do not show the value."""
    for choice in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        if is_dataclass(choice) and isinstance(value, dict):
            return unpack(choice, value)  # type: ignore[arg-type]  # a class: hints have no instances
        inner = get_args(choice)[:1] if get_origin(choice) is list else ()
        if inner and is_dataclass(inner[0]) and isinstance(value, list):
            return [_value(name, item, inner[0]) for item in value]
        if _fits(value, choice):
            return value
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name} is not finite")
    wanted = hint.__name__ if isinstance(hint, type) and not get_args(hint) else hint
    raise TypeError(f"{name} is {type(value).__name__}, not {wanted}")


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(value, choice) for choice in get_args(hint))
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    if origin is tuple:  # JSON has only lists
        return isinstance(value, list) and len(value) == len(inner) and all(map(_fits, value, inner))
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    return isinstance(value, hint)
