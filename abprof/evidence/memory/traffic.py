"""The table: bytes of each kernel per launch and per call, sums over a call, and two files beside each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from abprof.evidence.memory.census import Census, Counted, Name, matches, said
from abprof.evidence.memory.recording import LEVELS, Recording

Bytes = Mapping[str, float | None]  # level -> bytes; None: not recorded
# What only moves or makes data, by the names that torch, CUB, Triton's users and cuDNN give it. All else computes.
_OTHER = re.compile(
    r"mem(cpy|set)|cop(y|ier)|fill|(\b|_)cast|convert|transpos|permute|catarray|concat|(\b|_)cat_|gather|scatter"
    r"|index_?select|distribution_|random|philox|arange|iota|nchwtonhwc|nhwctonchw",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Row:
    """A kernel in a shape, or a sum over kernels (`kernel` is "" then, and there is nothing per launch)."""

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
    cell: str = ""  # whose it is, where abprof recorded it
    arm: str = ""
    minimum: Mapping[str, float] = field(default_factory=dict)  # level -> bytes of a call that are predicted at least

    @property
    def label(self) -> str:
        """What it is called: an arm of a cell, or a file."""
        return f"{self.cell} {self.arm}" if self.cell else str(self.path)

    @property
    def shapes(self) -> int:
        """How many shapes the file holds."""
        return max(row.shape for row in self.rows)


@dataclass(frozen=True)
class Pair:
    """The same row of two files; None where a file lacks it."""

    base: Row | None
    target: Row | None

    @property
    def either(self) -> Row:
        """The target's row where there is one."""
        row = self.target or self.base
        assert row is not None
        return row

    def pct(self, level: str) -> float | None:
        """Change of a call's bytes in per cent of base's; None where one is missing, or base moved none."""
        before = self.base.per_call[level] if self.base else None
        after = self.target.per_call[level] if self.target else None
        return None if not before or after is None else 100 * (after / before - 1)


def table(recording: Recording, census: Census, kernels: Sequence[str] = ()) -> Table:
    """Sum up. `kernels`: globs of those that compute; without any, names tell."""
    rows, sums, notes = [], [], list(census.notes)
    for place, shape in enumerate(census.shapes, 1):
        mine = [_row(place, counted, census, kernels) for counted in shape]
        rows += mine
        sums += summed(place, mine)
        notes += [note for counted in shape for note in _gaps(counted, recording.sources)]
    return Table(recording.path, recording.page, recording.sources, census.warmup, census.runs, tuple(rows), tuple(sums),
                 census.outside, tuple(notes))  # fmt: skip


def summed(shape: int, rows: Sequence[Row]) -> list[Row]:
    """The sums over a shape's kernels: of each kind there is, and of all."""
    kinds = [kind for kind in ("compute", "other") if any(row.kind == kind for row in rows)]
    return [_sum(shape, kind, [row for row in rows if kind in (row.kind, "all")]) for kind in (*kinds, "all")]


def beside(base: Table, target: Table) -> list[Pair]:
    """Kernels by shape and name. Where a branch changes the grid, what is left over of a name is paired in order."""
    return _paired(base.rows, target.rows, (_exactly, _by_name))


def sums_beside(base: Table, target: Table) -> list[Pair]:
    """The sums of each shape."""
    pairs = _paired(base.sums, target.sums, (lambda row: (row.shape, row.kind),))
    return sorted(pairs, key=lambda pair: (pair.either.shape, ("compute", "other", "all").index(pair.either.kind)))


def _exactly(row: Row) -> tuple[object, ...]:
    return row.shape, row.kernel, row.grid, row.block


def _by_name(row: Row) -> tuple[object, ...]:
    return row.shape, row.kernel


def _paired(base: Sequence[Row], target: Sequence[Row], keys: Iterable[Callable[[Row], object]]) -> list[Pair]:
    partner: dict[int, Row] = {}  # place in base -> target's row
    left, right = list(range(len(base))), list(target)
    for key in keys:
        for place in list(left):
            found = next((row for row in right if key(row) == key(base[place])), None)
            if found:
                partner[place] = found
                left.remove(place)
                right.remove(found)
    pairs = [Pair(row, partner.get(place)) for place, row in enumerate(base)] + [Pair(None, row) for row in right]
    return sorted(pairs, key=lambda pair: pair.either.shape)


def _row(shape: int, counted: Counted, census: Census, kernels: Sequence[str]) -> Row:
    totals = {level: _total([launch.bytes.get(level) for launch in counted.kept]) for level in LEVELS}
    per_launch = {level: None if total is None else total / len(counted.kept) for level, total in totals.items()}
    per_call = {level: None if total is None else total / census.runs for level, total in totals.items()}
    name = counted.name
    computes = matches(name[0], kernels) if kernels else not moves_only(name[0])
    return Row(shape, *name, "compute" if computes else "other", counted.launches, counted.a_call, per_launch, per_call)


def moves_only(kernel: str) -> bool:
    """Whether a kernel by its name only moves or makes data. Torch says in template arguments what an elementwise kernel
    does; those of others tell of their parts."""
    plain = kernel.replace("<unnamed>", "")
    own = re.split(r"[<(]", plain, maxsplit=1)[0]
    return _OTHER.search(plain if "at::" in own else own) is not None


def _sum(shape: int, kind: str, rows: Sequence[Row]) -> Row:
    per_call = {level: _total([row.per_call[level] for row in rows]) for level in LEVELS}
    launches, a_call = sum(row.launches for row in rows), sum(row.a_call for row in rows)
    return Row(shape, "", "", "", kind, launches, a_call, dict.fromkeys(LEVELS), per_call)


def _total(values: Sequence[float | None]) -> float | None:
    """The sum; None where a single one is missing: a part is no sum."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _gaps(counted: Counted, sources: Mapping[str, str]) -> Iterator[str]:
    for level in sources:
        lacking = sum(level not in launch.bytes for launch in counted.kept)
        if lacking:
            kept = len(counted.kept)
            yield f"{said(counted.name)}: {LEVELS[level]} is not recorded in {lacking} of {kept} launches, so it has no number"
