"""The coordinator with a simulated executor: the shards it sends, the news it gets, what it records, prints and survives."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from abprof.fleet import coordinate
from abprof.fleet.executors import Lost
from abprof.fleet.messages import Ended, News, Shard, read_news, read_shard
from abprof.measure import Plan
from abprof.records import Block, Ceilings, Machine, Placed, Run
from abprof.records.errors import AbprofError
from abprof.records.options import File
from abprof.store import Record, runfolder
from abprof.system import checksummed
from abprof.system.console import View
from tests import runs

Play = Callable[[Shard, str], Iterator[bytes | Lost]]


class Player:
    """An executor whose shards send the news that `play` returns."""

    def __init__(self, slots: Sequence[str], play: Play, *, lasting: bool = True) -> None:
        self._slots, self._play, self.lasting = slots, play, lasting
        self.sent: list[tuple[Shard, str]] = []
        self._out: list[tuple[Shard, str]] = []

    def slots(self) -> Sequence[str]:
        return self._slots

    def submit(self, shard: Shard, slot: str) -> None:
        assert slot not in [busy for _, busy in self._out], "one shard on a slot at a time"
        self.sent.append((shard, slot))
        self._out.append((shard, slot))

    def news(self, timeout: float) -> Iterator[tuple[int, bytes | Lost]]:
        del timeout
        shard, slot = self._out.pop(0)
        for said in self._play(shard, slot):
            yield shard.number, said


def head() -> Run:
    """Cells that a block can be made for, nothing measured yet."""
    whole = runs.run()
    timed = {o.cell for o in whole.observations if o.arm == "base" and o.status == "ok"}
    timed &= {o.cell for o in whole.observations if o.arm == "target" and o.status == "ok"}
    cells = tuple(cell for cell in whole.cells if cell.id in timed and not cell.skip)[:4]
    return msgspec.structs.replace(whole, cells=cells, proofs=(), machines={}, status="running")


def measured(shard: Shard, slot: str, epochs: int) -> list[Block]:
    """So many epochs of each of a shard's cells."""
    whole = runs.run()
    made = runs.blocks(msgspec.structs.replace(whole, cells=shard.run.cells), epochs)
    return [
        msgspec.structs.replace(
            block, epoch=block.epoch + shard.first - 1, device=slot, shard=shard.number, rejected=(), rejected_why=""
        )
        for block in made
    ]


def shard_news(shard: Shard, slot: str, epochs: int = 4) -> Iterator[bytes | Lost]:
    """An orderly shard."""
    machine = Machine(host="h", device="d", kind="cuda", uuid=slot, ceilings=Ceilings(tflops=1.0))
    yield checksummed.line(News(placed=Placed(device=slot, machine=machine)))
    yield checksummed.line(News(line="hello"))
    yield from (checksummed.line(News(block=block)) for block in measured(shard, slot, epochs))
    yield checksummed.line(News(ended=Ended(why="done", seconds=10.0)))
    yield Lost("ended with exit code 0")


IDS = [cell.id for cell in head().cells]


def counts(blocks: Sequence[Block]) -> dict[str, int]:
    return {cell: sum(b.cell == cell for b in blocks) for cell in {b.cell for b in blocks}}


def fewer_than(epochs: int, ids: Sequence[str] = IDS) -> Callable[[Sequence[Block]], set[str]]:
    return lambda blocks: {id for id in ids if counts(blocks).get(id, 0) < epochs}


def played(
    folder: Path, play: Play, wanted: Callable[[Sequence[Block]], set[str]] = fewer_than(4), run: Run | None = None
) -> tuple[Record, list[tuple[Shard, str]]]:
    """A run on two GPUs: what is recorded, and the shards with their GPUs."""
    run, player = run or head(), Player(["GPU-a", "GPU-b"], play)
    made = runfolder.create(folder / "runs", run.id)
    made.write_run(run)
    record = Record(
        made, run, [], View(quiet=True), lambda run, blocks: run, lambda run, blocks, proofs: wanted(blocks)
    )
    (folder / "dense.py").write_text("")
    arms = {id: tuple(arm for arm in run.arms if arm.id in {"base", "target"}) for id in IDS}
    device: Any = SimpleNamespace(kind="cuda", lease="GPU-a")
    shop: Any = SimpleNamespace(workloads={"dense": str(folder / "dense.py")})
    place: Any = SimpleNamespace(
        state=folder, device=device, devices=(device,), options=SimpleNamespace(budget=1000.0, beside=()), file=File(),
        repository=SimpleNamespace(path=folder),
    )  # fmt: skip
    for item in coordinate(Plan(shop, device, run, run.cells, {}, {}, {}, arms), record, player, place):
        record.add(item)
    assert runfolder.read(made.path)[1] == record.blocks, "what stands is the same read from the folder"
    return record, player.sent


