"""Measuring: from options to blocks of timed rounds. This package judges and reports nothing.

`look_around` finds the run context, `make_plan` lays out the cells, `build_kernels` builds kernel packages, and
`assign_arms` chooses the arms of each cell. `epochs` yields blocks as long as `wanted()` names cells that need another
epoch; `follow_up` then makes profiles and sustained runs. `commands` measures commands that time themselves.
"""

from abprof.measure import commands, continued, discovery, estimate, matrix, plan, run_context, turns
from abprof.measure.epoch_loop import Item, epochs
from abprof.measure.followup import follow_up, owed
from abprof.measure.plan import Continued, Plan, assign_arms, build_kernels, make_plan
from abprof.measure.pool import WorkerPool, WorkerSpec, foreground
from abprof.measure.run_context import RunContext, look_around

__all__ = [
    "Continued", "Item", "Plan", "RunContext", "WorkerPool", "WorkerSpec", "assign_arms", "build_kernels", "commands",
    "continued", "discovery", "epochs", "estimate", "follow_up", "foreground", "look_around", "make_plan", "matrix", "owed",
    "plan", "run_context", "turns",
]  # fmt: skip
