"""A cell's calls under Triton's own profiler: its tree as a file, and what the calls launched."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from abprof.records import messages as wire
from abprof.worker.api import Op
from abprof.worker.chrome import plain
from abprof.worker.clocks import Clock

_CALL = "abprof_call"
_METADATA = (
    "__proton_launch_metadata"  # kernels by which Triton's hook asks for a launch's numbers: proton-viewer drops them
)
_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def traced(op: Op, calls: int, clock: Clock, discarded: int, target: Path, most_bytes: int) -> wire.Traced:
    """`discarded` calls, and then `calls` of them under proton, whose tree is written to `target` without folders of this
    machine. Where proton does not work here it says why, and there is no file."""
    for _ in range(discarded):
        _call(op, clock)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "calls"
        try:
            _profiled(op, calls, clock, made)
        except (ImportError, AttributeError, RuntimeError, ValueError, TypeError, OSError) as error:
            return _none(f"proton does not work here: {type(error).__name__}: {error}")
        file = made.with_suffix(".hatchet")
        if not file.is_file():
            return _none("proton wrote no file: it is switched off (PROTON_DISABLE), or another profiler holds CUPTI")
        written = file.read_text(errors="replace")
    try:
        tree = json.loads(written, parse_constant=lambda _: None)
        launches = read(tree, calls)
    except ValueError as error:
        return _none(f"what proton wrote cannot be read: {error}")
    text = json.dumps(plain(tree))
    census = wire.Census(launches, on_device=True)
    if len(text) > most_bytes:
        return wire.Traced(census, missing=f"its tree has {len(text)} bytes, and at most {most_bytes} are kept")
    target.write_text(text)
    return wire.Traced(census)


def _profiled(op: Op, calls: int, clock: Clock, made: Path) -> None:
    import triton.profiler as proton

    session = proton.start(str(made), hook="triton")
    try:
        for _ in range(calls):
            if op.reset:
                op.reset()
            with proton.scope(_CALL):
                op.call()
            clock.sync()
    finally:
        proton.finalize(session)


def _call(op: Op, clock: Clock) -> None:
    if op.reset:
        op.reset()
    op.call()
    clock.sync()


def _none(why: str) -> wire.Traced:
    return wire.Traced(wire.Census(missing=why), missing=why)


def read(tree: Any, calls: int) -> list[wire.Launch]:
    """What one of `calls` calls launched, by name, from proton's tree (the file that `proton-viewer` reads): times of each name
    and their mean time. Raises ValueError for what is no such tree, for one without kernels, and where calls differ."""
    found: dict[str, tuple[int, float]] = {}
    for name, count, ns in _kernels(tree[0] if isinstance(tree, list) and tree else None, inside=False):
        before = found.get(name, (0, 0.0))
        found[name] = before[0] + count, before[1] + ns
    if not found:
        raise ValueError("proton saw no kernel in the calls")
    odd = [name for name, (count, _) in found.items() if count % calls]
    if odd:
        raise ValueError(f"{odd[0][:80]} ran {found[odd[0]][0]} times in {calls} calls: calls differ")
    return [wire.Launch(name, count // calls, ns / calls) for name, (count, ns) in found.items()]


def _kernels(node: Any, *, inside: bool) -> Iterator[tuple[str, int, float]]:
    """(name, times, ns) of every frame below that has times of its own, in the calls alone."""
    if not isinstance(node, dict) or not isinstance(node.get("frame"), dict):
        raise ValueError("not a tree of proton's")
    name = str(node["frame"].get("name", ""))
    if name == _METADATA:
        return
    metrics = node.get("metrics")
    count, ns = _numbers(metrics if isinstance(metrics, dict) else {})
    if inside and count:
        yield name, count, ns
    children = node.get("children")
    for child in children if isinstance(children, list) else ():
        yield from _kernels(child, inside=inside or name == _CALL)


def _numbers(metrics: dict[str, Any]) -> tuple[int, float]:
    """How often, and ns in all; (0, 0) for a scope that has only what lies below it."""
    ns = 0.0
    for key, value in metrics.items():
        what, _, unit = key.rstrip(")").partition(" (")
        if what.lower() == "time" and unit in _UNITS and isinstance(value, int | float):
            ns = value * _UNITS[unit]
    count = metrics.get("count", metrics.get("Count", 0))
    return (count, ns) if isinstance(count, int) and count > 0 and ns > 0 else (0, 0.0)
