"""What a run guarantees less than abprof's own protocol: one sentence each, shown on every page."""

from __future__ import annotations

from typing import Literal

from abprof.records import Run

Lacking = Literal["", "reported", "sides"]
_REPORTED = (
    "the command timed itself. Whether its outputs are right, and which code its processes loaded, is not checked."
)
_SIDES = "{names} has no reference. Only the agreement of the sides' outputs was checked: a common error is not seen."
_ONE = (
    "{names} has no reference, and one branch alone has no other side whose outputs could agree: "
    "what a call returns was not checked."
)


def lacking(run: Run) -> tuple[Lacking, tuple[str, ...]]:
    """What is lacking, and in which workloads: `reported`, a command that times itself; `sides`, no reference."""
    if run.command is not None:
        return "reported", ()
    alone = tuple(load.name for load in run.workloads if load.checked == "sides" and load.judge != "reported")
    return ("sides", alone) if alone else ("", ())


def sentence(lack: Lacking, names: str) -> str:
    """The sentence behind `Weaker guarantee: `, with these names of workloads."""
    return {"": "", "reported": _REPORTED, "sides": _SIDES.format(names=names)}[lack]


def in_one_line(lack: Lacking, names: str = "") -> str:
    """The whole sentence."""
    return f"Weaker guarantee: {sentence(lack, names)}"


def weaker(run: Run, most: int = 0) -> tuple[str, ...]:
    """The run's sentences, naming at most so many workloads (0: all); empty if its workloads check outputs and abprof times."""
    lack, names = lacking(run)
    if not lack:
        return ()
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in names[: most or None])
    shown += f" and {len(names) - most} more" if most and len(names) > most else ""
    if lack == "sides" and len(run.sides) == 1:
        return (f"Weaker guarantee: {_ONE.format(names=shown)}",)
    cells = {seen.cell for seen in run.observations if seen.check is not None and not seen.check.compared}
    if not cells:
        return (in_one_line(lack, shown),)
    many = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    return in_one_line(
        lack, shown
    ), f"Of {many} not even that: a call returns nothing comparable (`checked` in its details)."
