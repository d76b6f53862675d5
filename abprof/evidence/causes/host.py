"""Rules over a processor's machine code, and over the operations of torch's that a call makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from abprof.evidence.causes import calls, say
from abprof.evidence.causes.sides import Sides
from abprof.records import Cause, Function, Kernel

_WIDTHS = ("512-bit arithmetic", "256-bit arithmetic", "128-bit arithmetic")
_SHOWN = (*_WIDTHS, "scalar arithmetic")


def causes(sides: Sides) -> list[Cause]:
    """What changed in the objects, and in the operations, the surest first."""
    found = list(_operations(sides))
    if sides.whole and sides.objects:
        found += _vectors(sides) or _passes(sides)
    return found


def same_code(sides: Sides) -> list[Cause]:
    """Said where the objects and torch's operations are the same, and no more than that: what Python calls in the objects,
    and how often, is not counted."""
    if not (sides.matched and sides.objects and sides.same_launches):
        return []
    if any(not one.code or one.code != two.code for one, two in sides.objects):
        return []
    text = "same machine code on both sides, different time; calls into C++ are not counted on a CPU"
    return [Cause(kind="same_code", text=text, evidence=("census", "kernels"))]


def _operations(sides: Sides) -> Iterator[Cause]:
    """Operations of torch's that came or went, where their own time is enough to be the cause."""
    if not sides.counted:
        return
    before, after = ({part.name: part for part in parts} for parts in sides.parts)
    told, ns, ways = [], 0.0, set[bool]()
    for name in dict.fromkeys((*before, *after)):
        one, two = (side[name].count if name in side else 0 for side in (before, after))
        if one != two:
            part = after[name] if two > one else before[name]
            spent = part.ns * abs(two - one) / max(one, two)
            ns += spent if two > one else -spent
            ways.add(two > one)
            told.append((spent, name, f"{name} {one} -> {two} times a call ({say.ns(spent)})"))
    if told and sides.carries(ns):
        told.sort(reverse=True)
        word = "replaced" if len(ways) > 1 else "added" if sides.slower else "gone"
        text = f"operations of torch {word}: {say.listed([line for *_, line in told])}"
        yield Cause(kind="operations", text=text, kernels=tuple(name for _, name, _ in told), evidence=("census",))


def _functions(sides: Sides) -> tuple[calls.Named, calls.Named]:
    """Functions that are not the same, of all objects together, by object and name: two objects may have one name each."""
    before, after = (
        {(place, f.name): f for place, pair in enumerate(sides.objects) for f in pair[side].functions
         if not calls.once(f.name)}
        for side in (0, 1)
    )  # fmt: skip
    return before, after


def _vectors(sides: Sides) -> list[Cause]:
    """Functions whose widest arithmetic became narrower (slower), or wider (faster)."""
    before, after = _functions(sides)
    moved = {key: _width(after[key]) - _width(before[key]) for key in before.keys() & after.keys()}
    wanted = -1 if sides.slower else 1
    told = {
        key: _arithmetic(before[key].classes, after[key].classes) for key in sorted(moved) if moved[key] * wanted > 0
    }
    if any(width * wanted < 0 for width in moved.values()):
        return []
    return _said(
        sides, "vectorisation", f"vectorisation {'lost' if sides.slower else 'gained'} in", told, _flags(sides)
    )


def _passes(sides: Sides) -> list[Cause]:
    """A loop more over memory (slower), or one fewer (faster): in a function that has both sides' vector width, or as a
    function of its own that something shows to run. A function that only got another name is none."""
    before, after = _functions(sides)
    few, many = (before, after) if sides.slower else (after, before)
    codes = {function.code for function in few.values()}
    lone = {key: f for key, f in many.items() if key not in few and f.code not in codes and _walks(f.classes)}
    run = calls.reached(many, few) | {key for key, seen in (calls.shown(sides, lone) or {}).items() if seen}
    told = {
        key: f"{_plural(f.classes['loops'], 'loop')}, {_traffic(f.classes)}" for key, f in lone.items() if key in run
    }
    for key in sorted(few.keys() & many.keys()):
        one, two = few[key].classes, many[key].classes
        if two["loops"] > one["loops"] and _accesses(two) > _accesses(one) and _width(few[key]) == _width(many[key]):
            first, second = (one, two) if sides.slower else (two, one)
            told[key] = say.counts(_pass(first), _pass(second))
    return _said(sides, "pass", "an extra pass over memory:" if sides.slower else "a pass over memory less:", told)


def _said(sides: Sides, kind: str, head: str, told: Mapping[tuple[int, str], str], more: str = "") -> list[Cause]:
    """The cause, of those functions that perf saw take the time; where it did not look, of all, with that said."""
    seen = calls.shown(sides, told)
    kept = [key for key in told if seen is None or key in seen]
    if not kept:
        return []
    looked = [found.text if seen and (found := seen[key]) else "" for key in kept]
    parts = [f"{key[1]} ({'; '.join(filter(None, (told[key], said)))})" for key, said in zip(kept, looked, strict=True)]
    text = f"{head} {say.listed(parts)}{more}{'' if all(looked) else calls.UNTOLD}"
    evidence = ("kernels", "perf") if any(looked) else ("kernels",)
    return [Cause(kind=kind, text=text, kernels=tuple(name for _, name in kept), evidence=evidence)]


def _width(function: Function) -> int:
    return next((len(_WIDTHS) - i for i, name in enumerate(_WIDTHS) if function.classes.get(name)), 0)


def _arithmetic(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    return say.counts({name: before.get(name, 0) for name in _SHOWN}, {name: after.get(name, 0) for name in _SHOWN})


def _accesses(classes: Mapping[str, int]) -> int:
    return classes.get("loads", 0) + classes.get("stores", 0)


def _walks(classes: Mapping[str, int]) -> bool:
    return classes.get("loops", 0) > 0 and _accesses(classes) > 0


def _pass(classes: Mapping[str, int]) -> dict[str, int]:
    return {name: classes.get(name, 0) for name in ("loops", "loads", "stores")}


def _traffic(classes: Mapping[str, int]) -> str:
    return f"{_plural(classes.get('loads', 0), 'load')}, {_plural(classes.get('stores', 0), 'store')}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _flags(sides: Sides) -> str:
    """The compiler's flags, where both sides' are known and differ."""
    said = [_differing(one, two) for one, two in sides.objects if one.flags and two.flags and one.flags != two.flags]
    return f"; compiler flags {said[0]}" if said else ""


def _differing(one: Kernel, two: Kernel) -> str:
    before, after = one.flags.split(), two.flags.split()
    gone = [flag for flag in before if flag not in after]
    new = [flag for flag in after if flag not in before]
    return f"{' '.join(gone) or 'none'} -> {' '.join(new) or 'none'}"
