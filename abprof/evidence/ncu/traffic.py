"""From launches to bytes per call: which launches make a call, which are warm-ups, and the table of kernels and sums.

N = warm-up + runs calls of each shape, each call alike. A kernel is known by name, grid and block. k*N launches are k
launches a call, or k shapes one after another (30 calls of 8 lengths are 240 launches of a kernel whose name does not
contain the length): the bytes decide. A count inside the calls that is not a multiple of N is refused, because the
warm-ups are then unknown. Launches before, between and after the calls are set-up and listed apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

from abprof.evidence.ncu.recording import LEVELS, Launch, Name, Recording, read
from abprof.records.errors import AbprofError
from abprof.records.quantities import refuse_calls

NOISE = 0.02  # of a kernel's bytes: launches that differ by less are alike
Bytes = Mapping[str, float | None]  # level -> bytes; None: not recorded
Part = tuple[Name, tuple[int, ...]]  # a kernel's launches of one shape, as indexes into the recording
# Kernels that only move or make data, as torch, CUB, users of Triton and cuDNN name them. All others compute.
_MOVES = re.compile(
    r"mem(cpy|set)|cop(y|ier)|fill|(\b|_)cast|convert|transpos|permute|catarray|concat|(\b|_)cat_|gather|scatter"
    r"|index_?select|distribution_|random|philox|arange|iota|nchwtonhwc|nhwctonchw",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Counted:
    """A kernel's launches in one shape: `launches` with warm-ups, `kept` without, `a_call` in each call."""

    name: Name
    launches: int
    a_call: int
    kept: tuple[Launch, ...]


@dataclass(frozen=True)
class Calls:
    """A recording's calls. `shapes`: the kernels of each; `outside`: launches that belong to no call."""

    shapes: tuple[tuple[Counted, ...], ...]
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
    """A file's traffic. `rows`: each shape's kernels; `sums`: each shape's compute, other, all."""

    path: Path
    page: str
    sources: Mapping[str, str]
    warmup: int
    runs: int
    rows: tuple[Row, ...]
    sums: tuple[Row, ...]
    outside: Mapping[Name, int]
    notes: tuple[str, ...]
    cell: str = ""  # if abprof recorded it
    arm: str = ""
    minimum: Mapping[str, float] = field(default_factory=dict)  # level -> predicted minimum of a call, bytes

    @property
    def label(self) -> str:
        """`CELL ARM`, or the file."""
        return f"{self.cell} {self.arm}" if self.cell else str(self.path)

    @property
    def shapes(self) -> int:
        return max(row.shape for row in self.rows)


@dataclass(frozen=True)
class Pair:
    """The same row of two files; None if a file lacks it."""

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

    The file has `warmup + runs` calls of each shape. `kernels`: globs of the kernels under test; each must be there.
    Raises AbprofError for a file that cannot be read and for launches that are not a whole number of calls.
    """
    recording = read(path)
    calls = count(recording, warmup=warmup, runs=runs, kernels=kernels)
    rows, sums, notes = [], [], list(calls.notes)
    for place, shape in enumerate(calls.shapes, 1):
        mine = [_row(place, counted, runs, kernels) for counted in shape]
        rows += mine
        sums += summed(place, mine)
        notes += [note for counted in shape for note in _gaps(counted, recording.sources)]
    return Table(path, recording.page, recording.sources, warmup, runs, tuple(rows), tuple(sums), calls.outside,
                 tuple(notes))  # fmt: skip


def moves_only(kernel: str) -> bool:
    """Whether a kernel only moves or makes data, by its name. Torch's elementwise kernels say so in template arguments."""
    plain = kernel.replace("<unnamed>", "")
    own = re.split(r"[<(]", plain, maxsplit=1)[0]
    return _MOVES.search(plain if "at::" in own else own) is not None


# ---------------------------------------------------------------- calls