def of_first(sent: list[tuple[Shard, str]]) -> list[tuple[Shard, str]]:
    """Those with the first cell."""
    return [(shard, slot) for shard, slot in sent if IDS[0] in {cell.id for cell in shard.run.cells}]


def test_what_the_whole_leaves_open_goes_to_its_device_again(tmp_path: Path) -> None:
    """To its next look, with its blocks, as often as there is time."""

    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        return shard_news(shard, slot, max(shard.least.values(), default=4))

    record, sent = played(tmp_path, play, lambda blocks: fewer_than(4)(blocks) | fewer_than(6, IDS[:1])(blocks))
    (_, first), (again, slot) = of_first(sent)
    assert [cell.id for cell in again.run.cells] == IDS[:1]
    assert (slot, again.least, again.first, len(again.blocks)) == (first, {IDS[0]: 2}, 5, 4)
    assert counts(record.blocks)[IDS[0]] == 6
    assert again.run.ceilings == Ceilings(tflops=1.0), "measured once a device"


@pytest.mark.parametrize("how", ["torn", "refused", "interrupted"])
def test_a_shard_with_incomplete_news_is_lost_and_runs_elsewhere(tmp_path: Path, how: str) -> None:
    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        if shard.number != 1:
            return shard_news(shard, slot)
        whole = list(shard_news(shard, slot, 3))
        if how == "torn":
            whole[2] = b'{"block":'
        if how in ("refused", "interrupted"):
            end = Ended(why=how, reason="busy" if how == "refused" else "")  # type: ignore[arg-type]
            whole[-2:] = [checksummed.line(News(ended=end)), Lost("ended with exit code 2")]
        return iter(whole)

    record, sent = played(tmp_path, play)
    (loss,) = record.head.losses
    assert loss.shard == 1
    # Why a shard was interrupted is known to its place.
    reasons = {"torn": "checksum does not match", "refused": "busy", "interrupted": "ended with exit code 2"}
    assert loss.reason == reasons[how]
    again = [slot for shard, slot in sent[1:] if {cell.id for cell in shard.run.cells} & set(loss.cells)]
    assert again
    assert set(again) == {"GPU-b"}
    assert counts(record.blocks) == dict.fromkeys(IDS, 4)
    assert all(block.shard != 1 for block in record.blocks)


def test_a_verdict_whose_follow_up_is_lost_each_time_stands_without_it(tmp_path: Path) -> None:
    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        if of_first([(shard, slot)]):
            return iter([*list(shard_news(shard, slot))[:-2], Lost("killed by SIGSEGV")])
        return shard_news(shard, slot)

    record, sent = played(tmp_path, play)
    _, (last, _) = of_first(sent)
    assert all(block.metric for block in record.blocks), "no cell was given up"
    assert counts(record.blocks) == dict.fromkeys(IDS, 4)
    assert {block.shard for block in record.blocks if block.cell == IDS[0]} == {last.number}


def test_where_no_shard_can_begin_the_run_is_refused(tmp_path: Path) -> None:
    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        del shard, slot
        yield checksummed.line(News(ended=Ended(why="refused", reason="torch was 2.1 in the run and is 2.2 now")))
        yield Lost("ended with exit code 2")

    with pytest.raises(AbprofError, match=r"torch was 2.1 .* \(no shard could be measured"):
        played(tmp_path, play)


def test_every_device_gets_controls(tmp_path: Path) -> None:
    arms = tuple(arm for arm in runs.run().arms if not arm.peer)
    assert any(arm.side == "control" for arm in arms)
    _, sent = played(tmp_path, shard_news, run=msgspec.structs.replace(head(), arms=arms))
    for slot in ("GPU-a", "GPU-b"):
        mine = [arms for shard, where in sent if where == slot for arms in shard.arms.values()]
        assert sum(any(arm.side == "control" for arm in arms) for arms in mine) >= min(2, len(mine)), slot


def test_a_shard_is_read_as_it_was_written() -> None:
    run = runs.run()
    arms = {cell.id: run.arms for cell in run.cells}
    rest = {"budget": 60.0, "repository": "/r", "logs": "/l", "blocks": tuple(runs.blocks(run))}
    shard = Shard(number=3, run=run, file=File(), arms=arms, **rest)
    assert read_shard(checksummed.line(shard)) == shard
    with pytest.raises(ValueError, match="not a shard of this abprof"):
        read_shard(checksummed.seal(b'{"schema": 1}'))


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
