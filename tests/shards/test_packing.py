"""Which cells of a device have a control, and what goes out with them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from abprof.measure.allocation import Scatter
from abprof.measure.noise import Kept
from tests import runs
from tests.shards.test_conduct import Player, Stage, fewer_than, head, told


def test_every_device_gets_controls(tmp_path: Path) -> None:
    ids = [cell.id for cell in head().cells]
    stage, player = Stage(tmp_path, fewer_than(4, ids)), Player(["GPU-a", "GPU-b"], told)
    stage.record.head = msgspec.structs.replace(
        stage.record.head, arms=tuple(arm for arm in runs.run().arms if not arm.peer)
    )
    assert any(arm.side == "control" for arm in stage.record.head.arms)
    stage.run(player)
    for slot in ("GPU-a", "GPU-b"):
        mine = [arms for shard, where in player.sent if where == slot for arms in shard.arms.values()]
        assert sum(any(arm.side == "control" for arm in arms) for arms in mine) >= min(2, len(mine)), slot


def taught(stage: Stage, **seconds: float) -> dict[str, Scatter]:
    """Earlier runs of the stage's cells on GPU-a took so long an epoch; and the run has controls."""
    learnt = {
        cell: Scatter(within=1e-6, between=1e-6, round_seconds=1e-6, epoch_seconds=each, epochs=4)
        for cell, each in seconds.items()
    }
    (stage.place.state / "noise").mkdir()
    (stage.place.state / "noise" / "GPU-a.json").write_bytes(msgspec.json.encode(Kept(cells=learnt)))
    arms = tuple(arm for arm in runs.run().arms if not arm.peer)
    stage.record.head = msgspec.structs.replace(stage.record.head, arms=arms)
    return learnt


def controlled(player: Player, slot: str = "GPU-a") -> set[str]:
    sent = [shard for shard, where in player.sent if where == slot]
    return {id for shard in sent for id, arms in shard.arms.items() if any(arm.side == "control" for arm in arms)}


def test_a_devices_own_controls_are_of_its_cheapest_cells(tmp_path: Path) -> None:
    """The run's own, in which each device has some or none, are spread over its range of work."""
    ids = [cell.id for cell in head().cells]
    stage, player = Stage(tmp_path, fewer_than(4, ids)), Player(["GPU-a"], told)
    taught(stage, **dict(zip(ids, (2.0, 1.0, 4.0, 3.0), strict=True)))
    stage.run(player)
    assert controlled(player) == set(ids[:2])


def test_a_device_of_dear_cells_has_a_light_one_for_its_control(tmp_path: Path) -> None:
    """A control on a dear cell would cost half of it."""
    ids = [cell.id for cell in head().cells]
    stage, player = Stage(tmp_path, fewer_than(4, ids)), Player(["GPU-a", "GPU-b"], told)
    learnt = taught(stage, **dict(zip(ids, (30.0, 1.0, 30.0, 2.0), strict=True)))
    stage.run(player)
    first = {slot: shard for shard, slot in reversed(player.sent)}
    assert set(first["GPU-a"].arms) == {ids[0], ids[1], ids[3]}, "both that there were"
    assert controlled(player) == {ids[1], ids[3]}
    assert {id: scatter for shard in first.values() for id, scatter in shard.scatters.items()} == learnt


def test_without_controls_no_cell_goes_out_for_being_light(tmp_path: Path) -> None:
    ids = [cell.id for cell in head().cells]
    stage, player = Stage(tmp_path, fewer_than(4, ids)), Player(["GPU-a", "GPU-b"], told)
    taught(stage, **dict(zip(ids, (30.0, 1.0, 30.0, 2.0), strict=True)))
    stage.record.head = msgspec.structs.replace(stage.record.head, arms=head().arms[:2])
    stage.run(player)
    assert not controlled(player)
    assert {ids[0], ids[1], ids[3]} not in [set(shard.arms) for shard, _ in player.sent]
