"""Record when nightly jobs start and end, so that `abprof doctor` notices a job that no longer runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
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
    """The last start of a nightly job, and how that job ended. Times are in seconds since 1970."""

    series: str
    repo: str
    began: float
    ended: float | None = None  # None: running, or killed
    did: str = ""
    exit_code: int | None = None

    def end(self, did: str, code: int) -> None:
        """Record that the job ends now, what the job did, and its exit code."""
        self.ended, self.did, self.exit_code = time.time(), did, int(code)


@contextmanager
def beating(state: Path, repo: str, series: str) -> Iterator[Heartbeat]:
    """Write a heartbeat when the block (a nightly job) starts and ends. The block reports its result with `end`."""
    beat = Heartbeat(series=series, repo=repo, began=time.time())
    write(state, beat)
    try:
        yield beat
    except AbprofError as error:
        beat.end(f"failed: {error.line}", Exit.CANNOT_RUN)
        raise
    except Exception as error:
        beat.end(f"failed: {error!r}", Exit.BUG)
        raise
    finally:
        write(state, beat)


def write(state: Path, beat: Heartbeat) -> None:
    """Write a heartbeat to the file of its series. Raises AbprofError if the write fails."""
    put(_file(state, beat.repo, beat.series), msgspec.json.format(msgspec.json.encode(beat), indent=1) + b"\n")


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
        hours = min(abs(now - (beat.ended or beat.began)) / 3600, 1e9)
        event = "began" if beat.ended is None else "ended"
        finding = visible(f"{beat.series} of {beat.repo}"[:300]) + f": last {event} {hours:.0f} h ago"
        if beat.ended is not None:
            finding += f", exit code {beat.exit_code}: {visible(beat.did[:300])}"
        failed = beat.ended is not None and beat.exit_code in (Exit.CANNOT_RUN, Exit.BUG)
        fine = hours * 3600 < _LATE and not failed
        yield fine, finding, "" if fine else "check the timer (crontab -l), or run abprof nightly by hand"


def _file(state: Path, repo: str, series: str) -> Path:
    digest = hashlib.sha256(f"{repo}\0{series}".encode(errors="surrogatepass")).hexdigest()[:16]
    return state / FOLDER / f"{digest}.json"
