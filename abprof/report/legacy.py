"""The JSON files that the scripts before abprof wrote, for what still reads them: their keys, our numbers.

`analysis_results.json` (warp-specialised attention), `bubble_reduction.json` (patterns by sparsity),
`fmha_scaling_results.json` (the ladder over lengths). One file a branch, and one for each value of the axes those
scripts had fixed. Where they had no key for something, such as an interval, it is left out. What they never recorded
is null here; a step that did not run is left out, as there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from abprof.records import Block, Observation, Run, Value
from abprof.records.errors import AbprofError
from abprof.records.names import safe_label, safe_labels
from abprof.report import numbers, words
from abprof.report.view import Group, Row, groups

Arm = Callable[[Row], Observation | None]
Written = Iterator[tuple[str, Any]]
_CONFIG = {"tile_m": "block_m", "tile_n": "block_n", "occupancy": "per_sm", "num_ctas": "num_ctas"}
TIMES = 10  # the scripts kept that many
BASELINE = "sdpa"  # the peer that fmha_scaling_results counts from


def files(run: Run, blocks: Sequence[Block]) -> dict[str, str]:
    """File name -> JSON. Raises AbprofError for a run none of whose workloads such a script had."""
    made: dict[str, str] = {}
    labels = dict(zip((s.id for s in run.sides), safe_labels((s.label, s.commit) for s in run.sides), strict=True))
    for group in groups(run, together=True):
        write = _WRITERS.get(group.workload.suite)
        sides: list[tuple[str, Arm]] = [("base", lambda row: row.base)]
        if group.target:
            sides.append((group.target.id, lambda row: row.target))
        for side, arm in sides if write else ():
            for name, content in write(run, group, arm, blocks) if write else ():
                made[f"{name}_{labels[side]}.json"] = json.dumps(content, indent=2, allow_nan=False) + "\n"
    if not made:
        known = ", ".join(sorted(_WRITERS))
        raise AbprofError(
            "no script before abprof wrote a file for these workloads", where=run.id, advice=f"those of {known}"
        )
    return made


def _analysis(run: Run, group: Group, arm: Arm, blocks: Sequence[Block]) -> Written:  # noqa: ARG001
    found = []
    for row in group.rows:
        ns = numbers.time_ns(arm(row), row.metric)
        if ns:
            found.append({
                "n_ctx": row.cell.params["N_CTX"],
                "provider": row.variant,
                "time_ms": ns / 1e6,
                "tflops": numbers.tflops(row.cell, ns),
                "bandwidth_gb_s": numbers.gbps(row.cell, ns),
                "memory_mb": row.cell.bytes / 1e6 if row.cell.bytes else None,
            })  # fmt: skip
    yield "analysis_results", sorted(found, key=lambda one: (one["n_ctx"], one["provider"]))


def _bubbles(run: Run, group: Group, arm: Arm, blocks: Sequence[Block]) -> Written:
    for fixed, rows in _fixed(run, group, ("pattern", "sparsity")).items():
        found: dict[str, dict[str, Any]] = {}
        for row in rows:
            pattern, sparsity = str(row.cell.params["pattern"]), str(row.cell.params["sparsity"])
            found.setdefault(pattern, {})[sparsity] = _pattern(row, arm(row), blocks)
        yield f"bubble_reduction{fixed}", found


def _pattern(row: Row, seen: Observation | None, blocks: Sequence[Block]) -> dict[str, Any]:
    times = [ns / 1e6 for ns in _turns(row, seen, blocks)]
    if seen is None or not times:
        return {"error": words.clean(seen.reason or words.status(seen.status)) if seen else "not measured"}
    density = seen.facts.get("density")
    known = isinstance(density, int | float)
    return {
        "density": density if known else None,
        "sparsity": 1 - float(density) if known and density is not None else None,
        "mean_time_ms": statistics.fmean(times),
        "std_time_ms": statistics.pstdev(times),
        "min_time_ms": min(times),
        "max_time_ms": max(times),
        "times": times[:TIMES],
    }


def _turns(row: Row, seen: Observation | None, blocks: Sequence[Block]) -> list[float]:
    """Ns of every turn that counts, in the order they ran; none of a wrong answer."""
    if seen is None or numbers.time_ns(seen, row.metric) is None:
        return []
    return [
        turn.value
        for block in blocks
        if block.cell == row.cell.id and block.judged
        for number, played in enumerate(block.rounds)
        if number not in block.rejected
        for turn in played
        if block.arms[turn.arm] == seen.arm
    ]


def _scaling(run: Run, group: Group, arm: Arm, blocks: Sequence[Block]) -> Written:  # noqa: ARG001
    for fixed, rows in _fixed(run, group, ("seq_len",)).items():
        by_length: dict[Value, dict[str, Row]] = {}
        for row in rows:
            by_length.setdefault(row.cell.params["seq_len"], {})[row.variant] = row
        lengths = sorted(by_length, key=str if any(isinstance(n, str) for n in by_length) else float)
        results = [_length(group, length, by_length[length], arm) for length in lengths]
        yield (
            f"fmha_scaling_results{fixed}",
            {"config": _config(run, rows, arm), "results": [one for one in results if one]},
        )


def _length(group: Group, length: Value, rows: Mapping[str, Row], arm: Arm) -> dict[str, Any] | None:
    steps = _library(group, rows)
    for number, name in enumerate(group.workload.ladder or tuple(rows), 1):
        ns = numbers.time_ns(arm(rows[name]), rows[name].metric) if name in rows else None
        if ns:
            steps.append(
                {"step": number, "name": name, "latency_ms": ns / 1e6, "tflops": numbers.tflops(rows[name].cell, ns)}
            )
    if not steps:
        return None
    for step in steps:
        step["speedup_vs_baseline"] = steps[0]["latency_ms"] / step["latency_ms"]
    best = max(steps, key=lambda step: step["speedup_vs_baseline"])
    none = {
        "tilegym_latency_ms": 0.0,
        "tilegym_tflops": 0.0,
        "tilegym_speedup": 0.0,
    }  # as there, where it was not installed
    return {
        "seq_len": length,
        "steps": steps,
        "best_step": best["step"],
        "best_speedup": best["speedup_vs_baseline"],
        **none,
    }


def _library(group: Group, rows: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Step 0, the script's baseline: torch's attention, where it was measured beside the ladder. Without it the ladder's
    first step is the baseline."""
    row = next(iter(rows.values()))
    times = [numbers.time_ns(seen, row.metric) for cell, arm, seen in group.peers
             if (cell.id, arm.peer) == (row.cell.id, BASELINE) and seen.status != "wrong"]  # fmt: skip
    return [
        {"step": 0, "name": BASELINE, "latency_ms": ns / 1e6, "tflops": numbers.tflops(row.cell, ns)}
        for ns in times
        if ns
    ]


