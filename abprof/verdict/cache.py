"""What each cell's blocks say, kept from one question to the next: only cells of which something is new are read again.

Of ten thousand cells a verdict on one shard's news costs as much as that shard's cells, and not ten seconds. Nobody has to
say what is new. Every question brings all that evidence is made of; a cell's is taken again where its blocks are the very
same, and of no cell where the head of the run is another, or a proof that does not hold. What all cells say together is
nobody's evidence, and worked out for each question (abprof/verdict/judge.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import msgspec

from abprof.records import Block, Proof, Run
from abprof.verdict.aggregation import any_checked, by_cell, evidence
from abprof.verdict.cell_data import Desk, Evidence

# Of a run's head what no cell is judged by alone: results, and what is read where all cells are put together. `status` says
# in its questions who reads it; of `machines` the builds are read, of `proofs` those that are given. A new field is not here.
OF_NO_CELL = frozenset(
    {
        *("id", "status", "ended", "cells", "machines", "losses", "notes", "touched", "proofs"),
        *("header", "observations", "comparisons", "within", "controls", "warnings"),
        *("kernels", "traces", "profiles", "sampled"),
    }
)
_READ = tuple(field.name for field in msgspec.structs.fields(Run) if field.name not in OF_NO_CELL)


class Kept:
    """Evidence of one run's cells, as it was when it was last asked for."""

    def __init__(self) -> None:
        self._desk = Desk()
        self._head: tuple[object, ...] = ()
        self._cells: dict[str, tuple[list[Block], Evidence]] = {}

    def gather(self, run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> dict[str, Evidence]:
        """What `gathering.gather` gives, with what was concluded of it before (`Evidence.once`). Raises ValueError."""
        checked = any_checked(blocks)
        head = _head(run, proofs, checked=checked)
        if head != self._head:
            self._head, self._cells = head, {}
        owned = by_cell(run, blocks)
        for cell in run.cells:
            own, known = owned[cell.id], self._cells.get(cell.id)
            if known is None or known[1].cell is not cell or not _same(own, known[0]):
                self._cells[cell.id] = own, evidence(run, cell, own, proofs, self._desk, checked=checked)
        return {cell.id: self._cells[cell.id][1] for cell in run.cells}

    def forget(self) -> None:
        """Nothing more will be asked: the memory is needed for something else."""
        self._desk, self._cells = Desk(), {}


def _same(own: list[Block], before: list[Block]) -> bool:
    """Whether they are the very same blocks: to compare what is in them would be to read their rounds."""
    return len(own) == len(before) and all(map(is_, own, before))


def _head(run: Run, proofs: Sequence[Proof], *, checked: bool) -> tuple[object, ...]:
    """All that evidence is made of besides a cell's own blocks."""
    read = [getattr(run, name) for name in _READ]
    builds = [(device, machine.builds) for device, machine in run.machines.items() if machine.builds]
    return *read, tuple(builds), tuple(proof for proof in proofs if not proof.ok), checked
