"""What every record is made of, and the names of what is measured."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from abprof.records.messages import Judge

SCHEMA = 2  # of run.json
Status = Literal["ok", "wrong", "unsupported", "missing", "build_failed", "oom", "timeout", "crash", "identical"]
Verdict = Literal["faster", "slower", "slight", "same", "unclear", "broken"]
Timer = Literal["auto", "events", "graph", "cupti", "cpu"]  # as requested; auto: by rules (abprof/measure/turns.py)

# What msgspec raises for a file that is not what it should be: with too many brackets within brackets, or no text, too.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)

# Judged metrics.
GPU_GRAPH = "gpu_graph"  # a call replayed from a CUDA graph: the device's time without launches, warm caches
GPU_KERNELS = "gpu_kernels"  # durations of a call's kernels, added up, by CUPTI
REPORTED = "reported"  # by the command under test itself: a weaker guarantee (abprof/measure/commands.py)
JUDGED_METRIC: dict[Judge, str] = {
    "gpu": "gpu_span",
    "graph": GPU_GRAPH,
    "kernels": GPU_KERNELS,
    "wall": "wall",
    "reported": REPORTED,
}
# Shown and never judged.
HOST = "host"  # time of the host to enqueue a call on an idle device
SUSTAINED = "gpu_sustained"  # without a pause, at the power limit: may overrule the sign of a change
_GONE = ("seed_latency", "do_bench_latency", "turn_length", "one_worker", "idle_second_worker")  # in older selfchecks
UNJUDGED_METRICS = (SUSTAINED, *_GONE)


def untrusted(data: bytes) -> Any:
    """JSON of a process that runs code under test. Raises UNREADABLE, and OverflowError for an integer of over 64 bits."""
    loose = msgspec.json.decode(data)
    msgspec.msgpack.encode(loose)  # fails on what a run cannot hold
    return loose


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: frozen, keyword-only (msgspec needs both repeated per class), an unknown key is an error."""
