"""Whether a row runs a function of machine code: what perf sampled of it, and which function calls it.

Calls into C++ are not counted on a CPU, so a function that only one side has may be one that nothing calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from abprof.evidence.causes import say
from abprof.evidence.causes.sides import Sides
from abprof.records import Comparison, Function, Kernel, Sampled

UNTOLD = "; whether this row calls it is not recorded on a CPU"
Named = Mapping[tuple[int, str], Function]  # by the object's place and the function's name
# Code that runs once, when an object is loaded: it registers functions, whoever calls them.
_ONCE = re.compile(
    r"PyInit_|PyModuleDef|pybind11_init_|TORCH_LIBRARY|_GLOBAL__|__static_initialization|\(static initializers"
)
_ENOUGH = 100  # samples: of fewer, what perf did not see may still run
_OPEN, _CLOSE = "(<[{", ")>]}"
_UNNAMED = re.compile(r"\(anonymous namespace\)")


@dataclass(frozen=True)
class Seen:
    """A function under perf: its samples of all that were taken on the slower side, and how much more processor time (ns) a
    call has in it than the base's; negative is less."""

    samples: int
    of: int
    ns: float

    @property
    def text(self) -> str:
        return f"perf: {self.samples} of {self.of} samples, {say.ns(abs(self.ns))} a call {'more' if self.ns > 0 else 'less'}"


def sampled(every: Sequence[Sampled], row: Comparison) -> tuple[Sampled | None, Sampled | None]:
    """What perf took of both arms of the row; None of an arm of which it took nothing."""
    told = {one.arm: one for one in every if one.cell == row.cell and not one.missing and one.samples}
    return told.get(row.from_), told.get(row.to)


def shown(sides: Sides, keys: Collection[tuple[int, str]]) -> dict[tuple[int, str], Seen | None] | None:
    """Those of these functions of the slower side that perf saw take enough time to be the cause; with None those of which it
    cannot say. None at all where perf did not look at both sides, or has no names for the objects."""
    slow, fast = (sides.sampled[1], sides.sampled[0]) if sides.slower else sides.sampled
    many = 1 if sides.slower else 0
    if slow is None or fast is None or slow.samples < _ENOUGH:
        return None
    files = {_file(pair[many]) for pair in sides.objects}
    if any(one.name == "[unknown]" and one.object in files for one in slow.functions):
        return None
    found: dict[tuple[int, str], Seen | None] = {}
    for place, name in keys:
        pair, names = sides.objects[place], {name, _bare(name)}
        count = _samples(slow, _file(pair[many]), names)
        ns = _ns(slow, count) - _ns(fast, _samples(fast, _file(pair[1 - many]), names))
        if count and sum(_bare(one.name) in names for one in pair[many].functions) > 1:
            found[place, name] = None  # perf says overloads, and a loop split off its function, by one name
        elif count and sides.carries(ns if sides.slower else -ns):
            found[place, name] = Seen(count, slow.samples, ns if sides.slower else -ns)
    return found


def reached(functions: Named, other: Named) -> set[tuple[int, str]]:
    """Of the functions that `other` has not, those that one which both have now calls, itself or through further ones."""
    found: set[tuple[int, str]] = set()
    todo = [key for key in functions if key in other]
    while todo:
        place, name = todo.pop()
        for called in ((place, one) for one in functions[place, name].calls):
            if called in functions and called not in other and called not in found:
                found.add(called)
                todo.append(called)
    return found


def once(name: str) -> bool:
    """Whether this runs when its object is loaded, and not in a call."""
    return _ONCE.search(name) is not None


def _file(kernel: Kernel) -> str:
    return PurePath(kernel.path).name or kernel.key


def _samples(of: Sampled, file: str, names: Collection[str]) -> int:
    return sum(one.samples for one in of.functions if one.object == file and one.name in names)


def _ns(of: Sampled, samples: int) -> float:
    """What these samples stand for in a call."""
    return samples * 1e9 / of.hz / of.calls if of.hz and of.calls else 0.0


def _bare(name: str) -> str:
    """As perf says it: without parameters, what a template returns, and which clone it is.
    `void (anonymous namespace)::scale<float>(float*, long) [clone .cold]` is `(anonymous namespace)::scale<float>`."""
    plain = _UNNAMED.sub("{anonymous}", name)
    depth, begin = 0, 0
    for at, letter in enumerate(plain):
        if letter == "(" and not depth:
            return plain[begin:at].replace("{anonymous}", "(anonymous namespace)")
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == " " and not depth:
            begin = at + 1
    return name
