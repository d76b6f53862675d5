"""Find the line of source at which a cause acts: by both sides' instructions by line, a profiler's samples, and the diff.

A line is named if most of the change is there; or if the diff has one hunk that can be meant. Otherwise no line is found:
a wrong line is worse than none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from abprof.evidence import hunks
from abprof.evidence.causes.sides import ACCESSES, Sides
from abprof.records import Arm, Cause, Function, Hunk, Kernel, Lines, Run, lines_of

_MOST = 0.5  # share of a change that a line must have
_SIGMAS = 4.0  # by how many standard deviations samples must show it
_ARITHMETIC = ("512-bit arithmetic", "256-bit arithmetic", "128-bit arithmetic", "scalar arithmetic")
_CLASSES = {  # kind of cause -> the classes of instructions that its rule counts; (): all
    "spills": ("local stores", "local loads"), "tensor": ("tensor",), "overlap": ("asynchronous copies",),
    "memory": ACCESSES, "vectorisation": _ARITHMETIC, "pass": ("loads", "stores"), "kernel": (),
    "atomics": ("atomics",), "shared": ("shared loads", "shared stores"), "barriers": ("barriers",), "calls": ("calls",),
    "arithmetic": ("integer divisions", "divisions", "double precision", "special functions"), "unrolling": (),
}  # fmt: skip
_HOT = ("coalescing", "dram_traffic", "kernel")  # kinds whose line samples may show
_NO_LINE = ("same_code",)  # kinds that speak of no change of code
_CALLED = {"warps": "num_warps", "stages": "num_stages", "CTAs": "num_ctas"}  # in sentences -> in code
_WORDS = ("changed", "copies", "gained", "lost")  # of such sentences, not of code
_SHOWN = {"tensor": "tensor-core instructions", "local loads": "spill loads", "local stores": "spill stores"}
Unit = tuple[str, int] | int  # a line of the target, or the index of a hunk
_Both = tuple[tuple[Lines, dict[str, int]], tuple[Lines, dict[str, int]]]


def located(run: Run, sides: Sides, causes: Sequence[Cause]) -> list[Cause]:
    """Return the causes with the lines at which they act; unchanged if the sides' code was not compared."""
    ids = [Arm.of(arm).side for arm in (sides.row.from_, sides.row.to)]
    if ids[0] != "base" or ids[1] not in run.hunks:
        return list(causes)
    alike = run.toolchains.get(ids[0]) == run.toolchains.get(ids[1])
    search = _Search(run, sides, run.hunks[ids[1]], alike=alike)
    found = [cause if cause.kind in _NO_LINE else search.located(cause) for cause in causes]
    return found or search.hot_line()


