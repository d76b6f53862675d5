"""Verdicts: records in (a run's head, blocks of rounds, proofs), the run with its results out. Pure; imports records alone.

`judge` gives comparisons with verdicts, observations, warnings and the header with its exit code; `undecided` is the
stopping rule; `aggregate` gives each cell's data, CellCache keeps it from call to call. The modules `stats` (numbers),
`headline` (counts and the sentence) and `waivers` belong to the face.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.verdict.cells import CellCache, CellData, aggregate
    from abprof.verdict.judgement import decide, epochs_counted, judge, provisional, undecided

__all__ = ["CellCache", "CellData", "aggregate", "decide", "epochs_counted", "judge", "provisional", "undecided"]


def __getattr__(name: str) -> Any:
    """Load on first use: numpy costs more than a short command."""
    if name in __all__:
        from abprof.verdict import judgement

        return getattr(judgement, name)
    raise AttributeError(name)
