"""Import workload modules, check their declarations, and validate the results of their functions."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from abprof.records import messages as wire
from abprof.worker.api import Check, Op, Work, agree
from abprof.worker.faults import running

Record = TypeVar("Record", Check, Op, Work)
Presets = Mapping[str, list[tuple[list[str], list[Any]]]]


def load(name: str, file: str) -> types.ModuleType:
    """Import a workload file as the module abprof_workloads.NAME, so that relative imports find files beside it."""
    namespace("abprof_workloads", str(Path(file).parent))
    return importlib.import_module(f"abprof_workloads.{name}")


def namespace(name: str, root: str) -> None:
    """Add the folder `root` to the namespace package `name`, which is created if missing."""
    module = sys.modules.setdefault(name, types.ModuleType(name))
    places = list(getattr(module, "__path__", ()))
    if root not in places:
        module.__path__ = [*places, root]


def described(module: types.ModuleType, name: str, kind: str) -> wire.Described:
    """Return what a workload declares on a device of `kind` (cpu, cuda). Raises ValueError if anything is invalid."""
    api = getattr(module, "API", None)
    if api != 1:
        raise ValueError(f"API is {api!r}; this abprof reads API = 1")
    kernel = module.KERNEL
    presets = {key: _preset(axes, kind) for key, axes in module.PRESETS.items()}
    peers, default_peers = tuple(getattr(module, "PEERS", {})), getattr(module, "DEFAULT_PEERS", None)
    if lacking := [peer for peer in default_peers or () if peer not in peers]:
        raise ValueError(f"DEFAULT_PEERS: {lacking[0]!r} is not in PEERS")
    ladder = tuple(getattr(module, "LADDER", ()))
    if ladder and (len(ladder) < 2 or len(set(ladder)) < len(ladder)):
        raise ValueError(f"LADDER: {[*ladder]} must list two or more different variants")
    if lacking := [step for step in ladder if step not in getattr(module, "VARIANTS", ladder)]:
        raise ValueError(f"LADDER: {lacking[0]!r} is not in VARIANTS")
    scaled = getattr(module, "SCALED", "")
    _known("SCALED", [scaled] if scaled else [], presets)
    return wire.Described(
        name=name,
        kernel=kernel,
        suite=getattr(module, "SUITE", name),
        axes=tuple(dict.fromkeys(axis for rows in presets.values() for names, _ in rows for axis in names)),
        variants=tuple(getattr(module, "VARIANTS", None) or ()),
        peers=peers,
        phases=tuple(wire.Phase(key, *spec) for key, spec in getattr(module, "PHASES", {}).items()),
        seed_columns=tuple(getattr(module, "SEED_COLUMNS", ())),
        scaled=str(scaled),
        ladder=ladder,
        sweep=_sweep(module, presets),
        checked="reference" if hasattr(module, "reference") else "sides",
        text=(inspect.getdoc(module) or "").split("\n")[0],
        presets=presets,
        declared_judge=getattr(module, "JUDGE", ""),
        default_peers=None if default_peers is None else list(default_peers),
    )


def _preset(axes: Any, kind: str) -> list[tuple[list[str], list[Any]]]:
    rows = []
    for key, values in (axes(kind) if callable(axes) else axes).items():
        single = isinstance(key, str)
        names, points = [key] if single else list(key), [[value] if single else list(value) for value in values]
        if odd := [point for point in points if len(point) != len(names)]:
            raise ValueError(f"PRESETS: an entry of {names} needs {len(names)} values, but one is {odd[0]}")
        rows.append((names, points))
    return rows


def _sweep(module: types.ModuleType, presets: Presets) -> wire.Sweep | None:
    sweep = getattr(module, "SWEEP", None)
    if sweep is None:
        return None
    _known("SWEEP", sweep.axes, presets)
    bands = []
    for band in sweep.bands:
        (low, high), (slow, fast) = map(float, band.density), map(float, band.speedup)
        if not (0 <= low <= high <= 1 and 0 < slow <= fast < math.inf):
            what = f"density {low} to {high} (within 0 to 1), speed-up {slow} to {fast} (above 0)"
            raise ValueError(f"SWEEP: invalid band: {what}")
        bands.append(wire.Band((low, high), (slow, fast)))
    return wire.Sweep(tuple(sweep.axes), tuple(bands), sweep.density, sweep.against)


def _known(what: str, axes: Any, presets: Presets) -> None:
    known = {axis for rows in presets.values() for names, _ in rows for axis in names}
    if unknown := [axis for axis in axes if axis not in known]:
        raise ValueError(f"{what}: no preset has an axis {unknown[0]!r}")


def facts(module: types.ModuleType, case: Mapping[str, Any], inputs: Any, op: Op) -> dict[str, wire.Value]:
    """Return what facts() of workload and operation give; ValueError unless each is a str, bool, int or finite
    float."""
    found = dict(module.facts(case, inputs)) if hasattr(module, "facts") else {}
    found |= dict(op.facts()) if op.facts else {}
    for name, value in found.items():
        if not isinstance(value, str | int | float | bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"facts: {name} is {value!r}, and must be a str, an int, a finite float or a bool")
    return found


def check(module: types.ModuleType, case: Mapping[str, Any], results: Any, expected: Any) -> Check:
    """Run the workload's check; if it has none, compare `results` with the other side's outputs (`expected`)."""
    with running(module, "check"):
        if hasattr(module, "check"):
            return returned("check", module.check(types.MappingProxyType(case), results, expected), Check)
        if hasattr(module, "reference"):
            raise ValueError("a workload with a reference needs a check(case, outputs, expected)")
        return agree(results, expected)


def returned(function: str, value: Any, kind: type[Record]) -> Record:
    """Return `value`, which the workload's `function` returned. Raises TypeError if `value` is not a `kind`."""
    if not isinstance(value, kind):
        made = {"prepare": "Op(call)", "check": "compare(outputs, expected, rtol=..., atol=...)"}.get(function)
        advice = f": return {made}" if made else ""
        raise TypeError(f"{function} returned {type(value).__name__}, not {kind.__name__} of abprof.kit{advice}")
    return value


def nvtx_names(module: types.ModuleType, case: Mapping[str, Any], arm: str) -> list[str]:
    """Return the workload's own NVTX names for calls of `arm` (a variant or peer); [] if its `nvtx` fails."""
    try:
        return [str(name) for name in module.nvtx(case, arm or None)] if hasattr(module, "nvtx") else []
    except Exception:  # noqa: BLE001 - the workload's own code
        traceback.print_exc()
        return []
