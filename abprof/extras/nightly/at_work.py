"""A nightly job at work: one at a time, and its heartbeat says so however it ends."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from abprof.devices import lease
from abprof.extras.nightly import heartbeat
from abprof.measure.run_context import Place
from abprof.records.errors import AbprofError, Exit


@contextlib.contextmanager
def alone(place: Place) -> Iterator[None]:
    """One nightly job at a time on a device and a repository. The lock ends with the process, however that ends."""
    where = hashlib.sha256(os.fsencode(place.commits.common_dir)).hexdigest()[:12]
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(
                lease(
                    place.state,
                    f"nightly-{place.device.lease}-{where}",
                    wait=False,
                    label=f"nightly {place.label}",
                    say=lambda _: None,
                )
            )
        except AbprofError as busy:
            what = f"another nightly job is at work: {busy.what}"
            raise AbprofError(
                what, where=str(place.root), advice="nothing is lost: the next one goes on from the same commit"
            ) from None
        yield


@dataclass
class Beat:
    """The heartbeat while the job is at work."""

    place: Place
    record: heartbeat.Heartbeat
    done: tuple[str, int, int] | None = None  # what was done, its exit code, and the newest night that it told of

    def knows(self, newest: int) -> int:
        """The newest night whose result was told. Where that is not known, every night that there is counts as told."""
        if self.record.told is None:
            self.record = msgspec.structs.replace(self.record, told=newest)
            heartbeat.write(self.place.state, self.record)
        return self.record.told or 0

    def end(self, did: str, code: int, told: int = 0) -> None:
        told_ = None if self.record.told is None else max(self.record.told, told)
        over = msgspec.structs.replace(self.record, ended=time.time(), did=did, exit_code=int(code), told=told_)
        heartbeat.write(self.place.state, over)


@contextlib.contextmanager
def beating(place: Place, series: str) -> Iterator[Beat]:
    """Write that the job began, and how it ended, also when it ended in an error."""
    root = str(place.root)
    before = heartbeat.last(place.state, root, series)
    runs_dir = str(place.runs_dir)
    record = heartbeat.Heartbeat(
        series=series,
        repo=root,
        runs_dir=runs_dir,
        began=time.time(),
        last_end=(before.ended or before.last_end) if before else None,
        told=before.told if before and before.runs_dir == runs_dir else None,
    )
    heartbeat.write(place.state, record)
    beat = Beat(place, record)
    try:
        yield beat
    except AbprofError as error:
        beat.end(f"could not: {error.line}", Exit.CANNOT_RUN)
        raise
    except Exception as error:
        beat.end(f"could not: {error!r}", Exit.BUG)
        raise
    if beat.done:
        beat.end(*beat.done)
