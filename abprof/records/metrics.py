"""Names of what is measured, and which of it verdicts rest on."""

from __future__ import annotations

from abprof.records.base import Judge

# Timed as others do (abprof/measure/sequential.py): shown, never judged.
SEED_METRIC, DO_BENCH_METRIC = "seed_latency", "do_bench_latency"
SEQUENTIAL_METRICS = (SEED_METRIC, DO_BENCH_METRIC)
# Of the instrument itself (abprof/extras/selfcheck/studies.py): turns of several lengths, a worker alone, one beside an idle one.
TURN_LENGTH, ALONE, IDLE_SECOND = "turn_length", "one_worker", "idle_second_worker"
# Without a pause, at the power limit (abprof/measure/sustained.py): reported apart, and may overrule the sign of a change.
SUSTAINED = "gpu_sustained"
UNJUDGED_METRICS = (*SEQUENTIAL_METRICS, TURN_LENGTH, ALONE, IDLE_SECOND, SUSTAINED)

GPU_GRAPH = "gpu_graph"  # a call replayed from a CUDA graph: the device's time without launches, warm caches
GPU_KERNELS = "gpu_kernels"  # durations of what a call runs on the device, added up, as CUPTI tells them
HOST = "host"  # what the host needs to enqueue a call on an idle device; beside the device's time, never judged
# What a command says of itself: judged, with a weaker guarantee (abprof/measure/commands/, abprof/report/sentences.py).
REPORTED = "reported"
JUDGED_METRIC: dict[Judge, str] = {
    "gpu": "gpu_span",
    "graph": GPU_GRAPH,
    "kernels": GPU_KERNELS,
    "wall": "wall",
    "reported": REPORTED,
}
