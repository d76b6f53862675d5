"""Who can mend an arm that did not run, and where to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from abprof.records import CheckResult, Status
from abprof.records import messages as wire
from abprof.verdict.cell_data import RUNS, ArmState, Evidence

_IN_ORDER = ("inputs", "reference", "check")  # the workload's own functions, as they are called of an arm


class Seen(Protocol):
    """What is known of an arm of a cell: its state while a run is judged, its observation afterwards."""

    @property
    def status(self) -> Status: ...
    @property
    def at(self) -> str: ...
    @property
    def check(self) -> CheckResult | None: ...


def of(item: Evidence, arm: str, state: ArmState, *, on_base: bool) -> str:
    """What to do about an arm of a cell that did not run."""
    if not state.at and undescribed(item.cell.id):
        file = f"{item.cell.workload}.py"
        if wire.no_module(state.reason):
            return f"a module that {file} needs is missing: install it for the workers, or mend {file}; {_log(state)}"
        return f"no worker could ask {file} what it is: {_log(state)} tells how far it came"
    if state.at and not workloads_own(arm, item.states):
        return f"{state.at} {_but(state, item)}: mend {arm}, or that; {_log(state)} has the whole of it"
    if on_base and not state.at:
        return "mend the base, or compare with another ref"
    return _where(state)


def undescribed(cell: str) -> bool:
    """Whether this cell (its id) stands for a whole workload that could not say what it is: no side had a part in it."""
    return cell.endswith("/")


def workloads_own(arm: str, seen: Mapping[str, Seen]) -> bool:
    """Whether a crash of this arm in a function of the workload is the workload's doing; `seen`: all arms of the cell. It is
    where another side's came to the same place. Else check() has only what this side returned, and what no kernel was given may
    still depend on the side, if another arm came past it."""
    at = seen[arm].at
    function, of, _ = at.partition("() of ")
    if not of:  # of the workload as a whole, which no side had a part in
        return bool(at)
    others = [each for id, each in seen.items() if _whose(id) != _whose(arm)]
    if function == "check" and any(each.check is not None for each in seen.values()):
        return False
    if any(each.at == at for each in others):
        return True
    return not others if function == "check" else not any(_came_past(function, each) for each in seen.values())


def _whose(arm: str) -> str:
    """The side whose code an arm runs; a peer is one of its own, and the control is base again."""
    side = arm.partition(":")[0]
    return arm if side == "peer" else "base" if side == "control" else side


def _came_past(function: str, seen: Seen) -> bool:
    reached = seen.at.partition("()")[0]
    if reached in _IN_ORDER:
        return function in _IN_ORDER[: _IN_ORDER.index(reached)]
    return seen.check is not None or seen.status in RUNS or seen.status in ("wrong", "crash")


def _but(state: ArmState, item: Evidence) -> str:
    if not state.at.startswith("check()"):
        return "did not fail for another arm"
    read = any(each.check is not None for each in item.states.values())
    return "could read what another arm returned" if read else "may not have expected what this arm returned"


def _log(state: ArmState) -> str:
    return f"logs/{state.log.removeprefix('logs/')} in the run folder"


def _where(state: ArmState) -> str:
    """Where to look, for an arm that does not run: its own log where there is one."""
    if state.at:
        return f"the fault is the workload's own: mend {state.at}; {_log(state)} has the whole of it"
    if state.log:
        return f"read {_log(state)}"
    if state.status == "wrong":
        return "the workload's own check() compares with its reference; a speed of a wrong answer says nothing"
    if state.status == "missing":
        return (
            "add it on that side, or compare refs that both have it; abprof.toml may say where it lies (docs/CONFIG.md)"
        )
    if state.status == "unsupported":
        return "the kernel says so itself: leave the case out by the workload's skip(), or support it"
    return "the workers' logs are in logs/ of the run folder"