class _Search:
    def __init__(self, run: Run, sides: Sides, differing: Sequence[Hunk], *, alike: bool) -> None:
        self.sides, self.hunks = sides, differing
        own = {f"kernels/{kernel.package}/" for of in sides.kernels for kernel in of}
        others = tuple({f"kernels/{build.kernel}/" for build in run.builds} - own)
        # Without code that the row does not run: remarks, and other packages.
        self.code = [hunk for hunk in differing if hunks.changes_code(hunk) and not hunk.file.startswith(others)]
        self.alike = alike  # whether both sides have the same toolchain: the diff alone makes the difference
        row = sides.row
        self.listed = [one for one in run.listed if (one.cell, one.from_, one.to) == (row.cell, row.from_, row.to)]

    def located(self, cause: Cause) -> Cause:
        classes, hot = _CLASSES.get(cause.kind), self._hot(cause.kernels)
        if cause.kind == "arithmetic" and classes:  # its rules count one class, which the text names, or all
            classes = next(((name,) for name in classes if name in cause.text), classes)
        unit, count = self._counted(cause, classes) if classes is not None else (None, "")
        if unit is None and hot and isinstance(hot.unit, int) and cause.kind in _HOT:
            unit = hot.unit
        hunk = self.hunks[unit] if isinstance(unit, int) else self._meant(cause)
        line = f"{unit[0]}:{unit[1]}" if isinstance(unit, tuple) else ""
        notes = [f"{count} {f'at {line}' if line else 'in the changed lines'}"] if count else []
        if hunk is not None:
            inside = self._line_in(hunk, cause, classes) if isinstance(unit, int) else ""
            line = inside or hunks.first_line(hunk, _names(cause))
            notes.append(f"changed: {'' if line else f'{hunk.file}, '}{hunk.line}")
        elif line:
            notes = [count, "the diff does not touch this line"] if count else notes
        notes += [hot.text] if hot else []  # of another line, too: a layout has no instructions, what it slows has
        return msgspec.structs.replace(cause, at=line, note="; ".join(filter(None, (*notes, cause.note))))

    # ---- by the instructions of both sides

    def _counted(self, cause: Cause, classes: Sequence[str]) -> tuple[Unit | None, str]:
        """Return where most of the change in the numbers of instructions is, and how many are there, as text."""
        for both in self._lines(cause):
            moved, size, total = self._moved(both, classes)
            whole = sum(map(abs, total.values()))
            # Compilers move instructions between lines: one that the diff does not touch counts only if few moved.
            steady = moved.total() - whole <= _MOST * whole
            most = [unit for unit in moved if moved[unit] > _MOST * whole > 0 and (steady or isinstance(unit, int))]
            if most:
                # The innermost of lines with as many: those that it is inlined at have more code.
                unit = max(most, key=lambda unit: (isinstance(unit, int), moved[unit], -size[unit]))
                what = "instructions" if len(total) > 1 else _SHOWN.get(name := next(iter(total)), name)
                way = "more" if sum(total.values()) > 0 else "fewer"
                return unit, f"{min(moved[unit], whole)} of {whole} {way} {what}"
        return None, ""

    def _moved(self, both: _Both, classes: Sequence[str]) -> tuple[Counter[Unit], Counter[Unit], dict[str, int]]:
        """Return by how many instructions each unit changed the way the whole changed, its size, and the whole's changes."""
        total = {name: both[1][1].get(name, 0) - both[0][1].get(name, 0) for name in (*both[0][1], *both[1][1])
                 if name in classes or (not classes and name not in ("other", "loops"))}  # fmt: skip
        each, size, moved = Counter[tuple[Unit, str]](), Counter[Unit](), Counter[Unit]()
        for side, (lines, _) in enumerate(both):
            for where, counts in lines.items():
                unit = self._unit(where, side)
                size[unit] += sum(counts.values())
                for name in counts.keys() & total.keys():
                    each[unit, name] += counts[name] if side else -counts[name]
        for (unit, name), count in each.items():
            if count * total[name] > 0:
                moved[unit] += abs(count)
        return moved, size, {name: count for name, count in total.items() if count}

    def _lines(self, cause: Cause) -> Iterator[_Both]:
        """Yield both sides' instructions of each kernel or function that the cause names: by line, and all."""
        for pair in self.sides.pairs:
            if pair.after.name in cause.kernels and pair.before.kernel and pair.after.kernel:
                yield _code(pair.before.kernel), _code(pair.after.kernel)
        for one, two in self.sides.objects:
            before, after = ({f.name: f for f in kernel.functions} for kernel in (one, two))
            for name in cause.kernels:
                if name in before or name in after:
                    yield _code(before.get(name)), _code(after.get(name))

    def _unit(self, where: str, side: int) -> Unit:
        """Return the hunk that has this line of a side, or else the target's line that is the same."""
        file, _, number = where.rpartition(":")
        line, shift = int(number), 0
        for place, hunk in enumerate(self.hunks):
            if hunk.file == file:
                if hunk.at[side] <= line < hunk.at[side] + hunk.count[side]:
                    return place
                if not side and hunk.at[0] + hunk.count[0] <= line:
                    shift = hunk.at[1] + hunk.count[1] - hunk.at[0] - hunk.count[0]
        return file, line + shift

    def _line_in(self, hunk: Hunk, cause: Cause, classes: Sequence[str] | None) -> str:
        """Return the hunk's line on the target that has most of what the hunk added; "" if there is none. Any line may
        have had what the hunk removed, or what a hunk removed that adds nothing: code that moved."""
        gone, new = 0, Counter[str]()
        for both in self._lines(cause):
            total = self._moved(both, classes or ())[2]
            more = {name for name in total if total[name] > 0} or total.keys()
            for side, (lines, _) in enumerate(both):
                for where, found in lines.items():
                    unit = self._unit(where, side)
                    of = self.hunks[unit] if isinstance(unit, int) else None
                    count = sum(n for name, n in found.items() if name in more)
                    if side and of is hunk:
                        new[where] += count
                    elif of and not side and (of is hunk or not of.count[1]):
                        gone += count
        if hunk.count[1] == 1:
            return next(iter(+new), "")
        return next((where for where, n in new.items() if n - gone > _MOST * (new.total() - gone) > 0), "")

    # ---- by the diff

    def _meant(self, cause: Cause) -> Hunk | None:
        """Return the hunk that makes the cause: the only one, or the only one that changes what the cause names."""
        if not self.alike:
            return None
        found = [hunk for hunk in self.code if self._runs(hunk, cause)]
        if len(found) > 1:
            found = [hunk for hunk in found if hunks.mentions(hunk, _names(cause))]
        if len(found) > 1:
            found = [hunk for hunk in found if hunks.replaces(hunk, cause.text)]
        return found[0] if len(found) == 1 else None

    def _runs(self, hunk: Hunk, cause: Cause) -> bool:
        """Whether the hunk may be part of the kernels that the cause names: not if it lies in another Triton function."""
        known = [where.rpartition(":") for _, (after, _) in self._lines(cause) for where in after]
        inside = any(file == hunk.file and hunk.inside[0] <= int(line) <= hunk.inside[1] for file, _, line in known)
        return inside or not known or not any(hunk.inside)

    # ---- by a profiler's samples

    def hot_line(self) -> list[Cause]:
        """Return a cause if no rule found one, and the samples of a line that the diff touches explain the change.

        Another line may only wait for one that changed.
        """
        for one in self.listed:
            hot = self._hot((one.kernel,))
            if hot and isinstance(hot.unit, int):
                note = f"changed: {self.hunks[hot.unit].line}"
                text = f"most of the change is at one line of {one.kernel}, {hot.text}"
                return [Cause(kind="line", text=text, kernels=(one.kernel,), evidence=(one.by,), at=hot.at, note=note)]
        return []

    def _hot(self, kernels: Sequence[str]) -> _Hot | None:
        """Return where the time by samples grew (or shrank) by at least half of the row's change."""
        for one in (one for one in self.listed if one.by and (one.kernel in kernels or not self.sides.on_gpu)):
            wholes = [sum(each.samples for each in spent.values()) for spent in one.spent]
            shares = [Counter[Unit](), Counter[Unit]()]
            for side, spent in enumerate(one.spent):
                for where, each in spent.items():
                    if where:
                        shares[side][self._unit(where, side)] += each.samples / wholes[side]  # type: ignore[assignment]
            change = (self.sides.row.pct or 0.0) / 100
            ways = math.copysign(1, change)
            grown = {  # share of the former time that the unit takes longer, or shorter in a row that is faster
                unit: ways * (shares[1][unit] * (1 + change) - shares[0][unit]) for unit in (*shares[0], *shares[1])
            }
            unit = max(grown, key=lambda unit: grown[unit], default=None)
            least = max(_MOST * abs(change), _SIGMAS * _scatter(unit, shares, wholes)) if unit is not None else 0.0
            if unit is not None and change and grown[unit] >= least:
                side = 1 if shares[1][unit] else 0
                own = {w: each for w, each in one.spent[side].items() if w and self._unit(w, side) == unit}
                where = max(own, key=lambda where: own[where].samples)
                stall = f", stall: {own[where].stall.replace('_', ' ')}" if own[where].stall else ""
                place = f"line {where.rpartition(':')[2]}{self._call(unit, where, side)}{'' if side else ' of base'}"
                text = f"{place}: {100 * shares[0][unit]:.0f} % -> {100 * shares[1][unit]:.0f} % of samples{stall}"
                return _Hot(unit, where if side else "", text)
        return None

    def _call(self, unit: Unit, where: str, side: int) -> str:
        """Return the first call with a dotted name in a changed line: ` (tl.dot)`; "" if there is none."""
        if not isinstance(unit, int):
            return ""
        lines = lines_of((self.hunks[unit].removed, self.hunks[unit].added)[side])
        at = int(where.rpartition(":")[2]) - self.hunks[unit].at[side]
        found = re.search(r"\w+(?:\.\w+)+(?=\()", lines[at]) if at < len(lines) else None
        return f" ({found[0]})" if found else ""


