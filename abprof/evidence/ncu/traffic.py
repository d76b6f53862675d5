"""Assign kernel launches to calls, and sum the bytes that each kernel moves per call, without the warm-up calls.

All calls of a recording must launch the same kernels: with N calls (warm-up calls included), a kernel of k*N launches
has k launches per call. Other numbers are an error, except for launches before the first or after the last call. It is
also an error if a kernel's bytes show that the calls had different shapes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from abprof.evidence.ncu.recording import Launch, read
from abprof.records import KernelProfile, Profile
from abprof.records.errors import AbprofError
from abprof.records.ncu import METRICS, TIME, Name, Table, table

_NOISE = 0.02  # share of a kernel's bytes: launches that differ by less are alike
# Kernels that only move or make data, as torch, CUB, users of Triton and cuDNN name them. All others compute.
_MOVES = re.compile(
    r"mem(cpy|set)|cop(y|ier)|fill|(\b|_)cast|convert|transpos|permute|catarray|concat|(\b|_)cat_|gather|scatter"
    r"|index_?select|distribution_|random|philox|arange|iota|nchwtonhwc|nhwctonchw",
    re.IGNORECASE,
)


def measured(path: Path, *, warmup: int, runs: int, kernels: Sequence[str] = ()) -> Table:
    """Return the memory traffic of each kernel in a CSV file of ncu, per launch and per call, without warm-up calls.

    The file must hold `warmup + runs` calls. `kernels`: names or globs of the kernels to count, by default all. Raises
    AbprofError if the file cannot be read, a glob matches no kernel, or launches do not divide evenly among the calls.
    """
    launches = read(path)
    for glob in kernels:
        if not any(_matches(launch.name[0], [glob]) for launch in launches):
            there = ", ".join(dict.fromkeys(launch.name[0] for launch in launches))
            raise AbprofError(f"no kernel matches {glob!r}", where=str(path), advice=f"recorded: {there[:300]}")
    launches = [launch for launch in launches if not kernels or _matches(launch.name[0], kernels)]
    profile = Profile(cell="", arm="", purpose="memory", warmup=warmup, runs=runs, csv=str(path))
    return table(*count(launches, profile, path))


def _matches(kernel: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(kernel, glob) or glob in kernel for glob in globs)


# ---------------------------------------------------------------- calls


def count(
    launches: Sequence[Launch], of: Profile, where: Path, *, whole: bool = False
) -> tuple[Profile, dict[Name, int]]:
    """Return the profile with the kernels of `launches`, and how many launches of each kernel belong to no call.

    `whole`: such launches are an error. Raises AbprofError if launches do not divide evenly among the calls.
    """
    calls, groups = of.warmup + of.runs, dict[Name, list[int]]()
    for place, launch in enumerate(launches):
        groups.setdefault(launch.name, []).append(place)
    inside = {name: places for name, places in groups.items() if len(places) % calls == 0}
    outside = {name: places for name, places in groups.items() if name not in inside}
    end = -1
    for name, places in sorted(inside.items(), key=lambda item: item[1][0]):
        apart = calls > 1 and end >= 0 and places[0] > end
        if not whole and (apart or _uneven([launches[place] for place in places], calls)):
            what = f"several shapes one after another, or uneven calls: {_short(name)}: {len(places)} launches"
            raise AbprofError(what, where=str(where), advice="record each shape in a file of its own")
        end = max(end, places[-1])
    first = min((places[0] for places in inside.values()), default=0)
    last = max((places[-1] for places in inside.values()), default=0)
    torn = [f"{_short(name)}: {len(places)}" for name, places in outside.items()
            if whole or not inside or 2 * len(places) > calls or any(first < place < last for place in places)]  # fmt: skip
    advice = "" if whole else "are --warmup and --runs those of the recording? --kernel NAME counts some kernels alone"
    if torn:
        names = "; ".join(torn[:4]) + (f" and {len(torn) - 4} more" if len(torn) > 4 else "")
        what = f"the number of launches is no multiple of {calls} ({of.warmup} warm-up + {of.runs} runs): {names}"
        raise AbprofError(what, where=str(where), advice=advice)
    notes = [f"{_short(name)}: {len(places)} launches are {len(places) // calls} a call in {calls} calls"
             for name, places in inside.items() if len(places) > calls]  # fmt: skip
    kernels = [_kernel(name, [launches[place] for place in places], of, calls) for name, places in inside.items()]
    made = msgspec.structs.replace(of, kernels=tuple(kernels), notes=tuple(notes))
    return made, {name: len(places) for name, places in outside.items()}


def _uneven(launches: Sequence[Launch], calls: int) -> bool:
    """Whether a kernel's bytes show that the calls had different shapes."""
    name = next((n for n in reversed(METRICS.values()) if all(n in launch.metrics for launch in launches)), "")
    values, times = [launch.metrics.get(name, 0.0) for launch in launches], len(launches) // calls
    misfits = []
    for shapes in (number for number in range(1, times + 1) if times % number == 0):
        length, a_call = len(values) // shapes, times // shapes
        parts = [values[at : at + length] for at in range(0, len(values), length)]
        slots = [part[slot::a_call] for part in parts for slot in range(a_call)]
        misfits.append(sum(abs(value - median(alike)) for alike in slots for value in alike))
    return misfits[0] > max(_NOISE * sum(values), 3 * min(misfits))


def _kernel(named: Name, launches: Sequence[Launch], of: Profile, calls: int) -> KernelProfile:
    """Average a kernel's metrics over its launches; rates and ratios are weighted by the launches' times."""
    (name, grid, block), a_call = named, len(launches) // calls
    kept = [launch.metrics for launch in launches[a_call * of.warmup :]]
    found = {}
    for metric in (metric for metric in kept[0] if all(metric in launch for launch in kept)):
        times = [launch.get(TIME, 0.0) for launch in kept]
        weights = times if not metric.endswith(".sum") and all(times) else [1.0] * len(times)
        total = sum(launch[metric] * weight for launch, weight in zip(kept, weights, strict=True))
        found[metric] = total / sum(weights)
    own = re.split(r"[<(]", name.replace("<unnamed>", ""), maxsplit=1)[0]
    # torch's kernels are named in their arguments
    moves = _MOVES.search(name.replace("<unnamed>", "") if "at::" in own else own)
    kind: Literal["compute", "other"] = "other" if moves else "compute"
    return KernelProfile(name=name, grid=grid, block=block, kind=kind, launches=len(launches), launches_a_call=a_call,
                         metrics=found)  # fmt: skip


def _short(name: Name) -> str:
    kernel = name[0] if len(name[0]) <= 60 else f"{name[0][:59]}…"
    return " ".join([kernel, *(f"{what} {t}" for what, t in zip(("grid", "block"), name[1:], strict=True) if t)])
