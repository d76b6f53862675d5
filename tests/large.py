"""Runs of many cells, for the size of pages and their speed in a browser; their blocks one at a time.
`python -m tests.large CELLS FILE`."""

import random
import sys
from pathlib import Path

from abprof.records import Block, Cell, Comparison, Observation, Run, Verdict
from abprof.verdict import headline as sentence
from tests.reports import html

from . import runs

_SHARES: tuple[tuple[Verdict, float, float], ...] = (
    ("slower", 4.0, 0.4), ("faster", -6.0, 0.4), ("unclear", 0.9, 1.8), ("slight", 0.7, 0.3),
)  # fmt: skip


def run(cells: int, *, changed: float = 0.1) -> Run:
    """A run of `cells` dense cells with phases; the share `changed` is slower, faster, unclear or slight."""
    plain = runs.run(f"20261120T021700Z-{cells}-cells")
    made: list[Cell] = []
    seen: list[Observation] = []
    judged: list[Comparison] = []
    every = round(1 / changed)
    for i in range(cells):
        one = cell(i)
        verdict, pct, half = _SHARES[i // every % 4] if i % every == 0 else ("same", 0.01 * (i % 7), 0.2)
        made.append(one)
        seen += runs.pair(one, 0.5 + 0.037 * (i % 100), pct + i % 11 / 10)
        judged.append(runs.compared(one, verdict, pct + i % 11 / 10, half, discovery=True))
    few = runs.changed(plain, cells=tuple(made), observations=tuple(seen), comparisons=tuple(judged), warnings=(),
                       workloads=plain.workloads[:1], builds=plain.builds[:2])  # fmt: skip
    counts = sentence.count(few, few.comparisons) | {"controls": 6, "controls_inside": 6, "controls_outside": 0}
    said = sentence.summary(counts, measured=True, margin=few.options.margin, same_code=False)
    return runs.changed(few, header=runs.changed(plain.header, sentence=said, counts=counts))


def cell(i: int) -> Cell:
    """The i-th of the dense cells."""
    like = runs.dense_cell(("full", "causal", "varlen_full", "varlen_causal")[i % 4], ("fwd", "bwd")[i // 4 % 2])
    params = {**like.params, "seqlen": 1024 + 64 * (i // 8)}
    name = ",".join(f"{k}={v}" for k, v in params.items())
    return runs.changed(like, id=f"dense/{name}", params=params)


def head(cells: int) -> Run:
    """A run of so many dense cells of which nothing was measured yet."""
    plain = runs.run(f"20261120T021700Z-{cells}-cells")
    empty = runs.changed(plain, workloads=plain.workloads[:1], builds=plain.builds[:2], status="running", header=None)
    for results in ("observations", "comparisons", "controls", "proofs", "warnings"):
        empty = runs.changed(empty, **{results: ()})
    return runs.changed(empty, cells=tuple(cell(i) for i in range(cells)))


def block(of: Run, i: int, epoch: int, chance: random.Random) -> Block:
    """An epoch of the i-th cell of `head`: 20 rounds that scatter by 0.1 %, an epoch by 0.03 %. Nine cells of ten are level, the
    others slower or faster by up to 3 %; all have the phases of an H200's."""
    pct = (i // 10 % 13 - 6) / 2 if i % 10 == 0 else 0.0
    seen = runs.pair(of.cells[i], 0.5 + 0.037 * (i % 100), pct + chance.gauss(0.0, 0.03))
    alone = runs.changed(of, cells=(of.cells[i],), observations=tuple(seen))
    (made,) = runs.blocks(alone, epochs=1, rounds=20, chance=chance)
    phases = {one.arm: one.phases or {} for one in seen} if epoch == 2 else {}  # a run profiles its second epoch
    outcomes = {a: runs.changed(o, phases=phases.get(a)) for a, o in made.outcomes.items()}
    return runs.changed(made, epoch=epoch, outcomes=outcomes)


def blocks(of: Run) -> list[Block]:
    """Two epochs of 20 rounds of each cell."""
    return runs.blocks(of, epochs=2, rounds=20)


if __name__ == "__main__":
    many = run(int(sys.argv[1]))
    text = html(many, blocks(many))
    Path(sys.argv[2]).write_text(text, encoding="utf-8")
    print(f"{sys.argv[1]} cells: {len(text.encode())} bytes")
