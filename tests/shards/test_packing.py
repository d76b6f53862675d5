"""Which cells of a device have a control, and what goes out with them."""

from __future__ import annotations

from pathlib import Path

import msgspec

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
