"""Shards through a shared folder: a file that a shard's program reads, and one that it adds lines to, which the parent follows.

What two machines see of a folder of a network file system agrees only where a file is opened anew after the other has closed
or flushed it; so every look opens the file again, and a line counts once its newline is there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from abprof.system import files as disk

ALIVE = "alive"  # touched by the parent as long as it looks; jobs end themselves where it is not


@dataclass
class Mailbox:
    """One shard's files in `folder`. `name` is that of one attempt of one shard, and is never used again."""

    folder: Path
    name: str
    _read: int = field(default=0, init=False)  # bytes of whole lines that were given out

    @property
    def shard(self) -> Path:
        """What the program reads."""
        return self.folder / f"{self.name}.json"

    @property
    def lines(self) -> Path:
        """What it says, a line each."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def log(self) -> Path:
        """What it and its workers print besides."""
        return self.folder / f"{self.name}.log"

    def post(self, shard: bytes) -> None:
        """Put the shard there, on disk before anybody is told of it."""
        with self.shard.open("xb") as file:
            file.write(shard)
            file.flush()
            os.fsync(file.fileno())

    def replace(self, shard: bytes) -> None:
        """Put another in its place, where the program that is to read it has not begun."""
        disk.replace(self.shard, shard)

    def new_lines(self) -> list[bytes]:
        """Whole lines that came since the last look, without their newlines."""
        try:
            with self.lines.open("rb") as file:
                file.seek(self._read)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read += len(whole) + len(newline)
        return whole.split(b"\n") if newline else []

    def last_words(self) -> str:
        """The last line of the log that says anything, "" for none."""
        try:
            text = self.log.read_bytes()[-4000:].decode(errors="replace")
        except OSError:
            return ""
        said = [line.strip() for line in text.splitlines() if line.strip()]
        return said[-1][:300] if said else ""

    def clear(self) -> None:
        """Remove the shard's files."""
        for file in (self.shard, self.lines, self.log):
            file.unlink(missing_ok=True)


def sign_of_life(folder: Path) -> None:
    """The parent is there: to be said again and again."""
    (folder / ALIVE).touch()
