"""What a batch job runs: a shard's program, whose lines go into a file of a shared folder.

`python -m abprof.fleet.batch FOLDER NAME` measures FOLDER/NAME.json. It ends without measuring anything where the queue starts
it a second time (after a preemption, or the loss of a node): its parent has told that shard as lost, and what is left of it
travels anew. And it ends where nothing is heard of the parent any more: kill -9 of abprof on the login node leaves no job that
goes on for nobody.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from abprof.fleet.mailbox import ALIVE, Mailbox
from abprof.fleet.messages import DEVICE, read_shard
from abprof.system import checksummed as sealed

_ALONE_AFTER = 600.0  # seconds without a sign of life
_LOOKS_EVERY = 10.0
AGAIN = "started a second time by the queue: what is left of this shard travels anew"

LEFT = f"nothing was heard of abprof for {_ALONE_AFTER:.0f} s before this job began: nothing is measured"


def main(argv: list[str], environ: Mapping[str, str] = os.environ) -> int:
    """The exit code of the shard's program."""
    folder, name = Path(argv[0]), argv[1]
    box = Mailbox(folder, name)
    _into(box.log, 2)
    if int(environ.get("SLURM_RESTART_COUNT", "0")) > 0:
        print(AGAIN, file=sys.stderr)
        return 0
    if _left(box):
        print(LEFT, file=sys.stderr)
        return 1
    _into(box.lines, 1)
    if DEVICE in environ:
        box.replace(sealed.dump(msgspec.structs.replace(read_shard(box.shard.read_bytes()), device=environ[DEVICE])))
    threading.Thread(target=_end_when_alone, args=(folder / ALIVE,), daemon=True).start()
    from abprof.fleet.__main__ import main as program

    return program([str(box.shard)])


def _into(path: Path, descriptor: int) -> None:
    """What this process and its children write to `descriptor` is added to a file from now on."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(file, descriptor)
    os.close(file)


def _left(box: Mailbox) -> bool:
    """Whether the parent was gone long before this job began, by the clock of the folder's server."""
    box.log.touch()
    with contextlib.suppress(OSError):
        return box.log.stat().st_mtime - (box.folder / ALIVE).stat().st_mtime > _ALONE_AFTER
    return False


def _end_when_alone(alive: Path) -> None:
    """SIGTERM to this process once `alive` has not been touched for long, by this machine's clock alone."""
    last, since = 0.0, time.monotonic()
    while time.monotonic() - since < _ALONE_AFTER:
        time.sleep(_LOOKS_EVERY)
        now = last
        with contextlib.suppress(OSError):  # a folder that cannot be asked gives no sign
            now = alive.stat().st_mtime
        if now != last:
            last, since = now, time.monotonic()
    print(f"nothing was heard of abprof for {_ALONE_AFTER:.0f} s: ended", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
