"""What a Slurm job runs, and the shared folder through which it and its coordinator talk.

`python -m abprof.fleet.slurm_job FOLDER NAME` measures the shard in FOLDER/NAME.json and appends its news to FOLDER/NAME.jsonl. It
measures nothing if the queue starts it a second time (after a preemption, or the loss of a node): the coordinator counts that
shard as lost and submits the rest anew. It ends once the coordinator has been silent for ten minutes, so that killing abprof on
the login node leaves no job behind.

Two machines agree on a file of a network file system only if one opens it after the other has closed or flushed it: so every look
opens the file again, and a line counts once its newline is there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from abprof.fleet.messages import DEVICE, read_shard
from abprof.system import checksummed as sealed
from abprof.system import files

ALIVE = "alive"  # file that the coordinator touches as long as it looks
_ALONE_AFTER = 600.0  # seconds without a touch after which a job ends
_LOOKS_EVERY = 10.0


@dataclass
class Mailbox:
    """The files of one attempt of one shard in `folder`. No `name` is used twice."""

    folder: Path
    name: str
    _read: int = field(default=0, init=False)  # bytes of whole lines that were returned

    @property
    def shard(self) -> Path:
        """The shard."""
        return self.folder / f"{self.name}.json"

    @property
    def lines(self) -> Path:
        """Its news, a line each."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def log(self) -> Path:
        """Everything else that the job prints."""
        return self.folder / f"{self.name}.log"

    def post(self, shard: bytes) -> None:
        """Write the shard, on disk before a job is submitted. Raises FileExistsError for a second one."""
        with self.shard.open("xb") as file:
            file.write(shard)
            file.flush()
            os.fsync(file.fileno())

    def new_lines(self) -> list[bytes]:
        """Return whole lines since the last look, without their newlines."""
        try:
            with self.lines.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read += len(whole) + len(newline)
        return whole.split(b"\n") if newline else []

    def last_words(self) -> str:
        """Return the last non-empty line of the log, "" if there is none."""
        try:
            text = self.log.read_bytes()[-4000:].decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


def main(argv: list[str]) -> int:
    """Return the exit code of the shard worker."""
    folder, box = Path(argv[0]), Mailbox(Path(argv[0]), argv[1])
    _append_to(box.log, 2)
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0:
        print("started a second time by the queue: the rest of this shard is submitted anew", file=sys.stderr)
        return 0
    with contextlib.suppress(OSError):  # by the clock of the folder's server
        box.log.touch()
        if box.log.stat().st_mtime - (folder / ALIVE).stat().st_mtime > _ALONE_AFTER:
            print(f"abprof was silent for {_ALONE_AFTER:.0f} s before this job: nothing is measured", file=sys.stderr)
            return 1
    _append_to(box.lines, 1)
    if DEVICE in os.environ:
        shard = msgspec.structs.replace(read_shard(box.shard.read_bytes()), device=os.environ[DEVICE])
        files.replace(box.shard, sealed.dump(shard))
    threading.Thread(target=_end_when_alone, args=(folder / ALIVE,), daemon=True).start()
    from abprof.fleet.__main__ import main as measure

    return measure([str(box.shard)])


def _append_to(path: Path, descriptor: int) -> None:
    """Send what this process and its children write to `descriptor` to the end of a file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, descriptor)
    os.close(file)


def _end_when_alone(alive: Path) -> None:
    """Send SIGTERM to this process once `alive` has not been touched for long, by this machine's clock alone."""
    last, since = 0.0, time.monotonic()
    while time.monotonic() - since < _ALONE_AFTER:
        time.sleep(_LOOKS_EVERY)
        now = last
        with contextlib.suppress(OSError):  # an unreadable folder shows no touch
            now = alive.stat().st_mtime
        if now != last:
            last, since = now, time.monotonic()
    print(f"abprof was silent for {_ALONE_AFTER:.0f} s: ended", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
