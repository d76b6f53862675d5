"""Shards and news survive a write and a read; torn or unknown lines are errors."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from abprof.fleet.messages import Ended, News, Shard, read_news, read_shard
from abprof.records import Machine, Placed
from abprof.records.options import File
from abprof.system import checksummed
from tests import runs


def test_a_shard_is_read_as_it_was_written() -> None:
    run = runs.run()
    arms = {cell.id: run.arms for cell in run.cells}
    rest = {"budget": 60.0, "repository": "/r", "logs": "/l", "blocks": tuple(runs.blocks(run))}
    shard = Shard(number=3, run=run, file=File(), arms=arms, **rest)
    assert read_shard(checksummed.line(shard)) == shard
    with pytest.raises(ValueError, match="not a shard of this abprof"):
        read_shard(checksummed.seal(b'{"schema": 1}'))


@pytest.mark.parametrize(
    "news",
    [
        News(placed=Placed(device="GPU-a", machine=Machine(host="h", device="d", kind="cpu"))),
        News(block=runs.blocks(runs.run())[0]),
        News(warning="waiting"),
        News(ended=Ended(why="done", seconds=1.5)),
    ],
    ids=["placed", "block", "warning", "ended"],
)
def test_news_survive_a_write_and_a_read(news: News) -> None:
    line = checksummed.line(news)
    assert line.count(b"\n") == 1
    assert read_news(line[:-1]) == news


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda line: line[:-9], "checksum"),
        (lambda line: line.replace(b"done", b"gone"), "checksum"),
        (lambda _: b"hello", "checksum"),
        (lambda _: checksummed.seal(json.dumps({"surprise": 1}).encode())[:-1], "not news of this abprof"),
    ],
)
def test_invalid_news_is_an_error(spoil: Callable[[bytes], bytes], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_news(spoil(checksummed.line(News(ended=Ended(why="done")))[:-1]))
