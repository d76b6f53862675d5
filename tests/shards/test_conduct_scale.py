"""What the loop asks for with many slots: verdicts of all cells once a shard that ended, however many slots are idle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from abprof.fleet.conduct import conduct
from abprof.measure.growing import Growing
from abprof.records import Block

from .test_conduct import Player, Stage, told


def test_idle_slots_do_not_ask_for_verdicts_each(tmp_path: Path) -> None:
    asked = 0

    def wanted(blocks: Sequence[Block]) -> set[str]:
        nonlocal asked
        asked += 1
        return {cell.id for cell in stage.head.cells} - {block.cell for block in blocks}

    stage = Stage(tmp_path, wanted)
    player = Player([f"GPU-{i}" for i in range(64)], told)
    for item in conduct(Growing(stage.ground), stage.record, player, stage.place):
        stage.record.add(item)
    shards = len(player.sent)
    assert 1 <= shards <= 4
    assert asked <= 2 + shards  # to begin with, before the first shard, and when one has ended
