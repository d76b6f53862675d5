"""The records that travel between the stages, and the one typed definition of run.json and rounds.jsonl.

Every record is frozen. `Record` is msgspec's struct rather than the standard library's dataclass because the same
definition then also gives the strict reader and the JSON Schema in docs/schemas/ (abprof/store/runfolder.py).
Units: times in nanoseconds, memory in bytes, changes in per cent of time (negative is faster).
"""

from __future__ import annotations

from abprof.records.base import UNREADABLE, Judge, Record, Status, Timer, Value, Verdict
from abprof.records.blocks import (
    FASTEST_CLOCK,
    LONGEST_CALL,
    Block,
    Census,
    CheckResult,
    Launch,
    MachineState,
    Outcome,
    Range,
    Trace,
    Turn,
)
from abprof.records.builds import Artefact, Build, Failure, Function, Kernel, Proof
from abprof.records.cells import (
    PEERS,
    STANDING_IN,
    Arm,
    Band,
    Cell,
    Checkout,
    Command,
    Package,
    Phase,
    Side,
    Sweep,
    Workload,
)
from abprof.records.findings import Finding, Placed
from abprof.records.metrics import (
    ALONE,
    DO_BENCH_METRIC,
    GPU_GRAPH,
    GPU_KERNELS,
    HOST,
    IDLE_SECOND,
    JUDGED_METRIC,
    REPORTED,
    SEED_METRIC,
    SEQUENTIAL_METRICS,
    SUSTAINED,
    TURN_LENGTH,
    UNJUDGED_METRICS,
)
from abprof.records.options import Night, Options
from abprof.records.profiles import KernelProfile, Profile
from abprof.records.results import Advice, Cause, Comparison, Header, Metric, Observation
from abprof.records.run import Ceilings, Loss, Machine, Run, Toolchain, Touched, Waiver
from abprof.records.samples import Sampled, SampledFunction

SCHEMA = 2
POWER_CAP = "software power cap"  # in MachineState.throttle: the device slowed down to stay within its power limit

__all__ = [
    "ALONE",
    "DO_BENCH_METRIC",
    "FASTEST_CLOCK",
    "GPU_GRAPH",
    "GPU_KERNELS",
    "HOST",
    "IDLE_SECOND",
    "JUDGED_METRIC",
    "LONGEST_CALL",
    "PEERS",
    "POWER_CAP",
    "REPORTED",
    "SCHEMA",
    "SEED_METRIC",
    "SEQUENTIAL_METRICS",
    "STANDING_IN",
    "SUSTAINED",
    "TURN_LENGTH",
    "UNJUDGED_METRICS",
    "UNREADABLE",
    "Advice",
    "Arm",
    "Artefact",
    "Band",
    "Block",
    "Build",
    "Cause",
    "Ceilings",
    "Cell",
    "Census",
    "CheckResult",
    "Checkout",
    "Command",
    "Comparison",
    "Failure",
    "Finding",
    "Function",
    "Header",
    "Judge",
    "Kernel",
    "KernelProfile",
    "Launch",
    "Loss",
    "Machine",
    "MachineState",
    "Metric",
    "Night",
    "Observation",
    "Options",
    "Outcome",
    "Package",
    "Phase",
    "Placed",
    "Profile",
    "Proof",
    "Range",
    "Record",
    "Run",
    "Sampled",
    "SampledFunction",
    "Side",
    "Status",
    "Sweep",
    "Timer",
    "Toolchain",
    "Touched",
    "Trace",
    "Turn",
    "Value",
    "Verdict",
    "Waiver",
    "Workload",
]
