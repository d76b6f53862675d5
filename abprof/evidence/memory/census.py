"""Which launches make a call, and which are warm-ups: N = warm-up + runs calls of each shape, each call alike.

A kernel is told by its name, grid and block, as far as the file says them. k*N launches are k launches a call, or k
shapes one after another in one file (30 calls of 8 lengths are 240 launches of a kernel whose name does not hold the
length): the bytes tell which. A count that is no multiple of N inside the calls is refused, since nobody can say then
which launches are the warm-ups. Launches before, between and after the calls set something up: they are listed apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import median

from abprof.evidence.memory.recording import Launch, Recording
from abprof.records.errors import AbprofError

NOISE = 0.02  # of a kernel's bytes: launches that differ by less are taken for the same
Name = tuple[str, str, str]  # kernel, grid, block


@dataclass(frozen=True)
class Counted:
    """A kernel's launches in one shape: `launches` with its warm-ups, `kept` without, `a_call` of them in each call."""

    name: Name
    launches: int
    a_call: int
    kept: tuple[Launch, ...]


@dataclass(frozen=True)
class Census:
    """What was launched. `shapes`: the kernels of each, in order; `outside`: launches that belong to no call."""

    warmup: int
    runs: int
    shapes: tuple[tuple[Counted, ...], ...]
    outside: Mapping[Name, int]
    notes: tuple[str, ...]  # what k*N was taken for


@dataclass(frozen=True)
class _Part:
    """A kernel's launches of one shape, as places in the recording."""

    name: Name
    places: tuple[int, ...]


def take(recording: Recording, *, warmup: int, runs: int, kernels: Sequence[str] = ()) -> Census:
    """Count, and drop the warm-ups. Raises AbprofError when the launches are no whole number of calls.

    `kernels`: globs of the kernels under test; each has to be there, and only theirs have to be whole.
    """
    refuse_odd(warmup, runs)
    groups = _groups(recording)
    _refuse_absent(recording, groups, kernels)
    calls = warmup + runs
    apart = recording.apart()
    if len(apart) > 1 and all(_is_whole(part, calls, kernels) for part in apart):
        return _together([_taken(part, warmup, runs, kernels) for part in apart])
    return _taken(recording, warmup, runs, kernels)


def _groups(recording: Recording) -> dict[Name, list[int]]:
    """The places of each kernel's launches."""
    groups: dict[Name, list[int]] = {}
    for place, launch in enumerate(recording.launches):
        groups.setdefault((launch.kernel, launch.grid, launch.block), []).append(place)
    return groups


def _is_whole(part: Recording, calls: int, kernels: Sequence[str]) -> bool:
    """Whether a recording among several in a file is whole calls by itself, with warm-ups of its own."""
    judged = [places for name, places in _groups(part).items() if not kernels or matches(name[0], kernels)]
    return bool(judged) and all(len(places) % calls == 0 for places in judged)


def _together(parts: Sequence[Census]) -> Census:
    """Several recordings in one file, each counted by itself."""
    outside: dict[Name, int] = {}
    for part in parts:
        for name, count in part.outside.items():
            outside[name] = outside.get(name, 0) + count
    notes = [
        f"{len(parts)} recordings in this file, each with warm-ups of its own",
        *(n for p in parts for n in p.notes),
    ]
    shapes = tuple(shape for part in parts for shape in part.shapes)
    return Census(parts[0].warmup, parts[0].runs, shapes, outside, tuple(dict.fromkeys(notes)))


def _taken(recording: Recording, warmup: int, runs: int, kernels: Sequence[str]) -> Census:
    groups, calls = _groups(recording), warmup + runs
    whole = {name: places for name, places in groups.items() if len(places) % calls == 0}
    judged = {name for name in groups if not kernels or matches(name[0], kernels)}
    if not whole.keys() & judged:
        raise _refusal(recording, {name: groups[name] for name in groups if name in judged}, warmup, runs)
    shapes, notes = _shapes(recording, whole, calls)
    apart = {name: places for name, places in groups.items() if name not in whole}
    torn = {
        name: places for name, places in apart.items() if name in judged and (kernels or _inside(places, shapes, calls))
    }
    if torn:
        raise _refusal(recording, torn, warmup, runs)
    counted = tuple(tuple(_counted(recording, part, warmup, calls) for part in shape) for shape in shapes)
    return Census(warmup, runs, counted, {name: len(places) for name, places in apart.items()}, tuple(notes))


def refuse_odd(warmup: int, runs: int) -> None:
    """Raises AbprofError for numbers of calls that nothing can be counted by."""
    for name, value, least in (("--warmup", warmup, 0), ("--runs", runs, 1)):
        if value < least:
            raise AbprofError(f"{value} calls", where=name, advice=f"it is {least} or more")


def take_one(recording: Recording, *, warmup: int, runs: int) -> Census:
    """Count a recording of one shape, of its calls and nothing else: every kernel's launches are a whole number of calls.

    Raises AbprofError where they are not.
    """
    groups, calls = _groups(recording), warmup + runs
    torn = {name: places for name, places in groups.items() if len(places) % calls}
    if torn:
        raise _refusal(recording, torn, warmup, runs, "does every call launch the same? the first one is not counted")
    parts = [_Part(name, tuple(places)) for name, places in groups.items()]
    notes = [_note(part.name, len(part.places), 1, calls) for part in parts if len(part.places) > calls]
    return Census(warmup, runs, (tuple(_counted(recording, part, warmup, calls) for part in parts),), {}, tuple(notes))


