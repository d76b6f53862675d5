"""The coordinator with a simulated executor: the shards it sends, the news it gets, what it records, prints and survives."""

from __future__ import annotations

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
from abprof.records import Block, Ceilings, Machine, Placed, Proof, Run
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


class Stage:
    """A run about to be measured."""

    def __init__(self, folder: Path, wanted: Callable[[Sequence[Block]], set[str]], budget: float = 1000.0) -> None:
        self.head = head()
        self.ids = [cell.id for cell in self.head.cells]
        made = runfolder.create(folder / "runs", self.head.id)
        made.write_run(self.head)
        self.folder = made

        def until(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof]) -> set[str]:
            del run, proofs
            return wanted(blocks)

        self.record = Record(made, self.head, [], View(quiet=True), lambda run, blocks: run, until)
        judge = folder / "workloads"
        judge.mkdir()
        (judge / "dense.py").write_text("")
        arms = {id: tuple(arm for arm in self.head.arms if arm.id in {"base", "target"}) for id in self.ids}
        device = SimpleNamespace(kind="cuda", lease="GPU-a")
        shop = SimpleNamespace(workloads={"dense": str(judge / "dense.py")})
        self.plan: Any = Plan(shop, device, self.head, self.head.cells, {}, {}, {}, arms)  # type: ignore[arg-type]
        self.place: Any = SimpleNamespace(
            state=folder,
            device=device,
            devices=(device,),
            options=SimpleNamespace(budget=budget, beside=()),
            file=File(),
            repository=SimpleNamespace(path=folder),
        )

    def run(self, player: Player) -> None:
        for item in coordinate(self.plan, self.record, player, self.place):
            self.record.add(item)


def counts(blocks: Sequence[Block]) -> dict[str, int]:
    return {cell: sum(b.cell == cell for b in blocks) for cell in {b.cell for b in blocks}}


def fewer_than(epochs: int, ids: Sequence[str]) -> Callable[[Sequence[Block]], set[str]]:
    return lambda blocks: {id for id in ids if counts(blocks).get(id, 0) < epochs}


def test_every_cell_goes_out_once_and_all_slots_work(tmp_path: Path) -> None:
    ids = [cell.id for cell in head().cells]
    stage, player = Stage(tmp_path, fewer_than(4, ids)), Player(["GPU-a", "GPU-b"], shard_news)
    stage.run(player)
    assert sorted(cell.id for shard, _ in player.sent for cell in shard.run.cells) == sorted(ids)
    assert {slot for _, slot in player.sent} == {"GPU-a", "GPU-b"}
    assert [shard.number for shard, _ in player.sent] == list(range(1, len(player.sent) + 1))
    assert set(stage.record.head.machines) == {"GPU-a", "GPU-b"}
    assert stage.record.head.machines["GPU-b"].ceilings == Ceilings(tflops=1.0)
    assert stage.record.head.losses == ()
    assert runfolder.read(stage.folder.path)[1] == stage.record.blocks


def test_what_the_whole_leaves_open_goes_to_its_device_again(tmp_path: Path) -> None:
    """To its next look, with its blocks, as often as there is time."""
    ids = [cell.id for cell in head().cells]

    def wanted(blocks: Sequence[Block]) -> set[str]:
        return fewer_than(4, ids)(blocks) | fewer_than(6, ids[:1])(blocks)

    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        return shard_news(shard, slot, max(shard.least.values(), default=4))

    stage, player = Stage(tmp_path, wanted), Player(["GPU-a", "GPU-b"], play)
    stage.run(player)
    again, slot = player.sent[-1]
    first = next(where for shard, where in player.sent if ids[0] in {cell.id for cell in shard.run.cells})
    assert [cell.id for cell in again.run.cells] == ids[:1]
    assert (slot, again.least, again.first, len(again.blocks)) == (first, {ids[0]: 2}, 5, 4)
    assert counts(stage.record.blocks)[ids[0]] == 6
    assert again.run.ceilings == Ceilings(tflops=1.0), "measured once a device"


