"""Compute verdicts: pure functions of a run's header (run.json without results), blocks (the rounds of a cell in an
epoch) and proofs (whether workers loaded only files of their own side).

`judge` returns the run with comparisons, warnings, a summary and an exit code. `undecided` returns the cells that need
more epochs. `aggregate` returns the data of each cell; a CellCache keeps the data between calls. The modules `stats`,
`headline` and `waivers` are public too. The package imports only records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.verdict.cells import CellCache, CellData, aggregate
    from abprof.verdict.judgement import decide, epochs_counted, judge, provisional, undecided

__all__ = ["CellCache", "CellData", "aggregate", "decide", "epochs_counted", "judge", "provisional", "undecided"]


def __getattr__(name: str) -> Any:
    """Import the functions on first use, because importing numpy is slow."""
    if name in __all__:
        from abprof.verdict import judgement

        return getattr(judgement, name)
    raise AttributeError(name)
