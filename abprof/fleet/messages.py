"""What travels: a shard, and the news of it. Both are contracts (docs/schemas/shard.schema.json, news.schema.json).

A shard is a list of whole cells, with all arms, turns and epochs under one lease of one device. A program of its own
measures it, `python -m abprof.fleet SHARD.json`, wherever that runs, and prints a sealed line for each piece of news
(abprof/system/checksummed.py). Nothing else may print there. The parent is the only writer of the run's folder.
"""

from __future__ import annotations

from typing import Literal

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

DEVICE = "ABPROF_SHARD_DEVICE"  # of a machine without GPUs: what a shard measures on there
SHARD_SCHEMA = 1
IDLE = 600.0  # seconds that a program waits for a further shard
SAID_AGAIN = 20.0  # seconds after which a program that waits says once more that its shard has ended


class Shard(Record, frozen=True, kw_only=True):
    """A part of a run that one device measures."""

    schema: int = SHARD_SCHEMA
    number: int  # no two of a run have the same: cells that are measured again are in another shard
    attempt: int = 1  # 2 and 3: its cells were in a shard that was lost
    run: Run  # the head as it stands after building; `cells` are this shard's alone
    file: File | None = None  # abprof.toml as the run began with it
    arms: dict[str, tuple[Arm, ...]]  # cell -> who takes turns in it, its control among them
    identical: tuple[str, ...] = ()  # cells that load the same bytes on all sides, and are measured as controls
    timers: dict[str, str] = {}  # cell -> what read its turns in this run so far
    blocks: tuple[Block, ...] = ()  # of these cells, of this invocation: what plans their looks
    proofs: tuple[Proof, ...] = ()
    earlier: tuple[Block, ...] = ()  # of earlier invocations, timed after all epochs: that is not timed again
    first: int = 1  # the number of its first epoch
    least: dict[str, int] = {}  # cell -> epochs that it gets, whatever the shard's own plan says
    budget: float  # seconds of measuring
    device: str = ""  # the lease's name, a GPU's UUID; "": the one that the place gives it
    held: bool = False  # whoever started the program holds the lease for it
    cpus: tuple[int, ...] = ()  # the processors that are its own, where others measure beside it; (): all
    repository: str  # a path where the program runs
    logs: str  # a folder there


class Began(Record, frozen=True, kw_only=True, tag="began"):
    """The first news: where it is measured. The device is leased, and everything is built."""

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
    """What a worker had loaded."""

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
    """The last news. A program that goes without it is lost."""

    why: Literal[
        "done", "refused", "interrupted"
    ]  # done: all is decided or the budget is spent; refused: an AbprofError
    reason: str = ""
    seconds: float = 0.0  # of measuring
    lines: int  # of news before this one: one that is missing on the way is told by it
    shard: int = 0  # which one; 0: not told


News = Began | Measured | Proved | Loaded | Noticed | Said | Ended


def read_shard(text: bytes) -> Shard:
    """The shard in a file. Raises ValueError when it is not one that this abprof reads."""
    try:
        return msgspec.json.decode(text, type=Shard)
    except UNREADABLE as error:
        raise ValueError(f"not a shard of this abprof: {error}") from None


def read_news(line: bytes) -> News:
    """The news in a line. Raises ValueError when it is torn, incoherent, or none that this abprof knows."""
    news: News = sealed.unseal(line.removesuffix(b"\n"), News, "news")
    if isinstance(news, Measured):
        news.block.coherent()
    return news
