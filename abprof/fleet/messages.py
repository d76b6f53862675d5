"""Executors, and the messages between coordinator and shard workers; contracts: docs/schemas/shard.schema.json, news.schema.json.

A shard is a list of whole cells, with all arms, rounds and epochs under one lease of one device. The process `python -m abprof.fleet
SHARD.json` measures it, wherever it runs, and prints a checksummed line for each piece of news (abprof/system/checksummed.py).
The coordinator alone writes the run's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import msgspec

from abprof.records import (
    UNREADABLE,
    Arm,
    Block,
    Build,
    Ceilings,
    Kernel,
    Machine,
    Proof,
    Record,
    Run,
    Toolchain,
    Touched,
)
from abprof.records.options import File
from abprof.system import checksummed as sealed

DEVICE = "ABPROF_SHARD_DEVICE"  # variable of a machine without GPUs: the device that a shard measures on there
SHARD_SCHEMA = 1
IDLE = 600.0  # seconds that a shard worker waits for a further shard
REPEAT_AFTER = 20.0  # seconds after which a waiting shard worker repeats that its shard has ended


class Shard(Record, frozen=True, kw_only=True):
    """A part of a run that one device measures."""

    schema: int = SHARD_SCHEMA
    number: int  # unique in a run: cells that are measured again are in another shard
    attempt: int = 1  # 2 and 3: its cells were in a shard that was lost
    run: Run  # the head as it stands after building; `cells` are this shard's alone
    file: File | None = None  # abprof.toml as the run began with it
    arms: dict[str, tuple[Arm, ...]]  # cell -> its arms, its control included
    identical: tuple[str, ...] = ()  # cells that load the same bytes on all sides, and are measured as controls
    timers: dict[str, str] = {}  # cell -> what read its turns in this run so far
    blocks: tuple[Block, ...] = ()  # of these cells, of this invocation: they count towards looks
    proofs: tuple[Proof, ...] = ()
    earlier: tuple[Block, ...] = ()  # follow-up measurements of earlier invocations: not repeated
    first: int = 1  # the number of its first epoch
    least: dict[str, int] = {}  # cell -> epochs that it gets at least
    budget: float  # seconds of measuring
    device: str = ""  # the lease's name, a GPU's UUID; "": whichever the machine has
    held: bool = False  # the process that started the shard worker holds the lease
    cpus: tuple[int, ...] = ()  # its own processors, if others measure beside it; (): all
    repository: str  # a path on that machine
    logs: str  # a folder on that machine


class Began(Record, frozen=True, kw_only=True, tag="began"):
    """The first news: the device is leased, and everything is built."""

    shard: int
    device: str  # the lease's name
    machine: Machine
    ceilings: Ceilings | None = None
    toolchains: dict[str, Toolchain] = {}  # by side
    builds: tuple[Build, ...] = ()  # what its workers load


class Measured(Record, frozen=True, kw_only=True, tag="measured"):
    """A block. Its shard and device stand in it."""

    block: Block


class Proved(Record, frozen=True, kw_only=True, tag="proved"):
    """What a worker loaded."""

    proof: Proof


class Loaded(Record, frozen=True, kw_only=True, tag="loaded"):
    """A kernel that a worker compiled or loaded."""

    kernel: Kernel


class Noticed(Record, frozen=True, kw_only=True, tag="noticed"):
    """A file that changed and should not have."""

    touched: Touched


class Said(Record, frozen=True, kw_only=True, tag="said"):
    """A line for a person, and for the log."""

    line: str
    warning: bool = False


class Ended(Record, frozen=True, kw_only=True, tag="ended"):
    """The last news. A shard without it is lost."""

    why: Literal["done", "refused", "interrupted"]  # done: all decided or budget spent; refused: an AbprofError
    reason: str = ""
    seconds: float = 0.0  # of measuring
    lines: int  # of news before this one: shows lines lost on the way
    shard: int = 0  # its number; 0 if unknown


News = Began | Measured | Proved | Loaded | Noticed | Said | Ended


def read_shard(text: bytes) -> Shard:
    """Decode a shard's file. Raises ValueError if this abprof cannot read it."""
    try:
        return msgspec.json.decode(text, type=Shard)
    except UNREADABLE as error:
        raise ValueError(f"not a shard of this abprof: {error}") from None


def read_news(line: bytes) -> News:
    """Decode a line of news. Raises ValueError if it is torn, incoherent or unknown."""
    news: News = sealed.unseal(line.removesuffix(b"\n"), News, "news")
    if isinstance(news, Measured):
        news.block.coherent()
    return news


@dataclass(frozen=True)
class Lost:
    """No more news of a shard: its process is gone, was never started, or is done with it (after `Ended`)."""

    reason: str


class Executor(Protocol):
    """Runs shards, each whole and on one device. It retries nothing: its submitter decides what becomes of lost cells."""

    lasting: bool  # whether a slot stays the same device, so that cells can go on where their blocks are from

    def __enter__(self) -> Self:
        """Raises AbprofError if the executor is not available."""

    def __exit__(self, *error: object) -> None:
        """As `cancel`, and gives back what it holds."""

    def slots(self) -> Sequence[str]:
        """Where shards can run at the same time, one on each: names of leases, or labels of a cluster. May change in a run."""

    def submit(self, shard: Shard, slot: str) -> None:
        """Start the shard's program, with device, repository and log folder of that place. `news` reports failures."""

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        """What came within `timeout` seconds, as (shard's number, line); `Lost` comes once and last for each shard."""

    def cancel(self) -> None:
        """End everything that was started, and wait for that. Safe to call twice, and from ^C."""