def count(
    recording: Recording, *, warmup: int, runs: int, kernels: Sequence[str] = (), one_shape: bool = False
) -> Calls:
    """Group launches into calls and drop the warm-ups. Raises AbprofError if they are not a whole number of calls.

    `kernels`: globs of the kernels under test; each must be there, and only theirs must be whole. `one_shape`: the
    recording has the calls of one shape and nothing else, so that every kernel must be whole.
    """
    refuse_calls(warmup, runs)
    names = {launch.name for launch in recording.launches}
    for glob in kernels:
        if not any(_matches(name[0], [glob]) for name in names):
            there = ", ".join(dict.fromkeys(_short((launch.kernel, "", "")) for launch in recording.launches))
            what = f"no launch of {glob!r}: a kernel that never runs moves nothing"
            raise AbprofError(what, where=str(recording.path), advice=f"launched: {there[:300]}")
    parts = [] if one_shape else recording.split()
    if len(parts) < 2 or not all(_whole(part, warmup + runs, kernels) for part in parts):
        return _calls(recording, warmup, runs, kernels, one_shape=one_shape)
    each = [_calls(part, warmup, runs, kernels) for part in parts]
    outside: dict[Name, int] = {}
    for name, number in (item for one in each for item in one.outside.items()):
        outside[name] = outside.get(name, 0) + number
    first = f"{len(parts)} recordings in this file, each with its own warm-ups"
    notes = dict.fromkeys([first, *(note for one in each for note in one.notes)])
    return Calls(tuple(shape for one in each for shape in one.shapes), outside, tuple(notes))


def _groups(recording: Recording) -> dict[Name, list[int]]:
    groups: dict[Name, list[int]] = {}
    for place, launch in enumerate(recording.launches):
        groups.setdefault(launch.name, []).append(place)
    return groups


def _whole(part: Recording, calls: int, kernels: Sequence[str]) -> bool:
    tested = [places for name, places in _groups(part).items() if not kernels or _matches(name[0], kernels)]
    return bool(tested) and all(len(places) % calls == 0 for places in tested)


def _calls(recording: Recording, warmup: int, runs: int, kernels: Sequence[str], *, one_shape: bool = False) -> Calls:
    groups, calls = _groups(recording), warmup + runs
    whole = {name: places for name, places in groups.items() if len(places) % calls == 0}
    outside = {name: places for name, places in groups.items() if name not in whole}
    tested = {name: groups[name] for name in groups if not kernels or _matches(name[0], kernels)}
    if one_shape:
        torn, parts = outside, [(name, tuple(places)) for name, places in whole.items()]
        shapes = [parts]
        notes = [_note(name, len(places), 1, calls) for name, places in parts if len(places) > calls]
    elif not whole.keys() & tested.keys():
        torn, shapes, notes = tested, [], []
    else:
        shapes, notes = _shapes(recording, whole, calls)
        torn = {n: p for n, p in outside.items() if n in tested and (kernels or _inside(p, shapes, calls))}
    if torn:
        advice = "are --warmup and --runs those of the recording? --kernel NAME tests one kernel among others"
        if one_shape:
            advice = "does every call launch the same? the first one is not counted"
        raise _refusal(recording, torn, warmup, runs, advice)
    counted = tuple(tuple(_counted(recording, part, warmup, calls) for part in shape) for shape in shapes)
    return Calls(counted, {name: len(places) for name, places in outside.items()}, tuple(notes))


def _refusal(
    recording: Recording, torn: Mapping[Name, Sequence[int]], warmup: int, runs: int, advice: str
) -> AbprofError:
    counts = [f"{_short(name)}: {len(places)}" for name, places in torn.items()]
    more = f" and {len(counts) - 4} more" if len(counts) > 4 else ""
    calls = f"{warmup + runs} ({warmup} warm-up + {runs} runs)"
    what = f"launches are no multiple of {calls}: {'; '.join(counts[:4])}{more}"
    return AbprofError(what, where=str(recording.path), advice=advice)


def _shapes(recording: Recording, whole: Mapping[Name, list[int]], calls: int) -> tuple[list[list[Part]], list[str]]:
    """The kernels of each shape. Shapes follow each other, so parts that overlap are of one shape."""
    counts = {name: _shapes_by_bytes([recording.launches[p] for p in places], calls) for name, places in whole.items()}
    parts = {name: _cut(name, places, counts[name]) for name, places in whole.items()}
    sure = [part for name in whole if counts[name] > 1 or len(whole[name]) == calls for part in parts[name]]
    regions = len(_overlapping(sure, calls)) if sure else 1
    for name, places in whole.items():
        again = _cut(name, places, regions)
        fits = counts[name] == 1 < regions and len(places) % (regions * calls) == 0
        if fits and len(_overlapping([*sure, *again], calls)) == regions:
            parts[name] = again  # the same bytes in every shape
    shapes = _overlapping([part for several in parts.values() for part in several], calls)
    many = [name for name, places in whole.items() if len(places) > calls]
    return shapes, [_note(name, len(whole[name]), len(parts[name]), calls) for name in many]