def said(name: Name) -> str:
    """A kernel in words, shortened: `add_kernel grid (16384, 1, 1) block (128, 1, 1)`."""
    kernel = name[0] if len(name[0]) <= 60 else f"{name[0][:59]}…"
    return " ".join(
        [kernel, *(f"{what} {text}" for what, text in zip(("grid", "block"), name[1:], strict=True) if text)]
    )


def matches(kernel: str, globs: Sequence[str]) -> bool:
    """Whether a kernel is meant by one of these: a glob, or a part of its name."""
    return any(fnmatchcase(kernel, glob) or glob in kernel for glob in globs)


def _refuse_absent(recording: Recording, groups: Mapping[Name, object], kernels: Sequence[str]) -> None:
    for glob in kernels:
        if not any(matches(name[0], [glob]) for name in groups):
            there = ", ".join(dict.fromkeys(said((name[0], "", "")) for name in groups))
            what = f"no launch of {glob!r}: a kernel that never runs moves nothing"
            raise AbprofError(what, where=str(recording.path), advice=f"launched: {there[:300]}")


_ASKED = "are --warmup and --runs those of the recording? --kernel NAME judges one kernel among others"


def _refusal(
    recording: Recording, torn: Mapping[Name, Sequence[int]], warmup: int, runs: int, advice: str = _ASKED
) -> AbprofError:
    calls = warmup + runs
    counts = [f"{said(name)}: {len(places)}" for name, places in torn.items()]
    more = f" and {len(counts) - 4} more" if len(counts) > 4 else ""
    what = f"launches are no multiple of {calls} ({warmup} warm-up + {runs} runs): {'; '.join(counts[:4])}{more}"
    return AbprofError(what, where=str(recording.path), advice=advice)


def _shapes(recording: Recording, whole: Mapping[Name, list[int]], calls: int) -> tuple[list[list[_Part]], list[str]]:
    """The kernels of each shape. Shapes follow each other, so what overlaps is of one shape."""
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
    return shapes, [_note(name, len(places), len(parts[name]), calls) for name, places in whole.items()
                    if len(places) > calls]  # fmt: skip


def _note(name: Name, launches: int, shapes: int, calls: int) -> str:
    """How k*N launches were read, and what that rests on."""
    a_call = launches // (shapes * calls)
    if shapes == 1:
        why = "" if name[1] else "; the file has no grids, so shapes that move the same bytes would look alike"
        return f"{said(name)}: {launches} launches are {a_call} a call in {calls} calls{why}"
    each = f"{calls} calls each" + (f" of {a_call} launches" if a_call > 1 else "")
    return f"{said(name)}: {launches} launches are {shapes} shapes with {each}, not {launches // calls} launches a call"


def _shapes_by_bytes(launches: Sequence[Launch], calls: int) -> int:
    """Into how many shapes, one after another, launches of one kernel fall: 1 unless their bytes tell otherwise.

    For each division the launches that should be alike (the same place in a call, the same shape) are compared with
    their median. Every division has as many medians as the next, so the one that fits best is the right one.
    """
    level = next((name for name in ("l1", "l2", "dram") if all(name in launch.bytes for launch in launches)), "")
    most = len(launches) // calls
    if most == 1 or not level:
        return 1
    values = [launch.bytes[level] for launch in launches]
    misfit = {count: _misfit(values, count, most // count) for count in range(1, most + 1) if most % count == 0}
    best = min(misfit.values())
    if misfit[1] <= max(NOISE, 3 * best):
        return 1
    return next(count for count, value in misfit.items() if value <= 1.5 * best)


def _misfit(values: Sequence[float], shapes: int, a_call: int) -> float:
    """How far launches lie from their like, as a share of all bytes."""
    length, off = len(values) // shapes, 0.0
    for start in range(0, len(values), length):
        for slot in range(a_call):
            alike = values[start + slot : start + length : a_call]
            middle = median(alike)
            off += sum(abs(value - middle) for value in alike)
    return off / (sum(values) or 1.0)


def _cut(name: Name, places: Sequence[int], count: int) -> list[_Part]:
    length = len(places) // count
    return [_Part(name, tuple(places[start : start + length])) for start in range(0, length * count, length)]


def _overlapping(parts: Sequence[_Part], calls: int) -> list[list[_Part]]:
    """Parts by shape, in the order of the first launches. With one call nothing overlaps, and all is one shape."""
    shapes: list[list[_Part]] = []
    end = -1
    for part in sorted(parts, key=lambda part: part.places[0]):
        if shapes and (part.places[0] < end or calls == 1):
            shapes[-1].append(part)
        else:
            shapes.append([part])
        end = max(end, part.places[-1])
    return shapes


def _inside(places: Sequence[int], shapes: Sequence[Sequence[_Part]], calls: int) -> bool:
    """Whether launches lie within a shape's calls, or are themselves most of a shape's."""
    spans = [(min(part.places[0] for part in shape), max(part.places[-1] for part in shape)) for shape in shapes]
    if any(first < place < last for place in places for first, last in spans):
        return True
    gaps = [sum(place > last for _, last in spans) for place in places]
    return any(2 * gaps.count(gap) > calls for gap in gaps)


def _counted(recording: Recording, part: _Part, warmup: int, calls: int) -> Counted:
    a_call = len(part.places) // calls
    kept = tuple(recording.launches[place] for place in part.places[a_call * warmup :])
    return Counted(part.name, len(part.places), a_call, kept)
