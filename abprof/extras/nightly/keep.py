"""What is kept of old nights. run.json and report.md stay for ever, so that the index can always be made again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from abprof.extras.history.index import Row

STAY = frozenset({"run.json", "report.md", ".gitignore"})


@dataclass(frozen=True)
class Keep:
    """How long a night's rounds, logs, traces, tables and pages are kept."""

    days: float = 30.0
    gib: float = 20.0  # of all nights of the series together
    nights: int = 10  # the newest so many are never touched


def prune(runs_dir: Path, nights: Sequence[Row], keep: Keep, now: datetime | None = None) -> list[str]:
    """Remove what is too old, and of the oldest nights what is too much. `nights` of one series, in their order; a line
    for each that was cut down. A night whose date cannot be read, or lies ahead, is not old."""
    limit = (now or datetime.now(UTC)) - timedelta(days=keep.days)
    numbers = sorted({night.number for night in nights})[-keep.nights :] if keep.nights else []
    loose = [night for night in nights if night.number not in numbers]
    lines = [line for night in loose if _began(night) < limit for line in _cut(runs_dir / night.folder, "its age")]
    total = sum(_size(runs_dir / night.folder) for night in nights)
    for night in loose:
        if total <= keep.gib * 2**30:
            break
        before = _size(runs_dir / night.folder)
        lines += _cut(runs_dir / night.folder, "the size of all nights")
        total -= before - _size(runs_dir / night.folder)
    return lines


def _began(night: Row) -> datetime:
    with suppress(ValueError):
        when = datetime.fromisoformat(night.began)
        return when if when.tzinfo else when.replace(tzinfo=UTC)
    return datetime.max.replace(tzinfo=UTC)


def _cut(folder: Path, why: str) -> list[str]:
    extra = [path for path in folder.iterdir() if path.name not in STAY] if folder.is_dir() else []
    for path in extra:
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    return [f"{folder.name}: rounds, logs and pages removed because of {why}"] if extra else []


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total
