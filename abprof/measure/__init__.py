"""Measuring: from options to blocks of timed rounds.

In: a run context (`look_around`) and the sides' worktrees. `make_plan` asks the workloads for cells, `assign_arms` says who
takes turns in each, and `epochs` starts worker pools and yields blocks, as long as `wanted()` names cells that need one
more. `follow_up` yields the measurements after that. Nothing here judges or reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.measure.epoch_loop import epochs
    from abprof.measure.followup import follow_up
    from abprof.measure.plan import Continued, Plan, assign_arms, make_plan
    from abprof.measure.run_context import RunContext, look_around

__all__ = ["Continued", "Plan", "RunContext", "assign_arms", "epochs", "follow_up", "look_around", "make_plan"]


def __getattr__(name: str) -> Any:
    """Load on first use: the modules import devices and git."""
    if name in __all__:
        from abprof.measure import followup, plan, run_context
        from abprof.measure.epoch_loop import epochs

        known = {"epochs": epochs, **vars(run_context), **vars(plan), **vars(followup)}
        return known[name]
    raise AttributeError(name)
