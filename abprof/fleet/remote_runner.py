"""Runs a shard on a machine that shares no folder with the run: unpacks its bundle, starts the shard worker, collects its news."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from abprof.fleet.bundle import Bundle, edition, here, unpack
from abprof.fleet.messages import DEVICE, Shard
from abprof.records.errors import AbprofError
from abprof.system import checksummed as sealed
from abprof.system import locks, paths
from abprof.system.processes import ALIVE_EVERY, Program, WorkerDied

_LOG_LIMIT = 1 << 20  # bytes of a log that come back, its last


class RemoteRunner:
    """One shard worker. It ends with the process that made this object."""

    def __init__(self, shard: Shard, bundle: Bundle, fetch: Callable[[], bytes], env: Mapping[str, str]) -> None:
        """`fetch` returns the bundle's bytes if this machine lacks it; `env` is the worker's environment.

        Raises AbprofError if the shard cannot begin here.
        """
        if bundle.abprof != edition():
            what = f"this machine has another abprof ({edition()}) than the run ({bundle.abprof})"
            raise AbprofError(what, where=sys.executable, advice="install the same on every node")
        self._folder = paths.cache_dir() / "landed" / secrets.token_hex(6)
        while not locks.hold(self._lock):  # a sweep held it in the moment it was made
            self._folder = self._folder.with_name(secrets.token_hex(6))
        self._logs = self._folder / "logs"
        try:
            self._logs.mkdir(parents=True)
            home = unpack(paths.cache_dir(), bundle, fetch)
            placed = msgspec.structs.replace(
                shard,
                run=here(shard.run, bundle, home),
                device=env.get(DEVICE, ""),
                held=False,
                repository=str(home),
                logs=str(self._logs),
            )
            file = self._logs.parent / "shard.json"
            file.write_bytes(sealed.dump(placed))
            argv = [sys.executable, "-P", "-m", "abprof.fleet", str(file), "--with", str(os.getpid())]
            self._program = Program(argv, env=env, log=self._logs / "program.log")
        except (WorkerDied, OSError) as died:
            self._put_away()
            raise AbprofError(str(died), where="shard worker") from died
        except BaseException:
            self._put_away()
            raise

    def lines(self, seconds: float) -> tuple[list[bytes], str | None]:
        """Return the lines of this time, at once when there are some, and how the worker ended, None before."""
        end = time.monotonic() + seconds
        while True:
            select.select([self._program], [], [], max(0.0, min(ALIVE_EVERY, end - time.monotonic())))
            gone = self._program.gone  # before the last lines are taken
            found = self._program.lines()
            if gone is not None or found or time.monotonic() >= end:
                return found, self._last_words(gone)

    def logs(self) -> dict[str, bytes]:
        """Return the worker's logs, by their paths in the shard's folder of logs."""
        files = (path for path in sorted(self._logs.rglob("*")) if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self._logs)): path.read_bytes()[-_LOG_LIMIT:] for path in files}

    def end(self, grace: float) -> None:
        """End the worker, letting it clean up for `grace` seconds. Safe to call twice."""
        self._program.ask_to_end()
        self._program.end(grace)
        self._put_away()

    @property
    def _lock(self) -> Path:
        """Held as long as this process lives; `sides.sweep` removes a folder whose lock is free."""
        return self._folder.with_name(f"{self._folder.name}.lock")

    def _put_away(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        locks.drop(self._lock)

    def _last_words(self, gone: str | None) -> str | None:
        """How it ended, with its last line on standard error."""
        if gone is None:
            return None
        said = (self._logs / "program.log").read_text(errors="replace").strip().split("\n")[-1]
        return f"{gone}: {said}" if said else gone