def _scatter(unit: Unit, shares: Sequence[Mapping[Unit, float]], wholes: Sequence[int]) -> float:
    """Return the standard deviation of the difference of a unit's shares: of two runs of the same code, too."""
    each = (of.get(unit, 0.0) for of in shares)
    return math.sqrt(sum(share * (1 - share) / whole for share, whole in zip(each, wholes, strict=True) if whole))


class _Hot(NamedTuple):
    """Where samples show the change; its line on the target, "" if only base has it; and both shares as text."""

    unit: Unit
    at: str
    text: str


def _code(of: Kernel | Function | None) -> tuple[Lines, dict[str, int]]:
    return (of.lines, of.classes or {}) if of else ({}, {})


def _names(cause: Cause) -> list[str]:
    """Return patterns of what the cause gives as changed: launches of kernels, or constants and settings."""
    if cause.kind in ("launches", "kernels_replaced"):
        return [rf"\b{re.escape(name)}\s*(\[|<<<)" for name in cause.kernels]
    if cause.kind in _CLASSES and cause.kind != "overlap":
        return []  # its text has classes of instructions, which are no names in code
    words = re.findall(r"(\w+)(?::| \S+ ->) ", cause.text)
    return [rf"\b{_CALLED.get(word, word)}\b" for word in words if word not in _WORDS]
