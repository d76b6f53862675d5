"""`judge`: records in, verdicts out. A live run and `abprof report` call the same function.

The rules of a verdict are in `comparison`, its numbers in `stats`, the number of epochs in `stopping`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from abprof.records import Advice, Block, Comparison, Header, Observation, Proof, Record, Run
from abprof.verdict import stats, waivers
from abprof.verdict.cells import CellCache, CellData, aggregate
from abprof.verdict.comparison import Role, compare, pairs, pursued, with_discoveries
from abprof.verdict.headline import summarise, untimed
from abprof.verdict.observations import observe
from abprof.verdict.warnings import warnings


class Judgement(Record, frozen=True, kw_only=True):
    """The results of a run: the fields of Run with the same names, except causes."""

    header: Header
    observations: tuple[Observation, ...] = ()
    comparisons: tuple[Comparison, ...] = ()  # base with targets, then peers with sides
    within: tuple[Comparison, ...] = ()  # variants of one side with each other
    controls: tuple[Comparison, ...] = ()
    warnings: tuple[Advice, ...] = ()


@dataclass(frozen=True)
class Provisional:
    """A first number for the live display, without an interval or a verdict."""

    cell: str
    before: str
    after: str
    pct: float
    epochs: int


def judge(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = (), cache: CellCache | None = None) -> Judgement:
    """Judge everything measured so far. Pure: the same records always give the same judgement.

    `run` is the head of a run; its lists of results are not read. `cache` reuses cells from call to call. Raises ValueError on
    impossible input: a kept round with an impossible time, or rounds of a cell that the run does not have.
    """
    if not run.options.timed:
        return Judgement(header=untimed(run))
    cells = aggregate(run, blocks, proofs, cache)
    rows: dict[Role, list[Comparison]] = {"target": [], "peer": [], "variant": [], "control": []}
    observations: list[Observation] = []
    for data in cells.values():
        every = data.once("rows", partial(_compared, run, data))
        for role, row in every:
            rows[role].append(row)
        observations += data.once("observed", partial(observe, data))
    targets, peers, within = (with_discoveries(rows[family]) for family in ("target", "peer", "variant"))
    targets = waivers.applied(run, targets)
    controls = tuple(rows["control"])
    return Judgement(
        header=summarise(run, cells, targets, controls, within),
        observations=tuple(observations),
        comparisons=(*targets, *peers),
        within=within,
        controls=controls,
        warnings=warnings(run, cells, targets, controls),
    )


def _compared(run: Run, data: CellData) -> list[tuple[Role, Comparison]]:
    return [(pair.role, compare(run, data, pair)) for pair in pairs(run, data)]


def provisional(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> tuple[Provisional, ...]:
    """Every comparison that cells are measured for and that has a number already, from the first epoch on."""
    found = []
    for cell, data in aggregate(run, blocks, proofs).items():
        for pair in (pair for pair in pairs(run, data) if pursued(run, pair)):
            values = data.epoch_values(pair.before, pair.after)
            if values:
                pct = stats.percent(sum(values) / len(values))
                found.append(Provisional(cell, pair.before, pair.after, pct, len(values)))
    return tuple(found)
