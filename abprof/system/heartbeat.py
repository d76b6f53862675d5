"""Record how nightly jobs end, so that `abprof doctor` notices a job that no longer runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from abprof.records import UNREADABLE
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible
from abprof.system.files import put

FOLDER = "nightly"
_LATE = 36 * 3600.0  # seconds: a night and a half


class Heartbeat(msgspec.Struct, kw_only=True):
    """How the last nightly job of a series ended. `ended`: seconds since 1970."""

    series: str
    repo: str
    ended: float
    did: str
    exit_code: int


@contextmanager
def beating(state: Path, repo: str, series: str) -> Iterator[Callable[[str, int], None]]:
    """Yield a function that writes the heartbeat of a nightly job, given what the job did and its exit code. Write it
    also if the block raises an error."""

    def ended(did: str, code: int) -> None:
        write(state, Heartbeat(series=series, repo=repo, ended=time.time(), did=did, exit_code=int(code)))

    try:
        yield ended
    except AbprofError as error:
        ended(f"failed: {error.line}", Exit.CANNOT_RUN)
        raise
    except Exception as error:
        ended(f"failed: {error!r}", Exit.BUG)
        raise


def write(state: Path, beat: Heartbeat) -> None:
    """Write a heartbeat to the file of its series. Raises AbprofError if the write fails."""
    series = hashlib.sha256(f"{beat.repo}\0{beat.series}".encode(errors="surrogatepass")).hexdigest()[:16]
    put(state / FOLDER / f"{series}.json", msgspec.json.format(msgspec.json.encode(beat), indent=1) + b"\n")


def examine(state: Path, now: float | None = None) -> Iterator[tuple[bool, str, str]]:
    """Yield (healthy, finding, advice) for each nightly series. `now`: seconds since 1970, or None for now."""
    now = time.time() if now is None else now
    for file in sorted((state / FOLDER).glob("*.json")):
        try:
            beat = msgspec.json.decode(file.read_bytes(), type=Heartbeat)
            if not Path(beat.repo).exists():
                continue
        except (OSError, ValueError, *UNREADABLE):
            yield False, f"{file}: cannot be read", "remove this file; the next nightly job writes a new one"
            continue
        hours = min(abs(now - beat.ended) / 3600, 1e9)
        series, did = (visible(text[:300]) for text in (f"{beat.series} of {beat.repo}", beat.did))
        fine = hours * 3600 < _LATE and beat.exit_code not in (Exit.CANNOT_RUN, Exit.BUG)
        advice = "" if fine else "check the timer (crontab -l), or run abprof nightly by hand"
        yield fine, f"{series}: last ended {hours:.0f} h ago, exit code {beat.exit_code}: {did}", advice
