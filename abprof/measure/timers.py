"""Which timer reads a cell of a GPU under `--timer auto`: events, or CUPTI's records where a call spans less than 20 us.

An event pair holds the latency of a launch, which is of the process and not of the code: of calls so short it is what fresh
processes differ by. CUPTI's records tell when the kernels themselves began and ended. The rule is of the cell: the same
for all its arms and epochs, chosen at its first opening, and kept by whatever goes on with the run (its blocks say it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from abprof.measure import turns
from abprof.measure.pool import WorkerPool
from abprof.records import Block, Cell, Run, Toolchain
from abprof.records import messages as wire
from abprof.system.processes import WorkerDied, WorkerFault

PACKAGE = "cupti-python"
INSTALL = "pip install 'abprof[cupti]'"
_DEATHS = 2  # of workers that were asked whether CUPTI can read them; one may be chance


class Timers:
    """Timers chosen so far. `chosen`: cell -> timer of the run's earlier blocks; `never`: why CUPTI reads no other cell."""

    def __init__(self, chosen: Mapping[str, str] | None = None, never: str = "") -> None:
        self._of = dict(chosen or {})
        self._why: dict[str, str] = {}
        self._never = never
        self._deaths = 0

    def choose(self, cell: Cell, call_ns: Sequence[float], ask: Callable[[], str], events: str) -> tuple[str, str]:
        """The cell's timer, and why events read it though its calls are short ("" for no reason).

        Decided at the first set-up by `call_ns` of each arm that takes turns, without peers. `ask()` returns why CUPTI cannot
        read all workers, or raises WorkerDied; `events` is the timer in that case.
        """
        if cell.id not in self._of:
            short = turns.short(call_ns)
            why = (self._never or self._answer(ask)) if short else ""
            self._of[cell.id] = turns.CUPTI if short and not why else events
            self._why[cell.id] = why
        return self._of[cell.id], self._why.get(cell.id, "")

    def _answer(self, ask: Callable[[], str]) -> str:
        if self._deaths >= _DEATHS:
            return f"{_DEATHS} workers died of the question"
        try:
            return ask()
        except WorkerDied as died:
            self._deaths += 1
            return died.reason


def read_by(blocks: Iterable[Block]) -> dict[str, str]:
    """Cell -> what read its turns, in blocks whose metric more than one timer may read."""
    return {block.cell: block.timer for block in blocks if block.judged and block.rounds and block.metric == "gpu_span"}


def lacking(chains: Mapping[str, Toolchain]) -> str:
    """The first side whose interpreter certainly has no cupti-python; "" where none is known."""
    for side, chain in chains.items():
        packages = {name.lower().replace("_", "-") for name in chain.packages}
        if packages and PACKAGE not in packages:
            return side
    return ""


def never(run: Run) -> str:
    """Why CUPTI can read no further cell of this run; "" if only the workers know."""
    side = lacking(run.toolchains)
    return f"{PACKAGE} is not installed for {side}" if side else ""


def unrecorded(pool: WorkerPool, workers: Iterable[str], timeout: float) -> str:
    """Why CUPTI cannot read all of these workers; "" if it can. Restarts none. Raises WorkerDied."""
    for worker in dict.fromkeys(workers):
        if pool.pid(worker) is None:
            return f"{worker} has no worker that could be asked"
        try:
            reply: wire.Done = pool.worker(worker).call(wire.Records(), timeout)
        except WorkerFault as fault:
            return f"{worker}: {fault.reason}"
        except WorkerDied as died:
            raise WorkerDied(f"{worker}: {died.reason}") from died
        if reply.why:
            return f"{worker}: {reply.why}"
    return ""


def notes(blocks: Iterable[Block]) -> tuple[str, ...]:
    """A line for a run in which events read short calls, because CUPTI could not."""
    why = next((block.unrecorded for block in blocks if block.unrecorded), "")
    if not why:
        return ()
    how = f": {INSTALL}" if PACKAGE in why else ""
    return (f"events read calls under {turns.SHORT / 1e3:g} us ({why}); CUPTI's records read them closer{how}",)
