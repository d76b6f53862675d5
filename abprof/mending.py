"""Who can mend an arm that did not run, and where to look."""

from __future__ import annotations

from collections.abc import Iterable

from abprof.evidence import ArmState, Evidence
from abprof.model import CheckResult


def of(item: Evidence, arm: str, state: ArmState, *, on_base: bool) -> str:
    """What to do about an arm of a cell that did not run."""
    others = [each.check for each in item.states.values()]
    if state.at and not workloads_own(state.at, others):
        return (
            f"{state.at} could read what another arm returned: mend {arm}, or that; {_log(state)} has the whole of it"
        )
    if on_base and not state.at:
        return "mend the base, or compare with another ref"
    return _where(state)


def workloads_own(at: str, checks: Iterable[CheckResult | None]) -> bool:
    """Whether a crash in the workload's function `at` is the workload's doing. A check() that came to a result for another arm of
    the cell may have been given something else by this one; `checks` are the results of the cell's arms."""
    return bool(at) and not (at.startswith("check()") and any(check is not None for check in checks))


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
