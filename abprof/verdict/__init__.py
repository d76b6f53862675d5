"""Verdicts: pure functions from a run's header (run.json without results), blocks and proofs to its results.

`judge` returns the run with comparisons, observations, warnings, and a summary with the exit code. `undecided` is the
stopping rule. `aggregate` collects each cell's data, and CellCache keeps the data between calls. The modules `stats`
(numbers), `headline` (counts, summary, warnings) and `waivers` are public too. Only records are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.verdict.cells import CellCache, CellData, aggregate
    from abprof.verdict.judgement import decide, epochs_counted, judge, provisional, undecided

__all__ = ["CellCache", "CellData", "aggregate", "decide", "epochs_counted", "judge", "provisional", "undecided"]


def __getattr__(name: str) -> Any:
    """Import the functions on first use: importing numpy takes longer than a short command."""
    if name in __all__:
        from abprof.verdict import judgement

        return getattr(judgement, name)
    raise AttributeError(name)
