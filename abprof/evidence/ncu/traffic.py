"""From launches to calls: which launches make a call, which are warm-ups, and the bytes of each kernel and call.

N = warm-up + runs calls of each shape, each call alike. A kernel is known by name, grid and block. k*N launches are k
launches a call, or k shapes one after another (30 calls of 8 lengths are 240 launches of a kernel whose name does not
contain the length): the bytes decide. A count inside the calls that is not a multiple of N is refused, because the
warm-ups are then unknown. Launches before, between and after the calls are set-up and listed apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from abprof.evidence.ncu.recording import LEVELS, METRICS, TIME, Launch, Name, moved, read
from abprof.records import KernelProfile, Profile
from abprof.records.errors import AbprofError
from abprof.records.quantities import refuse_calls

_NOISE = 0.02  # of a kernel's bytes: launches that differ by less are alike
Bytes = Mapping[str, float | None]  # level -> bytes; None: not recorded
Part = tuple[Name, tuple[int, ...]]  # a kernel's launches of one shape, as indexes into the recording
# Kernels that only move or make data, as torch, CUB, users of Triton and cuDNN name them. All others compute.
_MOVES = re.compile(
    r"mem(cpy|set)|cop(y|ier)|fill|(\b|_)cast|convert|transpos|permute|catarray|concat|(\b|_)cat_|gather|scatter"
    r"|index_?select|distribution_|random|philox|arange|iota|nchwtonhwc|nhwctonchw",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Calls:
    """A recording's calls. `shapes`: the kernels of each; `outside`: launches that belong to no call."""

    shapes: Sequence[Sequence[KernelProfile]]
    outside: Mapping[Name, int]
    notes: tuple[str, ...]  # how k*N launches were read


@dataclass(frozen=True)
class Row:
    """A kernel in a shape, or a sum over kernels (`kernel` is "" and there is nothing per launch)."""

    shape: int  # from 1
    kernel: str
    grid: str
    block: str
    kind: str  # compute, other; of a sum also all
    launches: int  # with warm-ups
    a_call: int
    per_launch: Bytes
    per_call: Bytes


@dataclass(frozen=True)
class Table:
    """The traffic of a file, or of a profiled arm. `rows`: each shape's kernels; `sums`: each shape's compute, other, all."""

    of: Profile  # of a file `csv` is its path, and `cell` and `arm` are ""
    rows: tuple[Row, ...]
    sums: tuple[Row, ...]
    sources: Mapping[str, str]  # level -> ncu's metrics
    outside: Mapping[Name, int]

    @property
    def label(self) -> str:
        """`CELL ARM`, or the file."""
        return f"{self.of.cell} {self.of.arm}" if self.of.cell else self.of.csv

    @property
    def shapes(self) -> int:
        return max(row.shape for row in self.rows)


@dataclass(frozen=True)
class Pair:
    """The same row of two tables; None if a table lacks it."""

    base: Row | None
    target: Row | None

    @property
    def either(self) -> Row:
        row = self.target or self.base
        assert row is not None
        return row

    def pct(self, level: str) -> float | None:
        """Change of a call's bytes in per cent; None if one is missing or base moved none."""
        before = self.base.per_call[level] if self.base else None
        after = self.target.per_call[level] if self.target else None
        return None if not before or after is None else 100 * (after / before - 1)


def measured(path: Path, *, warmup: int, runs: int, kernels: Sequence[str] = ()) -> Table:
    """The traffic of each kernel of a CSV file, per launch and per call, warm-ups dropped.

    The file has `warmup + runs` calls of each shape. `kernels`: names or globs; others are left out, and each must be there.
    Raises AbprofError for a file that cannot be read and for launches that are not a whole number of calls.
    """
    refuse_calls(warmup, runs)
    launches = read(path)
    for glob in kernels:
        if not any(_matches(launch.name[0], [glob]) for launch in launches):
            there = ", ".join(dict.fromkeys(launch.name[0] for launch in launches))
            what = f"no launch of {glob!r}: a kernel that never runs moves nothing"
            raise AbprofError(what, where=str(path), advice=f"launched: {there[:300]}")
    launches = [launch for launch in launches if not kernels or _matches(launch.name[0], kernels)]
    calls = count(launches, path, warmup=warmup, runs=runs)
    return table(Profile(cell="", arm="", purpose="memory", warmup=warmup, runs=runs, csv=str(path)), calls)


