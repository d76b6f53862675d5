"""What a workload module declares beyond its functions, read and checked: presets, ladder, sweep, facts."""

from __future__ import annotations

import inspect
import math
import traceback
import types
from collections.abc import Mapping
from typing import Any, TypeVar

from abprof.records import messages as wire
from abprof.worker.api import Check, Op, Work, agree

Record = TypeVar("Record", Check, Op, Work)
Presets = Mapping[str, list[tuple[list[str], list[Any]]]]


def described(module: types.ModuleType, name: str, kind: str) -> wire.Described:
    """All that the module `name` declares, on a device of this kind. Raises ValueError where it breaks the contract."""
    api = getattr(module, "API", None)
    if api != 1:
        raise ValueError(f"API is {api!r}; this abprof reads API = 1")
    kernel = module.KERNEL
    presets = {key: preset(axes, kind) for key, axes in module.PRESETS.items()}
    variants = getattr(module, "VARIANTS", None)
    return wire.Described(
        api=api,
        kernel=kernel,
        suite=getattr(module, "SUITE", name),
        text=(inspect.getdoc(module) or "").split("\n")[0],
        judge=getattr(module, "JUDGE", ""),
        presets=presets,
        variants=list(variants or ()),
        peers=list(getattr(module, "PEERS", {})),
        phases=[(key, *spec) for key, spec in getattr(module, "PHASES", {}).items()],
        seed_columns=list(getattr(module, "SEED_COLUMNS", ())),
        scaled=scaled(module, presets),
        ladder=ladder(module),
        sweep=sweep(module, presets),
        default_peers=default_peers(module),
        checked="reference" if hasattr(module, "reference") else "sides",
    )


def preset(axes: Any, kind: str) -> list[tuple[list[str], list[Any]]]:
    """Axes in file order; a tuple key zips axes; a callable preset is asked with the device's kind."""
    if callable(axes):
        axes = axes(kind)
    rows: list[tuple[list[str], list[Any]]] = []
    for key, values in axes.items():
        names = [key] if isinstance(key, str) else list(key)
        rows.append((names, [[value] if isinstance(key, str) else list(value) for value in values]))
        for value in rows[-1][1]:
            if len(value) != len(names):
                raise ValueError(f"PRESETS: {names} zips {len(names)} axes, but has the entry {value}")
    return rows


def scaled(module: types.ModuleType, presets: Presets) -> str:
    """SCALED, "" without one. Raises ValueError for an axis that no preset has."""
    axis = getattr(module, "SCALED", "")
    _known("SCALED", [axis] if axis else [], presets)
    return str(axis)


def ladder(module: types.ModuleType) -> list[str]:
    """LADDER. Raises ValueError for one step, for a step that stands twice, and for one that VARIANTS leaves out."""
    steps = list(getattr(module, "LADDER", ()))
    if steps and (len(steps) < 2 or len(set(steps)) < len(steps)):
        raise ValueError(f"LADDER: {steps} must be two different variants or more")
    if lacking := [step for step in steps if step not in getattr(module, "VARIANTS", steps)]:
        raise ValueError(f"LADDER: {lacking[0]!r} is not in VARIANTS")
    return steps


def sweep(module: types.ModuleType, presets: Presets) -> wire.Sweep | None:
    """SWEEP, None without one. Raises ValueError for an unknown axis and for a band that ends before it begins."""
    told = getattr(module, "SWEEP", None)
    if told is None:
        return None
    _known("SWEEP", told.axes, presets)
    bands = []
    for band in told.bands:
        (low, high), (slow, fast) = map(float, band.density), map(float, band.speedup)
        if not (0 <= low <= high <= 1 and 0 < slow <= fast < math.inf):
            raise ValueError(f"SWEEP: density {low} to {high} with a speed-up of {slow} to {fast} is no band")
        bands.append((low, high, slow, fast))
    return wire.Sweep(list(told.axes), told.density, told.against, bands)


def default_peers(module: types.ModuleType) -> list[str] | None:
    """DEFAULT_PEERS, None without it. Raises ValueError for one that is not in PEERS."""
    names = getattr(module, "DEFAULT_PEERS", None)
    if lacking := [name for name in names or () if name not in getattr(module, "PEERS", {})]:
        raise ValueError(f"DEFAULT_PEERS: {lacking[0]!r} is not in PEERS")
    return None if names is None else list(names)


def facts(module: types.ModuleType, case: Mapping[str, Any], inputs: Any, op: Op) -> dict[str, wire.Value]:
    """What the workload says of the case, and its operation of this arm. Raises ValueError for what is no plain value."""
    told = dict(module.facts(case, inputs)) if hasattr(module, "facts") else {}
    told |= dict(op.facts()) if op.facts else {}
    for name, value in told.items():
        if not isinstance(value, str | int | float | bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"facts: {name} is {value!r}, and must be a str, an int, a finite float or a bool")
    return told


def check(module: types.ModuleType, case: Mapping[str, Any], results: Any, expected: Any) -> Check:
    """The workload's check; without one, whether outputs agree with base's."""
    if hasattr(module, "check"):
        return returned("check", module.check(case, results, expected), Check)
    if hasattr(module, "reference"):
        raise ValueError("a workload with a reference needs a check(case, outputs, expected)")
    return agree(results, expected)


def returned(function: str, value: Any, kind: type[Record]) -> Record:
    """What a workload's function gave. Raises TypeError where it is not the record of abprof.kit that it should be."""
    if not isinstance(value, kind):
        raise TypeError(f"{function} returned {type(value).__name__}, not {kind.__name__} of abprof.kit")
    return value


def nvtx(module: types.ModuleType, case: Mapping[str, Any], arm: str) -> list[str]:
    """Names under which profilers' users look for a call of this variant or peer, from `nvtx(case, arm)`. What that
    raises is printed and costs nothing: these are marks for other tools."""
    try:
        return [str(name) for name in module.nvtx(case, arm or None)] if hasattr(module, "nvtx") else []
    except Exception:  # noqa: BLE001 - the workload's own code
        traceback.print_exc()
        return []


def _known(what: str, axes: Any, presets: Presets) -> None:
    known = {axis for rows in presets.values() for names, _ in rows for axis in names}
    if unknown := [axis for axis in axes if axis not in known]:
        raise ValueError(f"{what}: no preset has an axis {unknown[0]!r}")
