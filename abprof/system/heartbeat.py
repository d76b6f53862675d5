"""Heartbeats of nightly jobs: one small file per series in the state folder, so that `abprof doctor` sees a job that stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import printable
from abprof.system.files import content, put

FOLDER = "nightly"
_LATE = 36 * 3600.0  # seconds: a night and a half


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The last start of a nightly job, and how it ended. Times in seconds since 1970."""

    series: str
    repo: str
    runs_dir: str
    began: float
    ended: float | None = None  # None: running, or killed
    did: str = ""
    exit_code: int | None = None
    reported: int | None = None  # the newest night whose result was reported; None: unknown
    last_end: float | None = None  # end of the previous job, while this one runs


class Beat:
    """The heartbeat of a running job, written as it changes. Raises AbprofError when the disk refuses."""

    def __init__(self, state: Path, record: Heartbeat) -> None:
        self._state, self._record = state, record
        self._write()

    def _write(self, **changes: Any) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)
        write(self._state, self._record)

    def reported(self, newest: int) -> int:
        """The newest night that was reported. If that is unknown, all nights so far count as reported."""
        if self._record.reported is None:
            self._write(reported=newest)
        return self._record.reported or 0

    def end(self, did: str, code: int, number: int = 0) -> None:
        """The job ended; `number`: the newest night that it reported."""
        reported = self._record.reported
        latest = None if reported is None else max(reported, number)
        self._write(ended=time.time(), did=did, exit_code=int(code), reported=latest)


@contextmanager
def beating(state: Path, repo: str, series: str, runs_dir: str) -> Iterator[Beat]:
    """Write that a job began, and that it failed if the block does. The block calls `end` on success."""
    before = read(state, repo, series)
    last_end = (before.ended or before.last_end) if before else None
    reported = before.reported if before and before.runs_dir == runs_dir else None
    now = time.time()
    record = Heartbeat(series=series, repo=repo, runs_dir=runs_dir, began=now, last_end=last_end, reported=reported)
    beat = Beat(state, record)
    try:
        yield beat
    except AbprofError as error:
        beat.end(f"failed: {error.line}", Exit.CANNOT_RUN)
        raise
    except Exception as error:
        beat.end(f"failed: {error!r}", Exit.BUG)
        raise


def write(state: Path, beat: Heartbeat) -> None:
    """Replace the heartbeat of a series. Raises AbprofError when the disk refuses."""
    put(_file(state, beat.repo, beat.series), msgspec.json.format(msgspec.json.encode(beat), indent=1) + b"\n")


def read(state: Path, repo: str, series: str) -> Heartbeat | None:
    """The heartbeat of a series; None if there is none that can be read."""
    with suppress(OSError, *UNREADABLE):
        return msgspec.json.decode(content(_file(state, repo, series)), type=Heartbeat)
    return None


def examine(state: Path, now: float | None = None) -> Iterator[tuple[bool, str, str]]:
    """(healthy, finding, advice) of each series whose repository still exists."""
    now = time.time() if now is None else now
    by_hand = "run abprof nightly by hand and read its output"
    for file in sorted((state / FOLDER).glob("*.json")):
        try:
            beat = msgspec.json.decode(content(file), type=Heartbeat)
        except (OSError, *UNREADABLE):
            yield False, f"{file}: cannot be read", "remove it; the next night writes a new one"
            continue
        if not _exists(beat.repo):
            continue
        name, end = printable(f"{beat.series} of {beat.repo}", 300), beat.ended or beat.last_end
        if end is None:
            yield now - beat.began < _LATE, f"{name}: never ended", by_hand
            continue
        hours = f"{min(abs(now - end) / 3600, 1e9):.0f} h"
        failed = beat.ended is not None and beat.exit_code in (Exit.CANNOT_RUN, Exit.BUG)
        if end > now + 3600:
            yield False, f"{name}: last ended {hours} from now", "set this machine's clock"
        elif now - end > _LATE:
            yield False, f"{name}: last ended {hours} ago", "check the timer: crontab -l, systemctl --user list-timers"
        elif failed:
            code, did = beat.exit_code, printable(beat.did, 300)
            yield False, f"{name}: last ended {hours} ago, exit code {code}: {did}", by_hand
        else:
            suffix = "" if beat.ended is None else f", exit code {beat.exit_code}"
            yield True, f"{name}: last ended {hours} ago{suffix}", ""


def _exists(path: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(path).exists()
    return False


def _file(state: Path, repo: str, series: str) -> Path:
    digest = hashlib.sha256(f"{repo}\0{series}".encode(errors="surrogatepass")).hexdigest()[:16]
    return state / FOLDER / f"{digest}.json"
