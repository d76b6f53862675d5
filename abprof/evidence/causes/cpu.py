"""Find causes in a CPU's machine code, in perf's samples of this code, and in the torch operations of a call.

A function that exists on one side only counts if perf's samples or the calls in the machine code show that it runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import PurePath

from abprof.evidence.causes.sides import Sides, changes, listed, ns, recounts
from abprof.records import Cause, Function

UNRECORDED = "whether this row calls it is not recorded on a CPU"
_WIDTHS = ("512-bit arithmetic", "256-bit arithmetic", "128-bit arithmetic")
_ENOUGH = 100  # samples: with fewer samples, a function without samples may still run
# Code that runs once, when an object is loaded: it registers functions, whoever calls them.
_ONCE = re.compile(
    r"PyInit_|PyModuleDef|pybind11_init_|TORCH_LIBRARY|_GLOBAL__|__static_initialization|\(static initializers"
)
Key = tuple[int, str]  # index of the object, function
Functions = Mapping[Key, Function]


def causes(sides: Sides) -> list[Cause]:
    """Return the causes found in torch operations and shared objects, the surest first."""
    found = []
    moved = sorted(sides.recounted, key=lambda one: -abs(one[3]))  # torch's operations
    if sides.counted and moved and sides.carries(sum(spent for *_, spent in moved)):
        ways = {after > before for _, before, after, _ in moved}
        word = "replaced" if len(ways) > 1 else "added" if sides.slower else "gone"
        text, names = f"operations of torch {word}: {recounts(moved)}", tuple(name for name, *_ in moved)
        found.append(Cause(kind="operations", text=text, kernels=names, evidence=("census",)))
    if sides.matched and sides.objects and all(not kernel.missing for pair in sides.objects for kernel in pair):
        before, after = (
            {(place, function.name): function
             for place, pair in enumerate(sides.objects) for function in pair[side].functions
             if not _ONCE.search(function.name)}
            for side in (0, 1)
        )  # fmt: skip
        both = _named(sides, before, after)
        found += _vectors(sides, *both) or _passes(sides, *both) or _costly(sides, *both)
    return found


def same_code(sides: Sides) -> list[Cause]:
    """Return the cause "same code" if shared objects and torch operations are equal on both sides, else []."""
    if not (sides.objects and sides.same_objects and sides.same_launches):
        return []
    text = "same machine code on both sides, different time; calls into C++ are not counted on a CPU"
    return [Cause(kind="same_code", text=text, evidence=("census", "kernels"))]


def _vectors(sides: Sides, before: Functions, after: Functions) -> list[Cause]:
    """Return a cause if functions of the slower side use narrower vectors."""
    moved = {key: _width(before[key]) - _width(after[key]) for key in before.keys() & after.keys()}
    if any(narrower and not sides.along(narrower) for narrower in moved.values()):
        return []
    shown = (*_WIDTHS, "scalar arithmetic")
    found = {key: _counts(before[key], after[key], shown) for key in sorted(moved) if moved[key]}
    return _cause(sides, "vectorisation", f"vectorisation {'lost' if sides.slower else 'gained'} in ", found)


def _passes(sides: Sides, before: Functions, after: Functions) -> list[Cause]:
    """Return a cause if functions of the slower side have more loops over memory."""
    few, many = (before, after) if sides.slower else (after, before)
    codes, names = {function.code for function in few.values()}, ("loops", "loads", "stores")
    lone = {key: f for key, f in many.items() if key not in few and f.code not in codes}
    lone = {key: f for key, f in lone.items() if f.classes.get("loops") and _accesses(f)}
    run = _reached(many, few) | {key for key, seen in (_sampled(sides, lone) or {}).items() if seen}
    found = {}
    for key in (key for key in lone if key in run):
        found[key] = ", ".join(f"{name} {lone[key].classes.get(name, 0)}" for name in names)
    for key in sorted(few.keys() & many.keys()):
        one, two = few[key], many[key]
        longer = two.classes["loops"] > one.classes["loops"] and _accesses(two) > _accesses(one)
        if longer and _width(one) == _width(two):
            found[key] = _counts(before[key], after[key], names)
    return _cause(sides, "pass", "an extra pass over memory: " if sides.slower else "a pass over memory less: ", found)


def _costly(sides: Sides, before: Functions, after: Functions) -> list[Cause]:
    """Return a cause if functions of the slower side have more divisions in loops, or else more calls."""
    both = sorted(key for key in before.keys() & after.keys() if before[key].code != after[key].code)
    for kind, name in (("arithmetic", "integer divisions"), ("arithmetic", "divisions"), ("calls", "calls")):
        moved = {key: after[key].classes.get(name, 0) - before[key].classes.get(name, 0) for key in both}
        loops = {key: (before[key].classes["loops"], after[key].classes["loops"]) for key in both}
        alike = [key for key in both if loops[key][0] == loops[key][1] and (kind == "calls" or any(loops[key]))]
        found = {key: _counts(before[key], after[key], (name,)) for key in alike if sides.along(moved[key])}
        if found and len(found) == sum(map(bool, moved.values())):  # of no other function the number differs
            called = {key: _called(sides, before[key], after[key]) for key in found}
            if kind == "calls" and all(called.values()):
                return _cause(sides, kind, "", found, called)
            return _cause(sides, kind, f"{'more' if sides.slower else 'fewer'} {name} in ", found)
    return []


def _called(sides: Sides, before: Function, after: Function) -> str:
    """Return what the slower side's function calls and the other side's does not, with the verb; "" if nothing."""
    few, many = (before, after) if sides.slower else (after, before)
    names = [one if "operator" in one else bare(one) for one in many.calls if one not in few.calls]
    return f" {'calls' if sides.slower else 'no longer calls'} {listed(names)}" if names else ""


def _cause(sides: Sides, kind: str, head: str, found: Mapping[Key, str], called: Mapping[Key, str] = {}) -> list[Cause]:
    """Return a cause that names the functions in `found`, and what they call. Where perf sampled the row, only the
    functions whose samples agree are named."""
    seen = _sampled(sides, found)
    samples = {key: (seen or {}).get(key, "") for key in found if seen is None or key in seen}
    if not samples:
        return []
    parts = [f"{key[1]}{called.get(key, '')} ({'; '.join(filter(None, (found[key], each)))})"
             for key, each in samples.items()]  # fmt: skip
    text = f"{head}{listed(parts)}"
    evidence = ("kernels", "perf") if any(samples.values()) else ("kernels",)
    return [Cause(kind=kind, text=text, kernels=tuple(name for _, name in samples), evidence=evidence,
                  note=None if all(samples.values()) else UNRECORDED)]  # fmt: skip


def _counts(before: Function, after: Function, names: Collection[str]) -> str:
    return changes({name: (before.classes.get(name, 0), after.classes.get(name, 0)) for name in names})


def _width(function: Function) -> int:
    return next((len(_WIDTHS) - i for i, name in enumerate(_WIDTHS) if function.classes.get(name)), 0)


def _accesses(function: Function) -> int:
    return function.classes.get("loads", 0) + function.classes.get("stores", 0)


# ---------------------------------------------------------------- whether a row runs a function


def _named(sides: Sides, before: Functions, after: Functions) -> tuple[Functions, Functions]:
    """Return the functions that the cell names, as in `part=scale`, and what these call; all, if it names none."""
    words = set(re.findall(r"\w+", sides.row.cell.partition("/")[2]))
    todo = [key for key in {**before, **after} if re.sub(r"<.*|.*::", "", bare(key[1])) in words]
    found = set(todo)
    while todo:
        place, name = todo.pop()
        called = {call for of in (before, after) if (place, name) in of for call in of[place, name].calls}
        todo += [key for call in called if (key := (place, call)) not in found]
        found |= set(todo)
    if not found:
        return before, after
    return {k: f for k, f in before.items() if k in found}, {k: f for k, f in after.items() if k in found}


def _reached(functions: Functions, other: Functions) -> set[Key]:
    """Return the functions missing in `other` that are called, directly or indirectly, by a function that both sides
    have."""
    found: set[Key] = set()
    todo = [key for key in functions if key in other]
    while todo:
        place, name = todo.pop()
        for called in ((place, one) for one in functions[place, name].calls):
            if called in functions and called not in other and called not in found:
                found.add(called)
                todo.append(called)
    return found


def _sampled(sides: Sides, keys: Collection[Key]) -> dict[Key, str] | None:
    """Return function -> how its time changed, as text, for the functions in `keys` that can explain the change by
    perf's samples. The text is "" for overloads, which perf cannot tell apart. Return None without enough samples."""
    many = 1 if sides.slower else 0
    slow, fast = sides.sampled[many], sides.sampled[1 - many]
    if slow is None or fast is None or slow.samples < _ENOUGH:
        return None
    files = [[PurePath(kernel.path).name or kernel.key for kernel in pair] for pair in sides.objects]
    if any(one.name == "[unknown]" and one.object in {pair[many] for pair in files} for one in slow.functions):
        return None
    found = {}
    for place, name in keys:
        pair, names = sides.objects[place], {name, bare(name)}
        # A call that one side alone makes takes its time in the callee: `expf` in the library's `__expf_fma`.
        of_many, of_few = ({call for one in of.functions if one.name == name for call in one.calls}
                           for of in (pair[many], pair[1 - many]))  # fmt: skip
        called = [bare(call) for call in of_many - of_few]
        count, was = (
            sum(one.samples for one in of.functions if (one.object == files[place][side] and one.name in names)
                or any(call in one.name for call in called))
            for side, of in ((many, slow), (1 - many, fast))
        )  # fmt: skip
        more = sum(n * 1e9 / of.hz / of.calls if of.hz and of.calls else 0.0 for of, n in ((slow, count), (fast, -was)))
        if count and sum(bare(one.name) in names for one in pair[many].functions) > 1:
            found[place, name] = ""
        elif count and sides.carries(more if sides.slower else -more):
            way = "more" if sides.slower else "less"
            found[place, name] = f"perf: {count} of {slow.samples} samples, {ns(more)} a call {way}"
    return found


def bare(name: str) -> str:
    """Return a function's name as perf prints it, without parameters, return type and clone suffix: `scale<float>` for
    `void scale<float>(float*, long) [clone .cold]`."""
    plain = name.replace("(anonymous namespace)", "{anonymous}")
    depth, begin = 0, 0
    for at, letter in enumerate(plain):
        if letter == "(" and not depth:
            return plain[begin:at].replace("{anonymous}", "(anonymous namespace)")
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == " " and not depth:
            begin = at + 1
    return name
