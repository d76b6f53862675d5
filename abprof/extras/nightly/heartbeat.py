"""A file per series in the state folder that says when its nightly job last came to an end: a timer that stopped is seen."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from abprof.records import UNREADABLE, Record
from abprof.records.errors import Exit
from abprof.records.visible import printable
from abprof.system.files import content, put

FOLDER = "nightly"
LATE = 36 * 3600.0  # seconds: a night and a half


class Heartbeat(Record, frozen=True, kw_only=True):
    """The last time that the job ran. Times in seconds since 1970."""

    series: str
    repo: str
    runs_dir: str
    began: float
    ended: float | None = None  # None: it is at work, or was killed
    did: str = ""
    exit_code: int | None = None
    told: int | None = None  # the newest night whose result was told; None: not known
    last_end: float | None = None  # of the time before, while this one has not ended


def write(state: Path, beat: Heartbeat) -> None:
    """Replace the series' file. Raises AbprofError when the disk refuses."""
    put(_file(state, beat.repo, beat.series), msgspec.json.format(msgspec.json.encode(beat), indent=1) + b"\n")


def last(state: Path, repo: str, series: str) -> Heartbeat | None:
    """What the file says; None where there is none that can be read."""
    with suppress(OSError, *UNREADABLE):
        return msgspec.json.decode(content(_file(state, repo, series)), type=Heartbeat)
    return None


def examine(state: Path, now: float | None = None) -> Iterator[tuple[bool, str, str]]:
    """(in order, what was seen, advice) of each series whose repository is still there."""
    now = time.time() if now is None else now
    for file in sorted((state / FOLDER).glob("*.json")):
        try:
            beat = msgspec.json.decode(content(file), type=Heartbeat)
        except (OSError, *UNREADABLE):
            yield False, f"{file}: cannot be read", "remove it; the next night writes it anew"
            continue
        if not _there(beat.repo):
            continue
        name, end = printable(f"{beat.series} of {beat.repo}", 300), beat.ended or beat.last_end
        if end is None:
            yield (
                now - beat.began < LATE,
                f"{name}: never came to an end",
                "run abprof nightly by hand and read what it says",
            )
        elif end > now + 3600:
            yield False, f"{name}: last ended {_hours(end - now)} h from now", "set this machine's clock"
        elif now - end > LATE:
            advice = "is the timer on? systemctl --user list-timers, crontab -l"
            yield False, f"{name}: last ended {_hours(now - end)} h ago", advice
        else:
            code = beat.exit_code if beat.ended else None
            said = f"{name}: last ended {_hours(now - end)} h ago{'' if code is None else f', exit code {code}'}"
            if code in (Exit.CANNOT_RUN, Exit.BUG):
                yield False, f"{said}: {printable(beat.did, 300)}", "run abprof nightly by hand and read what it says"
            else:
                yield True, said, ""


def _hours(seconds: float) -> str:
    return f"{min(seconds / 3600, 1e9):.0f}"


def _there(path: str) -> bool:
    with suppress(OSError, ValueError):  # no path at all: it is in no file that we wrote
        return Path(path).exists()
    return False


def _file(state: Path, repo: str, series: str) -> Path:
    digest = hashlib.sha256(f"{repo}\0{series}".encode(errors="surrogatepass")).hexdigest()[:16]
    return state / FOLDER / f"{digest}.json"
