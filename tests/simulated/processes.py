"""Looking after processes: who was noted by the simulated workers of a scenario, and who still lives."""

from __future__ import annotations

import time
from pathlib import Path


def noted(scenario: Path, what: str = "") -> list[int]:
    """Process ids that workers noted beside the scenario: their own (`worker`), what they forked (`fork`, `daemon`)."""
    notes = scenario.with_name(f"{scenario.name}.pids")
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [int(line.split()[0]) for line in lines if line.split()[1].startswith(what)]


def alive(pid: int, wait: float = 0.0) -> bool:
    """Whether the process still runs after at most `wait` seconds. One that only waits to be reaped is dead."""
    end = time.monotonic() + wait
    while (living := _state(pid) not in ("", "Z", "X")) and time.monotonic() < end:
        time.sleep(0.01)
    return living


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
