"""What read the times: the timer that was asked for, and of launch-bound cells the host's part beside the device's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from abprof.records import GPU_GRAPH, HOST, Block, Observation, Run
from abprof.report import numbers, words
from abprof.report.view import Row

Facts = list[tuple[str, str]]

# Metric -> what a verdict by it is judged by.
CLOCKS = {
    "gpu_span": "GPU time",
    GPU_GRAPH: "GPU time in CUDA graphs (no launches in between, warm caches)",
    "gpu_kernels": "kernels' durations by CUPTI",
    "wall": "wall clock",
}
_ASKED = {
    "auto": "CUDA events on a GPU, CUPTI's records of calls under 20 us where they can be had, the wall clock on a CPU or "
    "where a workload asks for it",
    "events": "CUDA events for every cell",
    "graph": "replays of CUDA graphs for every cell: no launches in between, warm caches",
    "cupti": "CUPTI's activity records for every cell: the durations of a call's kernels, copies and fills, added up",
    "cpu": "the host's clock for every cell",
}
_GRAPH_IS = "warm caches, no launches in between; not judged"


def facts(run: Run, blocks: Iterable[Block]) -> Facts:
    """The timer as it was asked for, and how many cells were launch-bound. Nothing of a command, which times itself."""
    if run.command:
        return []
    found = [("timer", f"{run.options.timer}: {_ASKED[run.options.timer]}")]
    bound = {block.cell for block in blocks if block.beside}
    without = {seen.cell for seen in run.observations if seen.uncaptured}
    if bound:
        text = f"{words.plural(len(bound), 'cell')}, replayed from CUDA graphs beside their turns ({_GRAPH_IS})"
        text += f"; {len(bound & without)} cannot be captured" if bound & without else ""
        found.append(("launch-bound", text))
    return found


def rows(row: Row, sides: Sequence[Observation | None]) -> Iterator[tuple[str, list[str]]]:
    """Of a row's detail: what read its time, the host's part of a call, and its time in graphs or why it has none."""
    timers = [numbers.metric(seen, row.metric) for seen in sides]
    yield "timer", [words.clean(one.protocol, 100) if one else "" for one in timers]
    yield "host, to enqueue", [_time(seen, HOST) for seen in sides]
    if row.metric != GPU_GRAPH:
        judged = row.comparison
        if judged is not None and judged.graph_low_pct is not None and judged.graph_high_pct is not None:
            yield "in CUDA graphs", [f"{words.interval(judged.graph_low_pct, judged.graph_high_pct)} ({_GRAPH_IS})"]
        yield "– time", [_time(seen, GPU_GRAPH) for seen in sides]
    yield "no CUDA graph", [words.clean(seen.uncaptured) if seen else "" for seen in sides]


def _time(seen: Observation | None, metric: str) -> str:
    ns = numbers.time_ns(seen, metric)
    return "" if ns is None else words.duration(ns)
