"""Outputs checked where no code under test runs (`--check outside`).

A side's own worker holds the reference, the check and the inputs' seed in the same process as the package it checks, which
could patch the one and remember answers for the other. So a judge, a worker without any package, makes inputs from seeds
that nobody could know, and checks what the side's worker hands over. The second seed's values are put into the inputs in
place, between two calls: what is kept from an earlier call is then wrong.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

from abprof.measure.pool import Crew
from abprof.records import Arm, Cell
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault

KEPT = "it returns what an earlier call made, though its inputs changed in place since and it was prepared again"
Ask = Callable[[Any], Any]  # a request to the arm's own worker; its answer, or None when that became the arm's outcome


class Outside:
    """The outside checks of one cell. Ask for the base's arms first."""

    def __init__(self, crew: Crew, cell: Cell, timeout: float) -> None:
        self._crew, self._cell, self._timeout = crew, cell, timeout
        self._seed, self._other = secrets.randbits(31), secrets.randbits(31)
        self._keeps: set[str] = set()  # variants of which the base's outputs are kept, too

    def fault(self, arm: Arm, ask: Ask) -> str | None:
        """What the judge has against this arm's outputs; "" for nothing, None when the arm's worker had no answer.

        Where they do not follow inputs that change in place, but are right on fresh ones, the package may have worked the
        inputs up in the workload's `prepare`, which it may. What is wrong after another `prepare` was kept, unless the
        base's is too: then it is the workload's doing. Raises WorkerFault, WorkerDied when the judge cannot answer.
        """
        said = self._examined(arm, ask, self._other)
        if not said:
            return said
        plain = self._examined(arm, ask, None)
        if plain is None or plain:
            return plain and f"checked outside its process (seed {self._seed}): {plain}"
        kept = self._examined(arm, ask, self._other, anew=True)
        if kept and arm.side == "base":
            self._keeps.add(arm.variant)
        blamed = kept and arm.side != "base" and arm.variant not in self._keeps
        return f"{KEPT} (seeds {self._seed}, {self._other})" if blamed else kept and ""

    def _examined(self, arm: Arm, ask: Ask, again: int | None, *, anew: bool = False) -> str | None:
        name = f"{arm.side}/{hashlib.sha256(f'{self._cell.id} {arm.id}'.encode()).hexdigest()[:24]}.outputs"
        if ask(wire.Hand(arm.id, self._seed, name, again, anew)) is None:
            return None
        case = dict(self._cell.params)
        asked = wire.Examine(self._cell.workload, case, self._seed, name, again)
        checked: wire.Checked = self._crew.judge().call(asked, self._timeout)
        return "" if checked.ok else checked.reason or "the workload's check says no"


def why_not(error: WorkerFault | WorkerDied) -> str:
    """What an arm is told whose outputs the judge could not check."""
    return f"its outputs could not be checked outside its process: {error.reason}"
