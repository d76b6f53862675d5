"""What a run vouches for less than abprof's own protocol does: each as one sentence that every page shows. Pure."""

from __future__ import annotations

from abprof.model import Run

_REPORTED = (
    "Weaker guarantee: the command timed itself. Whether its outputs are right, and which code its processes loaded, "
    "nobody looked at."
)


def weaker(run: Run) -> tuple[str, ...]:
    """Sentences; none for a run of workloads that check their outputs, timed by abprof."""
    return (_REPORTED,) if run.command is not None else ()
