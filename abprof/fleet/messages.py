"""Messages between the coordinator and shard workers.

A shard is a list of cells that one device measures, with all arms and epochs. The process `python -m abprof.fleet
FOLDER/N.json` measures the shard, and appends messages to FOLDER/N.jsonl, each a line with a checksum. All machines see
this folder. Only the coordinator writes the run's folder.
"""

from __future__ import annotations

from typing import Literal

from abprof.records import Arm, Block, Kernel, Placed, Proof, Record, Run, Touched
from abprof.records.options import File
from abprof.system import checksummed

DEVICE = "ABPROF_SHARD_DEVICE"  # environment variable that names a shard's device on a machine without GPUs
ALIVE = "alive"  # file that the coordinator touches; shard workers end when the file is gone


class Shard(Record, frozen=True, kw_only=True):
    """A part of a run's cells, which one device measures."""

    number: int  # unique in a run: cells that are measured again are in another shard
    run: Run  # the run's header after building; its `cells` are only this shard's
    file: File | None = None  # abprof.toml as read at the start of the run
    arms: dict[str, tuple[Arm, ...]]  # cell -> its arms, its control included
    identical: tuple[str, ...] = ()  # cells that load the same bytes on all sides, and are measured as controls
    blocks: tuple[Block, ...] = ()  # of this shard's cells and this invocation: they count towards looks
    earlier: tuple[Block, ...] = ()  # follow-up measurements of earlier invocations, which are not repeated
    first: int = 1  # number of the shard's first epoch
    least: dict[str, int] = {}  # cell -> number of epochs to measure at least
    budget: float  # seconds of measuring
    device: str = ""  # the lease's name, a GPU's UUID; "": the device that the machine gives
    held: bool = False  # whether the process that started the shard worker holds the lease
    cpus: tuple[int, ...] = ()  # processors of this shard, if other shards measure on the same host; (): all
    repository: str
    logs: str  # a folder


class Ended(Record, frozen=True, kw_only=True):
    """How a shard ended. If this message is missing, the shard is lost."""

    why: Literal["done", "refused", "interrupted"]  # done: all decided or budget spent; refused: an AbprofError
    reason: str = ""
    seconds: float = 0.0  # seconds spent measuring


class News(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a shard worker to the coordinator. Exactly one field is set."""

    placed: Placed | None = None  # first message: the device is leased, and everything is built
    block: Block | None = None
    proof: Proof | None = None
    kernel: Kernel | None = None
    touched: Touched | None = None
    line: str = ""  # text to show to the user and to log
    warning: str = ""  # warning to show to the user and to log
    ended: Ended | None = None  # last message


def read_shard(text: bytes) -> Shard:
    """Decode the content of a shard's file. Raises ValueError if the content is damaged or not a shard."""
    shard: Shard = checksummed.unseal(text.removesuffix(b"\n"), Shard, "a shard")
    return shard


def read_news(line: bytes) -> News:
    """Decode one line of a shard's messages. Raises ValueError if the line is damaged or not a valid message."""
    news: News = checksummed.unseal(line.removesuffix(b"\n"), News, "news")
    if news.block:
        news.block.coherent()
    return news