def _note(name: Name, launches: int, shapes: int, calls: int) -> str:
    """How k*N launches were read, and why."""
    a_call = launches // (shapes * calls)
    if shapes == 1:
        why = "" if name[1] else "; the file has no grids, so shapes that move the same bytes would look alike"
        return f"{_short(name)}: {launches} launches are {a_call} a call in {calls} calls{why}"
    each = f"{calls} calls each" + (f" of {a_call} launches" if a_call > 1 else "")
    return (
        f"{_short(name)}: {launches} launches are {shapes} shapes with {each}, not {launches // calls} launches a call"
    )


def _shapes_by_bytes(launches: Sequence[Launch], calls: int) -> int:
    """Into how many consecutive shapes launches of one kernel fall: 1 unless their bytes show otherwise.

    For each division, launches at the same place of a call in the same shape are compared with their median. Every
    division has as many medians, so the one that fits best is right.
    """
    level = next((name for name in ("l1", "l2", "dram") if all(name in launch.bytes for launch in launches)), "")
    most = len(launches) // calls
    if most == 1 or not level:
        return 1
    values = [launch.bytes[level] for launch in launches]
    misfit = {number: _misfit(values, number, most // number) for number in range(1, most + 1) if most % number == 0}
    best = min(misfit.values())
    if misfit[1] <= max(NOISE, 3 * best):
        return 1
    return next(number for number, value in misfit.items() if value <= 1.5 * best)


def _misfit(values: Sequence[float], shapes: int, a_call: int) -> float:
    length, off = len(values) // shapes, 0.0
    for start in range(0, len(values), length):
        for slot in range(a_call):
            alike = values[start + slot : start + length : a_call]
            middle = median(alike)
            off += sum(abs(value - middle) for value in alike)
    return off / (sum(values) or 1.0)


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
    """Whether launches lie within a shape's calls, or are most of a shape's calls by themselves."""
    spans = [(min(part[1][0] for part in shape), max(part[1][-1] for part in shape)) for shape in shapes]
    gaps = [sum(place > last for _, last in spans) for place in places]
    within = any(first < place < last for place in places for first, last in spans)
    return within or any(2 * gaps.count(gap) > calls for gap in gaps)


def _counted(recording: Recording, part: Part, warmup: int, calls: int) -> Counted:
    name, places = part
    a_call = len(places) // calls
    return Counted(name, len(places), a_call, tuple(recording.launches[p] for p in places[a_call * warmup :]))


def _short(name: Name) -> str:
    """`add_kernel grid (16384, 1, 1) block (128, 1, 1)`."""
    kernel = name[0] if len(name[0]) <= 60 else f"{name[0][:59]}…"
    return " ".join([kernel, *(f"{what} {t}" for what, t in zip(("grid", "block"), name[1:], strict=True) if t)])


def _matches(kernel: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(kernel, glob) or glob in kernel for glob in globs)


# ---------------------------------------------------------------- tables


def _row(shape: int, counted: Counted, runs: int, kernels: Sequence[str]) -> Row:
    totals = {level: _total([launch.bytes.get(level) for launch in counted.kept]) for level in LEVELS}
    per_launch = {level: None if total is None else total / len(counted.kept) for level, total in totals.items()}
    per_call = {level: None if total is None else total / runs for level, total in totals.items()}
    computes = _matches(counted.name[0], kernels) if kernels else not moves_only(counted.name[0])
    kind = "compute" if computes else "other"
    return Row(shape, *counted.name, kind, counted.launches, counted.a_call, per_launch, per_call)


def summed(shape: int, rows: Sequence[Row]) -> list[Row]:
    """The sums over a shape's kernels: per kind, and all."""
    kinds = [kind for kind in ("compute", "other") if any(row.kind == kind for row in rows)]
    sums = []
    for kind in (*kinds, "all"):
        own = [row for row in rows if kind in (row.kind, "all")]
        per_call = {level: _total([row.per_call[level] for row in own]) for level in LEVELS}
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


def _total(values: Sequence[float | None]) -> float | None:
    """The sum; None if any is missing."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _gaps(counted: Counted, sources: Mapping[str, str]) -> Iterator[str]:
    for level in sources:
        lacking = sum(level not in launch.bytes for launch in counted.kept)
        if lacking:
            among = f"{lacking} of {len(counted.kept)} launches"
            yield f"{_short(counted.name)}: {LEVELS[level]} is not recorded in {among}, so it has no number"