def _config(run: Run, rows: Sequence[Row], arm: Arm) -> dict[str, Any]:
    """What the script wrote of its fixed shape; tiles and occupancy of the last step, as far as its kernel told them."""
    params = rows[0].cell.params
    told = next((str(seen.facts["configuration"]) for row in reversed(rows)
                 if (seen := arm(row)) and "configuration" in seen.facts), "")  # fmt: skip
    known = dict(part.split("=", 1) for part in told.split() if "=" in part)
    number = {name: int(known[key]) if known.get(key, "").isdigit() else None for name, key in _CONFIG.items()}
    shape = {name: params.get(name) for name in ("batch", "n_heads", "head_dim")}
    return {**shape, **number, "platform": words.clean(run.machine.device)}


def _fixed(run: Run, group: Group, moving: tuple[str, ...]) -> dict[str, list[Row]]:
    """Rows by what the script had fixed, as a part of a file's name: nothing where all rows agree. In the run's order."""
    order = {cell.id: place for place, cell in enumerate(run.cells)}
    found: dict[str, list[Row]] = {}
    axes = [axis for axis in group.axes if axis not in moving]
    for row in sorted(group.rows, key=lambda row: order[row.cell.id]):
        part = "_".join(f"{axis}-{row.cell.params[axis]}" for axis in axes if axis in row.cell.params)
        found.setdefault(f"_{safe_label(part, set(), '')}" if part else "", []).append(row)
    return found


_WRITERS = {"hopper_ws": _analysis, "dynamic_mask": _bubbles, "fmha_scaling": _scaling}
