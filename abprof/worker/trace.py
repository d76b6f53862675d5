"""A cell's calls as a trace file of limited size, without folders of this machine: torch's profile for Perfetto, or the
tree of Triton's proton."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from abprof.records import messages as wire
from abprof.worker.api import Op
from abprof.worker.clocks import Clock

_KEPT = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^/\s\"':]+/)+")
_CALL = "abprof_call"
_METADATA = (
    "__proton_launch_metadata"  # kernels by which Triton's hook reads a launch's numbers: proton-viewer drops them
)
_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def write_chrome(raw: Path, target: Path, most_bytes: int) -> int:
    """Write torch's trace file to `target`: the first events in time that fit into `most_bytes`. Names of threads and
    processes stay. Returns how many events were left out.

    Raises OSError, and ValueError when torch's file is no JSON or has no events.
    """
    loose = json.loads(raw.read_text(errors="replace"), parse_constant=lambda _: None)
    events = loose.get("traceEvents") if isinstance(loose, dict) else None
    if not isinstance(events, list) or not events:
        raise ValueError("torch's profiler wrote no events")
    events = sorted((e for e in events if isinstance(e, dict)), key=lambda e: (e.get("ph") != "M", _time(e)))
    head = json.dumps(_plain({key: loose[key] for key in _KEPT if key in loose}))
    head = (head[:-1] + ", " if len(head) > 2 else "{") + '"traceEvents": [\n'
    lines, room = list[str](), most_bytes - len(head) - len("\n]}\n")
    for event in events:
        line = json.dumps(_plain(event))
        room -= len(line) + 2
        if room < 0:
            break
        lines.append(line)
    target.write_text(head + ",\n".join(lines) + "\n]}\n")
    return len(events) - len(lines)


def _time(event: dict[str, Any]) -> float:
    at = event.get("ts")
    return float(at) if isinstance(at, int | float) else 0.0


def _plain(value: Any) -> Any:
    """The same without the folders of absolute paths: `/home/somebody/x/kernel.py` becomes `kernel.py`."""
    if isinstance(value, str):
        return _FOLDERS.sub("", value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def proton(op: Op, calls: int, clock: Clock, discarded: int, target: Path, most_bytes: int) -> wire.Traced:
    """`discarded` calls, then `calls` under proton, whose tree is written to `target`. `missing` has the reason if proton
    fails."""
    for _ in range(discarded):
        if op.reset:
            op.reset()
        op.call()
        clock.sync()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "calls"
        try:
            _profiled(op, calls, clock, made)
        except (ImportError, AttributeError, RuntimeError, ValueError, TypeError, OSError) as error:
            return _failed(f"proton does not work here: {type(error).__name__}: {error}")
        file = made.with_suffix(".hatchet")
        if not file.is_file():
            return _failed("proton wrote no file: it is switched off (PROTON_DISABLE), or another profiler holds CUPTI")
        written = file.read_text(errors="replace")
    try:
        tree = json.loads(written, parse_constant=lambda _: None)
        launches = read_proton(tree, calls)
    except ValueError as error:
        return _failed(f"cannot read proton's file: {error}")
    text = json.dumps(_plain(tree))
    counted = wire.Census(launches, on_device=True)
    if len(text) > most_bytes:
        return wire.Traced(counted, missing=f"its tree has {len(text)} bytes, and at most {most_bytes} are kept")
    target.write_text(text)
    return wire.Traced(counted)


def _profiled(op: Op, calls: int, clock: Clock, made: Path) -> None:
    import triton.profiler

    session = triton.profiler.start(str(made), hook="triton")
    try:
        for _ in range(calls):
            if op.reset:
                op.reset()
            with triton.profiler.scope(_CALL):
                op.call()
            clock.sync()
    finally:
        triton.profiler.finalize(session)


def _failed(why: str) -> wire.Traced:
    return wire.Traced(wire.Census(missing=why), missing=why)


def read_proton(tree: Any, calls: int) -> list[wire.Launch]:
    """What one of `calls` calls launched, by name, with its mean time, from proton's tree (the file that `proton-viewer`
    reads). Raises ValueError for anything else, for a tree without kernels, and if calls differ."""
    found: dict[str, tuple[int, float]] = {}
    for name, count, ns in _kernels(tree[0] if isinstance(tree, list) and tree else None, inside=False):
        before = found.get(name, (0, 0.0))
        found[name] = before[0] + count, before[1] + ns
    if not found:
        raise ValueError("proton recorded no kernel in the calls")
    odd = [name for name, (count, _) in found.items() if count % calls]
    if odd:
        raise ValueError(f"{odd[0][:80]} ran {found[odd[0]][0]} times in {calls} calls: calls differ")
    return [wire.Launch(name, count // calls, ns / calls) for name, (count, ns) in found.items()]


def _kernels(node: Any, *, inside: bool) -> Iterator[tuple[str, int, float]]:
    """(name, times, ns) of every frame inside the calls that has times of its own."""
    if not isinstance(node, dict) or not isinstance(node.get("frame"), dict):
        raise ValueError("not a proton tree")
    name = str(node["frame"].get("name", ""))
    if name == _METADATA:
        return
    metrics, ns = node.get("metrics"), 0.0
    metrics = metrics if isinstance(metrics, dict) else {}
    for key, value in metrics.items():
        what, _, unit = key.rstrip(")").partition(" (")
        if what.lower() == "time" and unit in _UNITS and isinstance(value, int | float):
            ns = value * _UNITS[unit]
    count = metrics.get("count", metrics.get("Count", 0))
    if inside and isinstance(count, int) and count > 0 and ns > 0:  # otherwise a scope without times of its own
        yield name, count, ns
    children = node.get("children")
    for child in children if isinstance(children, list) else ():
        yield from _kernels(child, inside=inside or name == _CALL)
