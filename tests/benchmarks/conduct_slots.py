"""What the parent's loop costs with many slots: `python -m tests.benchmarks.conduct_slots [CELLS] [SLOTS]`.

No shard is measured: an executor in memory plays what their programs would tell, four epochs of each cell. Printed are the
processor's seconds of this process, what the playing costs taken off. Nothing is forced to the disk.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from abprof.devices.protocols import Lost
from abprof.fleet.conduct import conduct
from abprof.fleet.messages import Began, Ended, Measured, Shard
from abprof.measure.growing import Growing
from abprof.records import Block, Machine
from abprof.store import runfolder
from abprof.store.record import Record
from abprof.system import checksummed as sealed
from abprof.system.config_file import File
from abprof.system.console import View
from tests import large, runs
from tests.shards.test_conduct import Player

EPOCHS = 4


class Playing:
    """Tells what a shard's program would, from blocks that were made before."""

    def __init__(self, blocks: dict[str, Block]) -> None:
        self.blocks = blocks
        self.lines = 0
        self.seconds = 0.0

    def __call__(self, shard: Shard, slot: str) -> Iterator[bytes | Lost]:
        machine = Machine(host="h", device="d", kind="cuda", uuid=slot)
        began = time.process_time()
        lines = [sealed.line(Began(shard=shard.number, device=slot, machine=machine))]
        for epoch in range(EPOCHS):
            for cell in shard.run.cells:
                block = msgspec.structs.replace(
                    self.blocks[cell.id], epoch=shard.first + epoch, device=slot, shard=shard.number
                )
                lines.append(sealed.line(Measured(block=block)))
        end = sealed.line(Ended(why="done", seconds=10.0, lines=len(lines)))
        self.lines += len(lines) + 1
        self.seconds += time.process_time() - began
        yield from [*lines, end]
        yield Lost("ended with exit code 0")


def main(cells: int, slots: int) -> None:
    os.fsync = lambda _: None
    made = large.run(cells)
    names = [f"GPU-{i}" for i in range(slots)]
    head = msgspec.structs.replace(made, observations=(), comparisons=(), header=None, proofs=(), status="running")
    playing = Playing({block.cell: block for block in runs.blocks(made, epochs=1, rounds=20)})
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        (home / "workloads").mkdir()
        (home / "workloads" / "dense.py").write_text("")
        folder = runfolder.create(home / "runs", head.id)
        record = Record(folder, head, [], View(quiet=True))
        arms = {cell.id: tuple(arm for arm in head.arms if arm.id in {"base", "target"}) for cell in head.cells}
        device = SimpleNamespace(kind="cuda", lease=names[0])
        shop = SimpleNamespace(workloads={"dense": str(home / "workloads" / "dense.py")})
        ground: Any = SimpleNamespace(run=head, arms=arms, identical=frozenset(), device=device, shop=shop)
        config, repository = SimpleNamespace(budget=1e6), SimpleNamespace(path=home)
        place: Any = SimpleNamespace(state=home, device=device, config=config, file=File(), repository=repository)
        executor = Player(names, playing)
        began = time.process_time()
        for item in conduct(Growing(ground), record, executor, place):
            record.add(item)
        took = time.process_time() - began - playing.seconds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{cells} cells on {slots} slots: {len(executor.sent)} shards, {playing.lines} lines in {took:.1f} s of processor"
    )
    print(f"{playing.lines / took:.0f} lines a second, {1e3 * took / cells:.2f} ms a cell; peak {peak:.0f} MB")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]) if len(sys.argv) > 2 else (10_000, 1000))