@pytest.mark.parametrize("how", ["torn", "killed", "refused", "interrupted"])
def test_a_shard_with_incomplete_news_is_lost_and_runs_elsewhere(tmp_path: Path, how: str) -> None:
    ids = [cell.id for cell in head().cells]

    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        if shard.number != 1:
            return shard_news(shard, slot)
        whole = list(shard_news(shard, slot, 3))
        if how == "torn":
            whole[2] = b'{"block":'
        if how == "killed":
            whole[-2:] = [Lost("killed by SIGKILL")]
        if how in ("refused", "interrupted"):
            end = Ended(why=how, reason="busy" if how == "refused" else "")  # type: ignore[arg-type]
            whole[-2:] = [checksummed.line(News(ended=end)), Lost("ended with exit code 2")]
        return iter(whole)

    stage, player = Stage(tmp_path, fewer_than(4, ids)), Player(["GPU-a", "GPU-b"], play)
    stage.run(player)
    (loss,) = stage.record.head.losses
    assert loss.shard == 1
    assert (
        loss.reason
        == {
            "torn": "checksum does not match",
            "killed": "killed by SIGKILL",
            "refused": "busy",
            "interrupted": "ended with exit code 2",  # the place knows the reason
        }[how]
    )
    again = [slot for shard, slot in player.sent[1:] if {cell.id for cell in shard.run.cells} & set(loss.cells)]
    assert again
    assert set(again) == {"GPU-b"}
    assert counts(stage.record.blocks) == dict.fromkeys(ids, 4)
    assert all(block.shard != 1 for block in stage.record.blocks)
    assert runfolder.read(stage.folder.path)[1] == stage.record.blocks, "what stands is the same read from the folder"


def test_a_further_attempt_and_then_an_outcome(tmp_path: Path) -> None:
    ids = [cell.id for cell in head().cells]

    def wanted(blocks: Sequence[Block]) -> set[str]:
        given_up = {block.cell for block in blocks if not block.metric}
        return fewer_than(4, ids)(blocks) - given_up

    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        if ids[0] in {cell.id for cell in shard.run.cells}:
            return iter([*list(shard_news(shard, slot, 1))[:-2], Lost("killed by SIGSEGV")])
        return shard_news(shard, slot)

    stage, player = Stage(tmp_path, wanted), Player(["GPU-a", "GPU-b"], play)
    stage.run(player)
    tries = [shard for shard, _ in player.sent if ids[0] in {cell.id for cell in shard.run.cells}]
    assert len(tries) == 2
    assert len(tries[-1].run.cells) == 1, "at last alone"
    (given_up,) = [block for block in stage.record.blocks if not block.metric]
    reasons = {outcome.reason for outcome in given_up.outcomes.values()}
    assert reasons == {"2 shards with this cell were lost; the last: killed by SIGSEGV"}
    assert counts([block for block in stage.record.blocks if block.metric]) == dict.fromkeys(ids[1:], 4)


def test_a_verdict_whose_follow_up_is_lost_each_time_stands_without_it(tmp_path: Path) -> None:
    ids = [cell.id for cell in head().cells]

    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        if ids[0] in {cell.id for cell in shard.run.cells}:
            return iter([*list(shard_news(shard, slot))[:-2], Lost("killed by SIGSEGV")])
        return shard_news(shard, slot)

    stage = Stage(tmp_path, fewer_than(4, ids))
    player = Player(["GPU-a", "GPU-b"], play)
    stage.run(player)
    tries = [shard for shard, _ in player.sent if ids[0] in {cell.id for cell in shard.run.cells}]
    assert len(tries) == 2
    assert all(block.metric for block in stage.record.blocks), "no cell was given up"
    assert counts(stage.record.blocks) == dict.fromkeys(ids, 4)
    assert {block.shard for block in stage.record.blocks if block.cell == ids[0]} == {tries[-1].number}


def test_where_no_shard_can_begin_the_run_is_refused(tmp_path: Path) -> None:
    ids = [cell.id for cell in head().cells]

    def play(shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        del shard, slot
        yield checksummed.line(News(ended=Ended(why="refused", reason="torch was 2.1 in the run and is 2.2 now")))
        yield Lost("ended with exit code 2")

    stage = Stage(tmp_path, fewer_than(4, ids))
    with pytest.raises(AbprofError, match=r"torch was 2.1 .* \(no shard could be measured"):
        stage.run(Player(["GPU-a", "GPU-b"], play))


def test_every_device_gets_controls(tmp_path: Path) -> None:
    ids = [cell.id for cell in head().cells]
    stage, player = Stage(tmp_path, fewer_than(4, ids)), Player(["GPU-a", "GPU-b"], shard_news)
    arms = tuple(arm for arm in runs.run().arms if not arm.peer)
    assert any(arm.side == "control" for arm in arms)
    stage.record.head = msgspec.structs.replace(stage.record.head, arms=arms)
    stage.run(player)
    for slot in ("GPU-a", "GPU-b"):
        mine = [arms for shard, where in player.sent if where == slot for arms in shard.arms.values()]
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
