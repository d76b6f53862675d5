"""What a run vouches for less than abprof's own protocol does: each as one sentence that every page shows. Pure."""

from __future__ import annotations

from abprof.model import Run

_REPORTED = (
    "Weaker guarantee: the command timed itself. Whether its outputs are right, and which code its processes loaded, "
    "nobody looked at."
)
_SIDES = (
    "Weaker guarantee: {names} has no reference. That the sides' outputs agree is all that was checked: what both do wrong "
    "is not seen."
)


def weaker(run: Run) -> tuple[str, ...]:
    """Sentences; none for a run of workloads that check their outputs, timed by abprof."""
    alone = [load.name for load in run.workloads if load.checked == "sides" and load.judge != "reported"]
    if run.command is not None:
        return (_REPORTED,)
    return (
        (_SIDES.format(names=", ".join(name if name.isprintable() else ascii(name) for name in alone)),)
        if alone
        else ()
    )
