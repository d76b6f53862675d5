"""How a device's cells scattered, kept for the next run of the same cells: it plans rounds, and no verdict reads it.

One file a device in abprof's state folder, replaced whole while the device's lease is held. It may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from abprof.measure.allocation import Allocation, Scatter
from abprof.records import UNREADABLE, Record
from abprof.system.files import content

SCHEMA = 1
_MOST = 20_000  # cells of one file: the oldest go first


class Kept(Record, frozen=True, kw_only=True):
    """The file."""

    schema: int = SCHEMA
    cells: dict[str, Scatter] = {}


@contextlib.contextmanager
def remembered(
    state: Path, device: str, warn: Callable[[str], None], told: Mapping[str, Scatter] | None = None
) -> Iterator[Allocation]:
    """What earlier runs learnt, for this one; what this one learns is kept however the block ends. Of cells that the device
    never measured, what is `told` of them: another's scatter plans rounds better than none."""
    path = _path(state, device)
    before = _load(path, warn)
    allocation = Allocation({**(told or {}), **before})
    try:
        yield allocation
    finally:
        learnt = allocation.scatters()
        if learnt:
            older = {cell: scatter for cell, scatter in before.items() if cell not in learnt}
            _store(path, dict(list({**older, **learnt}.items())[-_MOST:]), warn)


def earlier(state: Path, devices: Sequence[str], warn: Callable[[str], None]) -> dict[str, Scatter]:
    """What earlier runs learnt on any of these devices: cell -> scatter; of what several know the first one's word. Read alone,
    so that no lease is needed."""
    known: dict[str, Scatter] = {}
    for device in reversed(devices):
        known |= _load(_path(state, device), warn)
    return known


def _path(state: Path, device: str) -> Path:
    return state / "noise" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', device)}.json"


def _load(path: Path, warn: Callable[[str], None]) -> dict[str, Scatter]:
    try:
        kept = msgspec.json.decode(content(path), type=Kept)
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        warn(f"{path} cannot be read, and is begun anew: {error}")
        return {}
    return kept.cells if kept.schema == SCHEMA else {}


def _store(path: Path, cells: dict[str, Scatter], warn: Callable[[str], None]) -> None:
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(msgspec.json.encode(Kept(cells=cells)))
        part.replace(path)
    except OSError as error:  # the run is whole without it
        warn(f"{path} cannot be written: {error.strerror}")
