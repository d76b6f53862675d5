"""The base class of records, and the names of statuses, verdicts, timers and metrics."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from abprof.records.messages import Judge

VERSION = "0.1.0"  # of abprof; `abprof.__version__`
SCHEMA = 2  # of run.json
Status = Literal[
    "ok", "wrong", "outside_turn", "unsupported", "missing", "build_failed", "oom", "timeout", "crash", "identical",
]  # fmt: skip
Verdict = Literal["faster", "slower", "slight", "same", "unclear", "broken"]
Timer = Literal["auto", "events", "graph", "cupti", "cpu"]  # as requested; auto: chosen in abprof/measure/turns.py

# Raised by msgspec for a malformed file: RecursionError for deeply nested JSON, UnicodeDecodeError for binary data.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)

# Judged metrics.
GPU_GRAPH = "gpu_graph"  # device time of a replayed CUDA graph: without launches, with warm caches
GPU_KERNELS = "gpu_kernels"  # sum of the durations of a call's kernels, by CUPTI
REPORTED = "reported"  # printed by the command under test: a weaker guarantee (abprof/measure/commands.py)
JUDGED_METRIC: dict[Judge, str] = {
    "gpu": "gpu_span", "graph": GPU_GRAPH, "kernels": GPU_KERNELS, "wall": "wall", "reported": REPORTED,
}  # fmt: skip
HOST = "host"  # host time to enqueue a call on an idle device: no verdict uses it
SUSTAINED = "gpu_sustained"  # calls without pauses: may withhold a verdict, or with --regime sustained give it
_GONE = ("seed_latency", "do_bench_latency", "turn_length", "one_worker", "idle_second_worker")  # of older selfchecks
UNJUDGED_METRICS = (SUSTAINED, *_GONE)  # of blocks that are not turns


def untrusted(data: bytes) -> Any:
    """Decode untrusted JSON. Raises an exception in UNREADABLE, or OverflowError for an integer above 64 bits."""
    loose = msgspec.json.decode(data)
    msgspec.msgpack.encode(loose)  # raises for values that run.json cannot store
    return loose


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of records: frozen, and without unknown keys. `kw_only` is not inherited: subclasses repeat it."""
