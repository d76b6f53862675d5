"""The formats that users' spreadsheets rely on: columns, decimals and texts of the branch-profile scripts.

They come from MagiAttention's exps/attn/profile_ffa; ours are added after theirs and never between. `-1.0000` stands
for "not recorded" in these columns alone, and nothing is ever computed from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

NOT_RECORDED = "-1.0000"
FORWARD = ("range_merge", "sparse_load_preprocess", "prepare", "run", "fill", "cast")
BACKWARD = ("range_merge", "prepare", "preprocess", "run", "cast")
PHASE_COLUMNS = tuple([f"fwd_{name}_ms" for name in FORWARD] + [f"bwd_{name}_ms" for name in BACKWARD])
LATER_COLUMNS = ("fwd_postprocess_ms", "bwd_postprocess_ms")  # recorded by the scripts' kernels, never collected there
VALUE_COLUMNS = ("latency_ms", "tflops_per_sec", *PHASE_COLUMNS)
DENSE = ("seqlen", "mask_type", "direction")
DENSE_KEYS = ("mask_type", "direction", "seqlen")

WITHIN = "✅ TFLOPs performance fluctuation is within {limit} for all test cases."
OVER = "⚠️  Detected TFLOPs performance fluctuation over {limit} in the following cases:"
RULE = "=" * 60


def decimal(value: float | None) -> str:
    """Four decimals, or the scripts' sign for "not recorded"."""
    return NOT_RECORDED if value is None else f"{value:.4f}"


def number(text: str) -> float | None:
    """A cell of these files as a number; None when it is empty or stands for "not recorded"."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if value == -1.0 or not isfinite(value) else value


def improvement(baseline: float | None, target: float | None) -> float | None:
    """The scripts' per cent, (target - baseline) / (baseline + 1e-9) * 100; None when a side is not recorded.

    Its sign is that of the column: for a time, a slower target is positive.
    """
    if baseline is None or target is None:
        return None
    return (target - baseline) / (baseline + 1e-9) * 100


def compare_keys(columns: Sequence[str]) -> tuple[str, ...]:
    """Key columns of a compare file, in the scripts' order: these axes, `direction` last, the dense ones as there."""
    if set(columns) == set(DENSE):
        return DENSE_KEYS
    last = ("direction",) if "direction" in columns else ()
    return (*(name for name in columns if name not in last), *last)


def compared_columns(keys: Sequence[str]) -> tuple[str, ...]:
    """What a compare file compares: all values, but for dense runs not the latency."""
    return VALUE_COLUMNS[1:] if set(keys) == set(DENSE) else VALUE_COLUMNS


def triple(column: str) -> tuple[str, str, str]:
    """The three columns that a compared column becomes."""
    return f"{column}_baseline", f"{column}_target", f"{column}_improvement(%)"


def alert(case: Mapping[str, object], baseline: float, target: float, column: str = "tflops_per_sec") -> list[str]:
    """The scripts' lines about one case."""
    change = improvement(baseline, target)
    return [
        f"  - Case: {dict(case)}",
        f"    {column} Baseline: {baseline:.4f}",
        f"    {column} Target: {target:.4f}",
        f"    Fluctuation: {change:+.2f}%",
    ]


def limit(thresholds: Iterable[float]) -> str:
    """`1.5%`, or `1% to 5% (each case has its own)` where thresholds differ."""
    known = sorted(set(thresholds))
    if len(known) == 1:
        return f"{known[0]:g}%"
    return f"{known[0]:g}% to {known[-1]:g}% (each case has its own)"


def warning_block(alerts: Iterable[Sequence[str]], thresholds: Iterable[float]) -> list[str]:
    """The scripts' closing lines: the cases over their threshold, or that there are none."""
    found = [line for lines in alerts for line in lines]
    if not found:
        return ["", WITHIN.format(limit=limit(thresholds))]
    return ["", RULE, OVER.format(limit=limit(thresholds)), RULE, *found, RULE]
