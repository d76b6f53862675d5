"""A shard on a machine that shares no folder with the run: it is unloaded, its program started, and its lines are taken here."""

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

from abprof.fleet.bundle import Cargo, edition, here, unload
from abprof.fleet.messages import DEVICE, Shard
from abprof.records.errors import AbprofError
from abprof.system import checksummed as sealed
from abprof.system import locks as leases
from abprof.system import paths
from abprof.system.processes import ALIVE_EVERY, Program, WorkerDied

_LOG_LIMIT = 1 << 20  # bytes of a log that come back, its last


class Landing:
    """One program. Whoever made this process can be gone at any time, and the program ends then."""

    def __init__(self, shard: Shard, cargo: Cargo, fetch: Callable[[], bytes], env: Mapping[str, str]) -> None:
        """`fetch` gives the cargo's bundle where this machine has it not; `env` is the program's environment.

        Raises AbprofError where the shard cannot be begun here.
        """
        if cargo.abprof != edition():
            what = f"this machine has another abprof ({edition()}) than the run ({cargo.abprof})"
            raise AbprofError(what, where=sys.executable, advice="install the same on every node")
        self._folder = paths.cache_dir() / "landed" / secrets.token_hex(6)
        while not leases.hold(self._lock):  # somebody who sweeps had it in hand in the moment it was made
            self._folder = self._folder.with_name(secrets.token_hex(6))
        self._logs = self._folder / "logs"
        try:
            self._logs.mkdir(parents=True)
            home = unload(paths.cache_dir(), cargo, fetch)
            placed = msgspec.structs.replace(
                shard,
                run=here(shard.run, cargo, home),
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
            raise AbprofError(str(died), where="a shard's program") from died
        except BaseException:
            self._put_away()
            raise

    def lines(self, seconds: float) -> tuple[list[bytes], str | None]:
        """What came within this time, at once when something did, and how the program ended, once it has."""
        end = time.monotonic() + seconds
        while True:
            select.select([self._program], [], [], max(0.0, min(ALIVE_EVERY, end - time.monotonic())))
            gone = self._program.gone  # before the last lines are taken
            found = self._program.lines()
            if gone is not None or found or time.monotonic() >= end:
                return found, self._last_words(gone)

    def logs(self) -> dict[str, bytes]:
        """The program's and its workers' logs, by their paths in the shard's folder of logs."""
        files = (path for path in sorted(self._logs.rglob("*")) if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self._logs)): path.read_bytes()[-_LOG_LIMIT:] for path in files}

    def end(self, grace: float) -> None:
        """End the program, in an orderly way if it does so within `grace` seconds. Safe to call twice."""
        self._program.ask_to_end()
        self._program.end(grace)
        self._put_away()

    @property
    def _lock(self) -> Path:
        """Held as long as this process lives: what nobody holds, the next shard here removes (abprof/sides/worktrees.py)."""
        return self._folder.with_name(f"{self._folder.name}.lock")

    def _put_away(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        leases.drop(self._lock)

    def _last_words(self, gone: str | None) -> str | None:
        """How it ended, with the last line that it left on standard error."""
        if gone is None:
            return None
        said = (self._logs / "program.log").read_text(errors="replace").strip().split("\n")[-1]
        return f"{gone}: {said}" if said else gone
