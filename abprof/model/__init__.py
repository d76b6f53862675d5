"""The records that travel between the stages, and the one typed definition of run.json and rounds.jsonl.

Every record is frozen. `Record` is msgspec's struct rather than the standard library's dataclass because the same
definition then also gives the strict reader and the JSON Schema in docs/schemas/ (abprof/runfolder.py).
Units: times in nanoseconds, memory in bytes, changes in per cent of time (negative is faster).
"""

from __future__ import annotations

from abprof.model.asked import Arm, Band, Cell, Checkout, Command, Package, Phase, Side, Sweep, Workload
from abprof.model.base import Judge, Record, Status, Value, Verdict
from abprof.model.built import Artefact, Build, Failure, Function, Kernel, Proof
from abprof.model.judged import Advice, Cause, Comparison, Header, Metric, Observation
from abprof.model.measured import Block, Census, CheckResult, Launch, MachineState, Outcome, Range, Trace, Turn
from abprof.model.profiled import KernelProfile, Profile
from abprof.model.run import Ceilings, Machine, Night, Run, Settings, Setup, Toolchain, Touched, Waiver
from abprof.model.sampled import Sampled, SampledFunction

SCHEMA = 1
# Timed as others do (abprof/sequential.py): shown, never judged.
SEED_METRIC, DO_BENCH_METRIC = "seed_latency", "do_bench_latency"
SEQUENTIAL_METRICS = (SEED_METRIC, DO_BENCH_METRIC)
# Of the instrument itself (abprof/selfcheck/studies.py): turns of several lengths, a worker alone, one beside an idle one.
TURN_LENGTH, ALONE, IDLE_SECOND = "turn_length", "one_worker", "idle_second_worker"
# Without a pause, at the power limit (abprof/sustained.py): reported apart, and may overrule the sign of a change.
SUSTAINED = "gpu_sustained"
UNJUDGED_METRICS = (*SEQUENTIAL_METRICS, TURN_LENGTH, ALONE, IDLE_SECOND, SUSTAINED)

# What a command says of itself: judged, with a weaker guarantee (abprof/reported/, abprof/guarantees.py).
REPORTED = "reported"
JUDGED_METRIC: dict[Judge, str] = {"gpu": "gpu_span", "wall": "wall", "reported": REPORTED}

POWER_CAP = "software power cap"  # in MachineState.throttle: the device slowed down to stay within its power limit

__all__ = [
    "ALONE",
    "DO_BENCH_METRIC",
    "IDLE_SECOND",
    "JUDGED_METRIC",
    "POWER_CAP",
    "REPORTED",
    "SCHEMA",
    "SEED_METRIC",
    "SEQUENTIAL_METRICS",
    "SUSTAINED",
    "TURN_LENGTH",
    "UNJUDGED_METRICS",
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
    "Function",
    "Header",
    "Judge",
    "Kernel",
    "KernelProfile",
    "Launch",
    "Machine",
    "MachineState",
    "Metric",
    "Night",
    "Observation",
    "Outcome",
    "Package",
    "Phase",
    "Profile",
    "Proof",
    "Range",
    "Record",
    "Run",
    "Sampled",
    "SampledFunction",
    "Settings",
    "Setup",
    "Side",
    "Status",
    "Sweep",
    "Toolchain",
    "Touched",
    "Trace",
    "Turn",
    "Value",
    "Verdict",
    "Waiver",
    "Workload",
]