def table(of: Profile, calls: Calls | None = None) -> Table:
    """The traffic of a profile, or of these calls."""
    calls = calls or Calls([of.kernels], {}, of.notes)
    rows, sums = [], []
    sources: dict[str, dict[str, None]] = {}
    for shape, kernels in enumerate(calls.shapes, 1):
        own = []
        for kernel in kernels:
            found = {level: (name, number) for level, name, number in moved(kernel.metrics)}
            for level, (name, _) in found.items():
                sources.setdefault(level, {})[name] = None
            launch = {level: found[level][1] if level in found else None for level in LEVELS}
            call = {level: None if n is None else n * kernel.launches_a_call for level, n in launch.items()}
            own.append(Row(shape, kernel.name, kernel.grid, kernel.block, kernel.kind, kernel.launches,
                           kernel.launches_a_call, launch, call))  # fmt: skip
        rows += own
        sums += _sums(shape, own)
    named = {level: " or ".join(names) for level, names in sources.items()}
    return Table(msgspec.structs.replace(of, notes=calls.notes), tuple(rows), tuple(sums), named, calls.outside)


def moves_only(kernel: str) -> bool:
    """Whether a kernel only moves or makes data, by its name. Torch's elementwise kernels say so in template arguments."""
    plain = kernel.replace("<unnamed>", "")
    own = re.split(r"[<(]", plain, maxsplit=1)[0]
    return _MOVES.search(plain if "at::" in own else own) is not None


def _matches(kernel: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(kernel, glob) or glob in kernel for glob in globs)


# ---------------------------------------------------------------- calls


def count(launches: Sequence[Launch], where: Path, *, warmup: int, runs: int, one_shape: bool = False) -> Calls:
    """Group launches into calls and drop the warm-ups. Raises AbprofError if they are not a whole number of calls.

    `one_shape`: there are the calls of one shape and nothing else, so that every kernel must be whole.
    """
    calls, groups = warmup + runs, dict[Name, list[int]]()
    for place, launch in enumerate(launches):
        groups.setdefault(launch.name, []).append(place)
    whole = {name: places for name, places in groups.items() if len(places) % calls == 0}
    outside = {name: places for name, places in groups.items() if name not in whole}
    if one_shape:
        shapes = [[(name, tuple(places)) for name, places in whole.items()]]
    else:
        shapes = _shapes(launches, whole, calls)
    torn = {n: p for n, p in outside.items() if one_shape or not whole or _inside(p, shapes, calls)}
    if torn:
        advice = "are --warmup and --runs those of the recording? --kernel NAME counts some kernels alone"
        counts = [f"{_short(name)}: {len(places)}" for name, places in torn.items()]
        more = f" and {len(counts) - 4} more" if len(counts) > 4 else ""
        what = f"launches are no multiple of {calls} ({warmup} warm-up + {runs} runs): {'; '.join(counts[:4])}{more}"
        raise AbprofError(what, where=str(where), advice="" if one_shape else advice)
    notes = []
    for name, places in whole.items():
        number = sum(name == other for shape in shapes for other, _ in shape)
        times, each = len(places) // calls, f"{len(places)} launches are"
        if number > 1:
            notes.append(f"{_short(name)}: {each} {number} shapes with {calls} calls each, not {times} launches a call")
        elif times > 1:
            notes.append(f"{_short(name)}: {each} {times} a call in {calls} calls")
    made = [[_kernel(part, launches, warmup, calls) for part in shape] for shape in shapes]
    return Calls(made, {name: len(places) for name, places in outside.items()}, tuple(notes))


def _shapes(launches: Sequence[Launch], whole: Mapping[Name, list[int]], calls: int) -> list[list[Part]]:
    """The kernels of each shape. Shapes follow each other, so parts that overlap are of one shape."""
    counts = {name: _shapes_by_bytes([launches[p] for p in places], calls) for name, places in whole.items()}
    parts = {name: _cut(name, places, counts[name]) for name, places in whole.items()}
    sure = [part for name in whole if counts[name] > 1 or len(whole[name]) == calls for part in parts[name]]
    regions = len(_overlapping(sure, calls))
    for name, places in whole.items():
        if counts[name] == 1 < regions and len(places) % (regions * calls) == 0:
            again = _cut(name, places, regions)
            if len(_overlapping([*sure, *again], calls)) == regions:
                parts[name] = again  # the same bytes in every shape
    return _overlapping([part for several in parts.values() for part in several], calls)


def _shapes_by_bytes(launches: Sequence[Launch], calls: int) -> int:
    """Into how many consecutive shapes launches of one kernel fall: 1 unless their bytes show otherwise.

    For each division, launches at the same place of a call in the same shape are compared with their median. Every
    division has as many medians, so the one that fits best is right.
    """
    name = next((n for n in reversed(METRICS.values()) if all(n in launch.metrics for launch in launches)), "")
    most = len(launches) // calls
    if most == 1 or not name:
        return 1
    values = [launch.metrics[name] for launch in launches]
    misfit = {}
    for shapes in (number for number in range(1, most + 1) if most % number == 0):
        length, a_call = len(values) // shapes, most // shapes
        slots = [
            values[at + slot : at + length : a_call] for at in range(0, len(values), length) for slot in range(a_call)
        ]
        misfit[shapes] = sum(abs(v - median(alike)) for alike in slots for v in alike) / (sum(values) or 1.0)
    best = min(misfit.values())
    if misfit[1] <= max(_NOISE, 3 * best):
        return 1
    return next(number for number, value in misfit.items() if value <= 1.5 * best)


