"""The cell cache never changes an answer, and aggregates only cells with something new."""

import random

import msgspec
import pytest

from abprof.records import SUSTAINED, Block, Build, Failure, Outcome, Proof, Run, Status
from abprof.verdict import CellCache, aggregate, judge, undecided

from . import blocks as made

STATUSES: tuple[Status, ...] = ("crash", "wrong", "oom", "identical", "unsupported")


def random_block(chance: random.Random, run: Run, epochs: dict[str, int]) -> Block:
    cell = chance.choice(sorted(epochs))
    epochs[cell] += 1
    arms = [arm for arm in run.arms if arm.side != "control" or chance.random() < 0.5]
    status = {}
    for arm in arms:
        named = chance.choice(STATUSES) if chance.random() < 0.04 else "ok"
        status[arm.id] = Outcome(status=named, reason="" if named == "ok" else "why")
    kind = chance.random()
    ratios = {arm.id: 1.03 if arm.side == "target" else 1.0 for arm in arms}
    fields = {"metric": SUSTAINED} if kind < 0.05 else {"quick": True} if kind < 0.1 else {}
    return made.block(
        epochs[cell], ratios, cell=cell, status=status, rounds=6, noise=chance.choice([0.0002, 0.003]),
        seed=chance.randrange(10**9), mhz=dict.fromkeys(status, chance.choice([0.0, 1500.0])), **fields,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_cached_and_fresh_judgements_are_equal(seed: int) -> None:
    chance, cache = random.Random(seed), CellCache()
    variants = chance.choice([(), ("ws", "pp")])
    settings = {"allow_wrong": chance.random() < 0.3, "precision": chance.choice([None, 0.2])}
    run = made.head(5, variants=variants, peers=chance.choice([(), ("lib",)]), control=True, settings=settings)
    blocks: list[Block] = []
    proofs: tuple[Proof, ...] = ()
    epochs = dict.fromkeys((cell.id for cell in run.cells), 0)
    for _ in range(40):
        event = chance.random()
        if event < 0.05:
            proofs += (Proof(epoch=1, side="target", kernel=chance.choice(["ffa", "other"]), ok=chance.random() < 0.7),)
        elif event < 0.1:
            blocks = [block for block in blocks if block.cell != chance.choice(sorted(epochs))]
        elif event < 0.15:
            failure = Failure(status="build_failed", reason="no") if chance.random() < 0.3 else None
            run = msgspec.structs.replace(run, builds=(Build(side="target", kernel="ffa", key="b", failure=failure),))
        elif event < 0.2:
            run = msgspec.structs.replace(run, status=chance.choice(["running", "interrupted", "complete"]))
        else:
            blocks.append(random_block(chance, run, epochs))
        assert judge(run, blocks, proofs, cache) == judge(run, blocks, proofs)
        assert undecided(run, blocks, proofs, cache) == undecided(run, blocks, proofs)


def test_only_cells_with_something_new_are_aggregated() -> None:
    run, cache = made.head(3), CellCache()
    cells = [cell.id for cell in run.cells]
    blocks = [made.block(e, {"base": 1.0, "target": 1.03}, cell=c, noise=0.001) for c in cells for e in (1, 2, 3, 4)]
    before = aggregate(run, blocks, (), cache)

    def renewed(of: Run, proofs: tuple[Proof, ...] = ()) -> list[str]:
        nonlocal before
        after = aggregate(of, blocks, proofs, cache)
        changed = [cell for cell in cells if after[cell] is not before[cell]]
        before = after
        return changed

    assert renewed(run) == []
    blocks[-1] = made.block(5, {"base": 1.0, "target": 1.1}, cell=cells[2])
    assert renewed(run) == [cells[2]]
    del blocks[0]
    assert renewed(run) == [cells[0]]
    news = {"machines": {"d": run.machine}, "ended": "now", "status": "running", "notes": ("seen",)}
    assert renewed(msgspec.structs.replace(run, **news)) == []
    good = Proof(epoch=1, side="target", kernel="ffa", ok=True)
    assert renewed(run, (good,)) == []
    assert renewed(run, (msgspec.structs.replace(good, ok=False),)) == cells
    strict = msgspec.structs.replace(run.options, threshold=0.1)
    assert renewed(msgspec.structs.replace(run, options=strict)) == cells


def test_impossible_input_is_refused_each_time() -> None:
    run, cache = made.head(2), CellCache()
    mixed = [made.block(1, {"base": 1.0, "target": 1.0}, metric=metric) for metric in ("wall", "gpu_span")]
    for _ in range(2):
        with pytest.raises(ValueError, match="mix metrics gpu_span and wall"):
            judge(run, mixed, (), cache)
    with pytest.raises(ValueError, match="not in the run"):
        judge(run, [made.block(1, {"base": 1.0, "target": 1.0}, cell="dense/n=7")], (), cache)
