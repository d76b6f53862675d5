"""torch's profile as a Chrome trace: what Perfetto needs of it, without folders of this machine, and of limited size."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_KEPT = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds")
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^/\s\"':]+/)+")


def write(raw: Path, target: Path, most_bytes: int) -> int:
    """Write torch's file to `target`, at most so many bytes: the first events in time. Returns how many were left out.

    Raises OSError, and ValueError when torch's file is no JSON or has no events.
    """
    loose = json.loads(raw.read_text(errors="replace"), parse_constant=lambda _: None)
    text, left_out = limited(loose, most_bytes)
    target.write_text(text)
    return left_out


def limited(loose: Any, most_bytes: int) -> tuple[str, int]:
    """A trace as ASCII text of at most so many bytes, and how many events that leaves out. Names of threads and
    processes stay. Raises ValueError when it has no events."""
    events = loose.get("traceEvents") if isinstance(loose, dict) else None
    if not isinstance(events, list) or not events:
        raise ValueError("torch's profiler wrote no events")
    events = sorted((e for e in events if isinstance(e, dict)), key=lambda e: (e.get("ph") != "M", _time(e)))
    head = json.dumps(plain({key: loose[key] for key in _KEPT if key in loose}))
    head = (head[:-1] + ", " if len(head) > 2 else "{") + '"traceEvents": [\n'
    lines, room = list[str](), most_bytes - len(head) - len("\n]}\n")
    for event in events:
        line = json.dumps(plain(event))
        room -= len(line) + 2
        if room < 0:
            break
        lines.append(line)
    return head + ",\n".join(lines) + "\n]}\n", len(events) - len(lines)


def plain(value: Any) -> Any:
    """The same without the folders of absolute paths: `/home/somebody/x/kernel.py` becomes `kernel.py`."""
    if isinstance(value, str):
        return _FOLDERS.sub("", value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def _time(event: dict[str, Any]) -> float:
    at = event.get("ts")
    return float(at) if isinstance(at, int | float) else 0.0
