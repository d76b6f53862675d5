"""What a run vouches for less than abprof's own protocol does: each as one sentence that every page shows. Pure."""

from __future__ import annotations

from typing import Literal

from abprof.records import Run

Lacking = Literal["", "reported", "sides"]
_REPORTED = (
    "the command timed itself. Whether its outputs are right, and which code its processes loaded, nobody looked at."
)
_SIDES = (
    "{names} has no reference. That the sides' outputs agree is all that was checked: what both do wrong is not seen."
)
_ONE = (
    "{names} has no reference, and one branch alone has no other side whose outputs could agree: "
    "what a call returns was not checked."
)


def lacking(run: Run) -> tuple[Lacking, tuple[str, ...]]:
    """What is lacking, and in which workloads: `reported` is the time and all else of a command, `sides` a reference."""
    if run.command is not None:
        return "reported", ()
    alone = tuple(load.name for load in run.workloads if load.checked == "sides" and load.judge != "reported")
    return ("sides", alone) if alone else ("", ())


def said(lack: Lacking, names: str) -> str:
    """The sentence behind `Weaker guarantee: `, with these names of workloads."""
    return {"": "", "reported": _REPORTED, "sides": _SIDES.format(names=names)}[lack]


def in_one_line(lack: Lacking, names: str = "") -> str:
    """The whole sentence."""
    return f"Weaker guarantee: {said(lack, names)}"


def weaker(run: Run, most: int = 0) -> tuple[str, ...]:
    """Sentences, which name so many workloads at most (0: all); none for a run of workloads that check their outputs, timed
    by abprof."""
    lack, names = lacking(run)
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in names[: most or None])
    if most and len(names) > most:
        shown += f" and {len(names) - most} more"
    if not lack:
        return ()
    if lack == "sides" and len(run.sides) == 1:
        return (f"Weaker guarantee: {_ONE.format(names=shown)}",)
    return (in_one_line(lack, shown), *_not_even_that(run))


def _not_even_that(run: Run) -> tuple[str, ...]:
    """Cells whose calls returned nothing that could be compared."""
    cells = {seen.cell for seen in run.observations if seen.check is not None and not seen.check.compared}
    if not cells:
        return ()
    many = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    return (
        f"Of {many} not even that was checked: a call returns nothing that can be compared (`checked` in its details).",
    )
