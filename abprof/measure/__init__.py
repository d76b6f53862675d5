"""Measuring: from options to blocks of timed rounds. This package judges and reports nothing.

`look_around` finds the run context, and `Plan.of` lays out the cells; a plan builds kernel packages and chooses the arms
of each cell. `epochs` yields blocks as long as `wanted()` names cells that need another epoch; `follow_up` then makes
slices without pauses and profiles. A `Bench` measures a command that times itself, an `Estimate` forecasts how long a
run takes, and `Discovered.of` lists workloads and cells without a plan.
"""

from abprof.measure.commands import Bench
from abprof.measure.discovery import Discovered
from abprof.measure.epoch_loop import epochs
from abprof.measure.estimate import Estimate
from abprof.measure.followup import follow_up
from abprof.measure.plan import Plan
from abprof.measure.run_context import RunContext, look_around

__all__ = ["Bench", "Discovered", "Estimate", "Plan", "RunContext", "epochs", "follow_up", "look_around"]