def _cut(name: Name, places: Sequence[int], number: int) -> list[Part]:
    length = len(places) // number
    return [(name, tuple(places[start : start + length])) for start in range(0, length * number, length)]


def _overlapping(parts: Sequence[Part], calls: int) -> list[list[Part]]:
    """Parts by shape, in the order of their first launches. With one call nothing overlaps, and all is one shape."""
    shapes: list[list[Part]] = []
    end = -1
    for part in sorted(parts, key=lambda part: part[1][0]):
        if shapes and (part[1][0] < end or calls == 1):
            shapes[-1].append(part)
        else:
            shapes.append([part])
        end = max(end, part[1][-1])
    return shapes


def _inside(places: Sequence[int], shapes: Sequence[Sequence[Part]], calls: int) -> bool:
    """Whether launches lie within a shape's calls, or are too many for a set-up."""
    spans = [(min(part[1][0] for part in shape), max(part[1][-1] for part in shape)) for shape in shapes]
    within = any(first < place < last for place in places for first, last in spans)
    return within or 2 * len(places) > calls * len(shapes)


def _kernel(part: Part, launches: Sequence[Launch], warmup: int, calls: int) -> KernelProfile:
    """Means over launches; rates and ratios weighted by the launches' time. Metrics that a launch lacks are left out."""
    (name, grid, block), places = part
    a_call = len(places) // calls
    kept = [launches[place].metrics for place in places[a_call * warmup :]]
    found = {}
    for metric in (metric for metric in kept[0] if all(metric in launch for launch in kept)):
        times = [launch.get(TIME, 0.0) for launch in kept]
        weights = times if not metric.endswith(".sum") and all(times) else [1.0] * len(times)
        total = sum(launch[metric] * weight for launch, weight in zip(kept, weights, strict=True))
        found[metric] = total / sum(weights)
    kind: Literal["compute", "other"] = "other" if moves_only(name) else "compute"
    return KernelProfile(name=name, grid=grid, block=block, kind=kind, launches=len(places), launches_a_call=a_call,
                         metrics=found)  # fmt: skip


def _short(name: Name) -> str:
    """`add_kernel grid (16384, 1, 1) block (128, 1, 1)`."""
    kernel = name[0] if len(name[0]) <= 60 else f"{name[0][:59]}…"
    return " ".join([kernel, *(f"{what} {t}" for what, t in zip(("grid", "block"), name[1:], strict=True) if t)])


# ---------------------------------------------------------------- tables


def _sums(shape: int, rows: Sequence[Row]) -> list[Row]:
    """The sums over a shape's kernels: per kind, and all; None where a kernel has no number."""
    kinds = [kind for kind in ("compute", "other") if any(row.kind == kind for row in rows)]
    sums = []
    for kind in (*kinds, "all"):
        own = [row for row in rows if kind in (row.kind, "all")]
        known = {level: [row.per_call[level] for row in own] for level in LEVELS}
        per_call = {level: None if None in of else sum(filter(None, of)) for level, of in known.items()}
        launches, a_call = sum(row.launches for row in own), sum(row.a_call for row in own)
        sums.append(Row(shape, "", "", "", kind, launches, a_call, dict.fromkeys(LEVELS), per_call))
    return sums


def beside(base: Table, target: Table) -> list[Pair]:
    """Kernels paired by shape, name, grid and block; the rest by shape and name in order, for a branch may change the
    grid."""
    keys = (lambda row: (row.shape, row.kernel, row.grid, row.block), lambda row: (row.shape, row.kernel))
    return _paired(base.rows, target.rows, keys)


def sums_beside(base: Table, target: Table) -> list[Pair]:
    """The sums of each shape."""
    pairs = _paired(base.sums, target.sums, (lambda row: (row.shape, row.kind),))
    return sorted(pairs, key=lambda pair: (pair.either.shape, ("compute", "other", "all").index(pair.either.kind)))


def _paired(base: Sequence[Row], target: Sequence[Row], keys: Iterable[Callable[[Row], object]]) -> list[Pair]:
    partner: dict[int, Row] = {}  # index in base -> target's row
    right = list(target)
    for key in keys:
        for place, row in enumerate(base):
            found = next((other for other in right if key(other) == key(row)), None) if place not in partner else None
            if found:
                partner[place] = found
                right.remove(found)
    pairs = [Pair(row, partner.get(place)) for place, row in enumerate(base)] + [Pair(None, row) for row in right]
    return sorted(pairs, key=lambda pair: pair.either.shape)
