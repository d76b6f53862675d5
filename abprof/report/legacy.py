"""Make the JSON files of the scripts that abprof has replaced, with the same keys and abprof's numbers.

The files are `analysis_results.json` (warp-specialised attention), `bubble_reduction.json` (mask patterns) and
`fmha_scaling_results.json` (attention by sequence length: one step for each variant, from the first optimisation to the
last). Each side has its own files. A number that was not recorded is null; a step that did not run is left out.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abprof.records import Block, Observation, Run, Value
from abprof.records.errors import AbprofError
from abprof.records.names import safe_label, safe_labels
from abprof.report import sentences
from abprof.report.rows import Group, Row, gbps, groups, tflops, value
from abprof.report.tables import order
from abprof.report.text import clean

Written = Iterator[tuple[str, Any]]
BASELINE = "sdpa"  # the peer that is the baseline of fmha_scaling_results


def files(run: Run, blocks: Sequence[Block]) -> dict[str, str]:
    """Return file name -> JSON text. Raises AbprofError if no workload of the run has such files."""
    made: dict[str, str] = {}
    labels = dict(zip((s.id for s in run.sides), safe_labels((s.label, s.commit) for s in run.sides), strict=True))
    for group in groups(run):
        write = _WRITERS.get(group.workload.suite)
        whole = all(axis in row.cell.params for row in group.rows for axis in _AXES.get(group.workload.suite, ()))
        for side in group.sides if whole else ():
            for name, content in write(run, group, side, blocks) if write else ():
                made[f"{name}_{labels[side]}.json"] = json.dumps(content, indent=2, allow_nan=False) + "\n"
    if not made:
        advice = f"only the suites {', '.join(sorted(_WRITERS))} have such files"
        raise AbprofError("no workload of this run has files for --format legacy", where=run.id, advice=advice)
    return made


def _analysis(run: Run, group: Group, side: str, blocks: Sequence[Block]) -> Written:  # noqa: ARG001
    found = [
        {"n_ctx": row.cell.params["N_CTX"], "provider": row.variant, "time_ms": ns / 1e6, "tflops": tflops(row.cell, ns),
         "bandwidth_gb_s": gbps(row.cell, ns), "memory_mb": row.cell.bytes / 1e6 if row.cell.bytes else None}
        for row in group.rows if (ns := row.ns(row.of(side)))
    ]  # fmt: skip
    yield "analysis_results", sorted(found, key=lambda one: (order(one["n_ctx"]), one["provider"]))


def _bubbles(run: Run, group: Group, side: str, blocks: Sequence[Block]) -> Written:
    for fixed, rows in _by_file(run, group, ("pattern", "sparsity")).items():
        found: dict[str, dict[str, Any]] = {}
        for row in rows:
            pattern, sparsity = str(row.cell.params["pattern"]), str(row.cell.params["sparsity"])
            found.setdefault(pattern, {})[sparsity] = _times(row, row.of(side), blocks)
        yield f"bubble_reduction{fixed}", found


def _times(row: Row, seen: Observation | None, blocks: Sequence[Block]) -> dict[str, Any]:
    times = [
        turn.value / 1e6
        for block in blocks
        if seen and row.ns(seen) is not None and block.cell == row.cell.id and block.judged
        for number, played in enumerate(block.rounds)
        if number not in block.rejected
        for turn in played
        if block.arms[turn.arm] == seen.arm
    ]
    if seen is None or not times:
        return {"error": clean(seen.reason or sentences.status(seen.status)) if seen else "not measured"}
    density = seen.facts.get("density")
    known = float(density) if isinstance(density, int | float) else None
    return {
        "density": None if known is None else density, "sparsity": None if known is None else 1 - known,
        "mean_time_ms": statistics.fmean(times), "std_time_ms": statistics.pstdev(times),
        "min_time_ms": min(times), "max_time_ms": max(times), "times": times[:10],
    }  # fmt: skip


def _scaling(run: Run, group: Group, side: str, blocks: Sequence[Block]) -> Written:  # noqa: ARG001
    for fixed, rows in _by_file(run, group, ("seq_len",)).items():
        by_length: dict[Value, dict[str, Row]] = {}
        for row in rows:
            by_length.setdefault(row.cell.params["seq_len"], {})[row.variant] = row
        lengths = sorted(by_length, key=order)
        results = [one for length in lengths if (one := _at_length(group, length, by_length[length], side))]
        yield f"fmha_scaling_results{fixed}", {"config": _config(run, rows, side), "results": results}


def _at_length(group: Group, length: Value, rows: Mapping[str, Row], side: str) -> dict[str, Any] | None:
    first = next(iter(rows.values()))
    timed = [(0, BASELINE, value(seen, first.metric)) for cell, peer, seen in group.peers
             if (cell.id, peer.peer) == (first.cell.id, BASELINE) and seen.status != "wrong"]  # fmt: skip
    ladder = enumerate(group.workload.ladder or tuple(rows), 1)
    timed += [(number, name, rows[name].ns(rows[name].of(side))) for number, name in ladder if name in rows]
    steps: list[dict[str, Any]] = [
        {"step": number, "name": name, "latency_ms": ns / 1e6, "tflops": tflops(rows.get(name, first).cell, ns)}
        for number, name, ns in timed
        if ns
    ]
    if not steps:
        return None
    for step in steps:
        step["speedup_vs_baseline"] = steps[0]["latency_ms"] / step["latency_ms"]
    best = max(steps, key=lambda step: step["speedup_vs_baseline"])
    bests = {"best_step": best["step"], "best_speedup": best["speedup_vs_baseline"]}
    tilegym = dict.fromkeys(("tilegym_latency_ms", "tilegym_tflops", "tilegym_speedup"), 0.0)  # as in the originals
    return {"seq_len": length, "steps": steps, **bests, **tilegym}


def _config(run: Run, rows: Sequence[Row], side: str) -> dict[str, Any]:
    params = rows[0].cell.params
    said = next((str(seen.facts["configuration"]) for row in reversed(rows)
                 if (seen := row.of(side)) and "configuration" in seen.facts), "")  # fmt: skip
    known = dict(part.split("=", 1) for part in said.split() if "=" in part)
    keys = {"tile_m": "block_m", "tile_n": "block_n", "occupancy": "per_sm", "num_ctas": "num_ctas"}
    numbers = {name: int(known[key]) if known.get(key, "").isdigit() else None for name, key in keys.items()}
    shape = {name: params.get(name) for name in ("batch", "n_heads", "head_dim")}
    return {**shape, **numbers, "platform": clean(run.machine.device)}


def _by_file(run: Run, group: Group, moving: tuple[str, ...]) -> dict[str, list[Row]]:
    """Put rows that differ only on the axes `moving` into one file. Return file-name suffix -> rows."""
    order = {cell.id: place for place, cell in enumerate(run.cells)}
    found: dict[str, list[Row]] = {}
    axes = [axis for axis in group.axes if axis not in moving]
    for row in sorted(group.rows, key=lambda row: order[row.cell.id]):
        part = "_".join(f"{axis}-{row.cell.params[axis]}" for axis in axes if axis in row.cell.params)
        found.setdefault(f"_{safe_label(part, set(), '')}" if part else "", []).append(row)
    return found


# Axes that the writers need in each cell; a run.json that another program wrote may lack them.
_AXES = {"hopper_ws": ("N_CTX",), "dynamic_mask": ("pattern", "sparsity"), "fmha_scaling": ("seq_len",)}
_WRITERS = {"hopper_ws": _analysis, "dynamic_mask": _bubbles, "fmha_scaling": _scaling}
