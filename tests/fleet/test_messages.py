"""A shard and its news as they travel: what is written is read again, and what is torn or unknown is told."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from abprof.fleet.messages import Began, Ended, Measured, News, Said, Shard, read_news, read_shard
from abprof.records import Machine, Run
from abprof.records.options import File
from abprof.system import checksummed as sealed
from tests import runs


def some_run() -> Run:
    return runs.run()


def test_a_shard_is_read_as_it_was_written() -> None:
    run = some_run()
    arms = {cell.id: run.arms for cell in run.cells}
    shard = Shard(
        number=3,
        run=run,
        file=File(),
        arms=arms,
        budget=60.0,
        repository="/r",
        logs="/l",
        blocks=tuple(runs.blocks(run)),
    )
    assert read_shard(sealed.text(shard)) == shard


def test_what_is_no_shard_is_refused() -> None:
    with pytest.raises(ValueError, match="not a shard of this abprof"):
        read_shard(b'{"schema": 1}')


def news() -> list[News]:
    run = some_run()
    machine = Machine(host="h", device="d", kind="cpu")
    return [
        Began(shard=1, device="GPU-a", machine=machine),
        Measured(block=runs.blocks(run)[0]),
        Said(line="waiting", warning=True),
        Ended(why="done", seconds=1.5, lines=3),
    ]


@pytest.mark.parametrize("one", news(), ids=lambda one: type(one).__name__)
def test_news_are_read_as_they_were_told(one: News) -> None:
    line = sealed.line(one)
    assert line.count(b"\n") == 1
    assert read_news(line) == one


@pytest.mark.parametrize(
    "spoil", [lambda line: line[:-9] + b"\n", lambda line: line.replace(b"done", b"gone"), lambda line: b"hello\n"]
)
def test_torn_news_are_told(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match="checksum"):
        read_news(spoil(sealed.line(Ended(why="done", lines=0))))


def test_unknown_news_are_told() -> None:
    line = sealed.seal(json.dumps({"type": "surprise"}).encode())
    with pytest.raises(ValueError, match="not news of this abprof"):
        read_news(line)
