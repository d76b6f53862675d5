"""Verdicts: pure functions from a run's header (run.json without results), blocks and proofs to its results.

`judge` returns the run with comparisons, observations, warnings, and a summary with the exit code. `undecided` names
the cells to measure further. `aggregate` collects cells' data, which a CellCache keeps between calls. Modules `stats`
(numbers), `headline` (counts, summary, warnings) and `waivers` are public too. The package imports only records.
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
