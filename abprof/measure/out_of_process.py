"""Checks of outputs outside the arm's process (--check outside, --untrusted).

A side's worker holds the reference, the check and the inputs' seed in the process of the package under test, which could
patch the check, and remember the answers for a seed. So a judge, a worker without any package, makes inputs from random
seeds and checks the outputs that the side's worker hands over. Between two calls the inputs get the values of a second seed
in place: outputs that were kept from an earlier call are then wrong. With --untrusted it checks timed calls, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from abprof.measure.setup import SAYS_NO, ArmState, CellSetup
from abprof.records import messages as wire
from abprof.system import doorway
from abprof.system.processes import WorkerDied, WorkerFault

KEPT = "it returns what an earlier call made, though its inputs changed in place since and it was prepared again"
_MOST_KEPT = 64  # most calls of a turn whose outputs are all kept (--untrusted)
_MOST_BYTES = 128 << 20  # and most bytes of these in a file
_REPEATS = 4  # calls that a GPU's clock may repeat in a turn, whose outputs need room
_PLACES, _PIECE = 16, 64  # places of a turn's outputs that are read at its reply, and bytes of each


class OutOfProcess:
    """The judge's checks of a cell's arms."""

    def __init__(self, cell: CellSetup) -> None:
        self._cell, self._task, self._pool = cell, cell.task, cell.pool
        self._seeds = (secrets.randbits(31), secrets.randbits(31))  # of the inputs
        self._sample_seed = secrets.randbits(31)  # of what these checks look at; no side learns it
        self._base_only = not any(arm.under_test and arm.side != "base" for arm in cell.task.arms)
        # Of timed calls the judge also checks types, which must be those of base's outputs: a new judge looks at these first.
        self._new_judge = cell.task.options.untrusted and cell.task.handed.judge != self._judge_pid()
        self._snapped: int | None = None  # process id of the judge that has a turn's outputs in its memory

    def _judge_pid(self) -> int | None:
        with contextlib.suppress(WorkerDied, WorkerFault):  # the first request to it says why
            return self._pool.judge().pid
        return None

    def check(self, state: ArmState) -> None:
        """Check what a call of the arm returns, if this epoch does or, with --untrusted, none has yet."""
        options = self._task.options
        missing = options.untrusted and (self._new_judge or state.arm.id not in self._task.handed.right)
        if options.check != "outside" or not (self._task.check or missing) or state.arm.peer:
            return
        if not (state.takes_turns and state.outcome.status == "ok"):
            return
        began = time.monotonic()
        self._check(state)
        self._cell.checking += time.monotonic() - began

    def _check(self, state: ArmState) -> None:
        try:
            fault = self._fault_outside(state)
        except (WorkerFault, WorkerDied) as error:
            at = error.at if isinstance(error, WorkerFault) else ""
            self._cell.fail(state, "crash", f"its outputs could not be checked outside its process: {error.reason}", at)
            state.outcome = msgspec.structs.replace(state.outcome, check=None)  # the next epoch checks again
            state.opened = None
            return
        if fault:
            self._cell.wrong(state, fault)
        elif state.takes_turns:
            self._task.handed.right.add(state.arm.id)

    def _fault_outside(self, state: ArmState) -> str:
        """Check the arm's outputs in another process and return what is wrong; "": nothing, or the arm failed.

        Calls the operation twice, and changes its inputs in place in between. If only the second outputs are wrong,
        `prepare` is called again, since it may have transformed the inputs (at once, if base's did). If they are then still
        wrong, but not on base, the package returns old outputs. Raises WorkerFault and WorkerDied if the other process fails.
        """
        first, second = self._seeds
        anew = state.arm.side != "base" and state.arm.variant in self._task.handed.packs
        found = self._examined_outside(state, second, anew=anew)
        plain = self._examined_outside(state, None) if found else None
        if not found or plain is None:
            return ""
        if plain:
            return f"checked outside its process (seed {first}): {plain}"
        kept = found if anew else self._examined_outside(state, second, anew=True)
        if kept is None:
            return ""
        if state.arm.side == "base":
            (self._task.handed.keeps if kept else self._task.handed.packs).add(state.arm.variant)
        blamed = kept and state.arm.side != "base" and state.arm.variant not in self._task.handed.keeps
        return f"{KEPT} (seeds {first}, {second})" if blamed else ""

    def drawn(self, state: ArmState, turn: wire.Turn) -> wire.Turn:
        """Return the turn with inputs that change and outputs that are kept, for --untrusted."""
        if not self._task.options.untrusted:
            return turn
        state.turns += 1
        name = hashlib.sha256(state.arm.id.encode()).hexdigest()[:24]
        draw = [*self._seeds, 2 * secrets.randbits(30) + self._choice(state)]
        anew = state.arm.variant in self._task.handed.packs
        outputs = f"{state.arm.side}/{name}.calls"
        return dataclasses.replace(turn, draw=draw, outputs=outputs, anew=anew, shared=self._fitting > 0)

    @property
    def most_calls(self) -> int:
        """Return of how many calls of a turn the outputs can be kept."""
        return max(1, min(_MOST_KEPT, self._fitting or _MOST_BYTES // max(1, self._task.handed.bytes)))

    @property
    def _fitting(self) -> int:
        """Return how many calls' outputs fit into the judge's GPU memory in a turn; 0: use a file."""
        return max(0, self._pool.factory.room // max(1, self._task.handed.bytes) - _REPEATS)

    def _choice(self, state: ArmState) -> int:
        """Return which integers the first call of the arm's turn gets (`drawn.seed`): in a round the same for all arms."""
        return (self._task.epoch + state.turns) % 2

    def draws(self, state: ArmState) -> bool:
        """Draw whether to check what the arm's turn has returned.

        The share of turns falls with their number: of 8 turns 3 are checked, of 100 turns 7. Of base two turns are checked,
        one for each choice of integers: if they are wrong, the fault is the workload's and not the target's. If base is the
        only side, its turns are drawn like a target's.
        """
        if not state.arm.under_test:
            return False
        if state.arm.side == "base" and not self._base_only:
            return (state.arm.variant, self._choice(state)) not in self._task.handed.timed
        return not secrets.randbelow(1 + (state.turns + 1) // 2)

    def at_reply(self, state: ArmState, turn: wire.Turn, *, kept: bool) -> list[list[Any]]:
        """Have another process read the outputs of a turn that has just ended: all by the judge, or some in their file.
        `kept`: the judge shall not overwrite them before it has checked them."""
        if not turn.shared:
            return _glimpsed(self._pool.factory.scratch / turn.outputs, self._pool.factory.scratch, turn.calls)
        size = min(self._pool.factory.room, self._task.handed.bytes * (turn.calls + _REPEATS))
        try:
            self._pool.judge().call(wire.Snap(state.arm.worker, size, kept), self._task.options.timeout)
            if kept:
                self._snapped = self._judge_pid()
        except (WorkerFault, WorkerDied) as error:
            self._cell.fail(state, "crash", f"the worker that reads outputs failed: {error.reason}")
        return []

    def copied(self, turn: wire.Turn) -> wire.Turn:
        """Copy the turn's outputs to a file that no side can write, and return the turn with that file. Otherwise a side
        could compute them before the check, in the turn of another of its variants. Raises OSError."""
        if turn.shared:
            return turn
        scratch, most = self._pool.factory.scratch, self._task.handed.bytes * (turn.calls + _REPEATS) or _MOST_BYTES
        data, place = b"", Path("drawn", turn.outputs.replace("/", "-"))
        with contextlib.suppress(OSError):  # the judge then says what is missing
            data = doorway.read(scratch / turn.outputs, most, scratch)
        (scratch / place).parent.mkdir(exist_ok=True)
        (scratch / place).write_bytes(data)
        return dataclasses.replace(turn, outputs=str(place))

    def check_drawn(self, state: ArmState, turn: wire.Turn, read: wire.Turned, seen: list[list[Any]]) -> None:
        """Have the judge check what one timed call of the turn returned, and that it is what was `seen` at the reply.

        Which call is drawn now, so code cannot foresee it; half of the times it is the last, whose work could go on after
        the reply.
        """
        if not state.takes_turns:
            return
        began, cell, base = time.monotonic(), self._task.cell, state.arm.side == "base" and not self._base_only
        pick = 0 if base else secrets.choice([turn.calls - 1, secrets.randbits(31)])
        try:
            if turn.shared and self._snapped != self._judge_pid():
                raise WorkerDied("it ended before the check")
            request = wire.Examine(
                cell.workload, dict(cell.params), self._task.options.seed, turn.outputs, draw=turn.draw,
                calls=turn.calls, layouts=read.layouts, pick=pick, seen=seen,
                shared=turn.shared, sample_seed=self._sample_seed,
            )  # fmt: skip
            checked: wire.CheckResult = self._pool.judge().call(request, self._task.options.timeout)
            if not checked.ok:
                self._cell.wrong(state, f"a timed call's outputs, on inputs drawn for it: {checked.reason or SAYS_NO}")
            elif base:
                self._task.handed.timed.add((state.arm.variant, turn.draw[2] % 2))
        except WorkerFault as error:
            if error.status != "unsupported":  # outputs that the check does not take
                self._cell.wrong(state, f"a timed call's outputs: {error.reason}")
            for other in self._cell.states if error.status == "unsupported" else ():
                self._cell.fail(other, "unsupported", error.reason)
                other.opened = None
        except WorkerDied as error:
            self._cell.fail(state, "crash", f"the worker that checks timed calls died: {error.reason}")
            state.opened = None
        self._cell.checking += time.monotonic() - began

    def _examined_outside(self, state: ArmState, again: int | None, *, anew: bool = False) -> str | None:
        cell, seed = self._task.cell, self._seeds[0]
        name = f"{state.arm.side}/{hashlib.sha256(f'{cell.id} {state.arm.id}'.encode()).hexdigest()[:24]}.outputs"
        if self._cell.ask(state, wire.Hand(state.arm.id, seed, name, again, anew)) is None:
            return None
        if state.arm.side == "base":
            with contextlib.suppress(OSError):
                size = (self._pool.factory.scratch / name).lstat().st_size
                self._task.handed.bytes = max(self._task.handed.bytes, size)
        request = wire.Examine(cell.workload, dict(cell.params), seed, name, again, sample_seed=self._sample_seed)
        checked: wire.CheckResult = self._pool.judge().call(request, self._task.options.timeout)
        if state.arm.side == "base":
            self._task.handed.judge = self._judge_pid()
        return "" if checked.ok else checked.reason or SAYS_NO


def _glimpsed(path: Path, root: Path, calls: int) -> list[list[Any]]:
    """Return the size of the file in which a turn's outputs are, and its bytes at places drawn now, half of them in the last
    call's outputs: what a thread or the GPU writes there later is not what was returned (wire.Examine.seen)."""
    with contextlib.suppress(OSError), doorway.opened(path, root) as file:
        size = os.fstat(file.fileno()).st_size
        spans = [size // (calls if number % 2 else 1) or 1 for number in range(_PLACES if size else 0)]
        places = [size - 1 - secrets.randbelow(span) for span in spans]
        return [[size, ""], *([place, os.pread(file.fileno(), _PIECE, place).hex()] for place in places)]
    return [[-1, ""]]
