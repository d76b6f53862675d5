"""Rows with the evidence of planted causes: kernels as they were compiled, times as they are programmed."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from abprof.evidence.causes import explained
from abprof.records import Block, Census, Comparison, Kernel, Launch, Machine, Outcome, Run
from abprof.verdict import judge
from tests import blocks

RECORDED = Path(__file__).parent.parent / "data" / "planted_kernels.json"
EPOCHS = 6
Side = Mapping[str, Any]  # grid, and kernels as run.json has them
CHOICES = {8192: "BLOCK: 2048, num_warps: 8, num_ctas: 1", 524288: "BLOCK: 32, num_warps: 1, num_ctas: 1"}


def recorded() -> dict[str, dict[str, Side]]:
    """branch -> side -> its changed part, compiled for sm_90a (tests/why/record.py writes it)."""
    found: dict[str, dict[str, Side]] = json.loads(RECORDED.read_text())
    return found


def kernels(side: Side, of: str) -> tuple[Kernel, ...]:
    return tuple(msgspec.convert(one | {"side": of, "package": "ffa"}, Kernel) for one in side["kernels"])


def census(side: Side, ns: float, noise: random.Random | None = None, **more: Any) -> Census:
    """One launch of each kernel, as long as its share of `ns` says."""
    each = ns / len(side["kernels"])
    launches = tuple(
        Launch(name=one["name"], count=1, ns=each * (noise.lognormvariate(0, 0.02) if noise else 1.0),
               compiled=one["key"], grid=tuple(side["grid"]), block=(32 * one["warps"], 1, 1),
               choice=CHOICES[side["grid"][0]] if one["name"] == "add_one" else "",
               offered="0123456789abcdef" if one["name"] == "add_one" else "")
        for one in side["kernels"]
    )  # fmt: skip
    return Census(launches=launches, **({"hidden_ns": 0.0} | more))


def judged(before: Side, after: Side, pct: float, **more: Any) -> Comparison:
    """The row of base and target whose times differ by `pct`, judged by the verdict stage."""
    [row] = run(before, after, pct, **more).comparisons
    return row


def run(
    before: Side,
    after: Side,
    pct: float,
    *,
    phases: Sequence[Mapping[str, float]] = ({}, {}),
    mhz: Mapping[str, float] | None = None,
    noise: random.Random | None = None,
    censuses: tuple[Census | None, Census | None] | None = None,
    **fields: Any,
) -> Run:
    """A run of that one row, with its results."""
    ratio, ns = 1 + pct / 100, 1e6
    found = censuses or (census(before, ns, noise), census(after, ns * ratio, noise))
    outcomes = {
        arm: Outcome(status="ok", census=seen, phases=dict(parts) or None)
        for arm, seen, parts in zip(("base", "target"), found, phases, strict=True)
    }
    made = []
    for number in range(1, EPOCHS + 1):
        drawn = ratio * (noise.lognormvariate(0, 0.0005) if noise else 1.0)
        status = outcomes if number == 2 else None
        made.append(
            blocks.block(number, {"base": 1.0, "target": drawn}, base_ns=ns, metric="gpu_span", mhz=mhz, status=status)
        )
    machine = Machine(host="test", device="NVIDIA H200", kind="cuda")
    head = blocks.head(machine=machine, kernels=(*kernels(before, "base"), *kernels(after, "target")), **fields)
    return explain(head, made)


def row_of(head: Run, pct: float, status: Mapping[str, Outcome], **more: Any) -> Comparison:
    """The row of base (1 ms) and a target that takes `pct` longer, with these outcomes."""
    times = {"base": 1.0, "target": 1 + pct / 100}
    made = [blocks.block(n, times, status=status if n == 2 else None, **more) for n in range(1, EPOCHS + 1)]
    [row] = explain(head, made).comparisons
    return row


def explain(head: Run, made: Sequence[Block]) -> Run:
    """The run with verdicts and causes."""
    return explained(msgspec.structs.replace(head, **msgspec.structs.asdict(judge(head, made))))


def kinds(row: Comparison) -> list[str]:
    return [cause.kind for cause in row.causes or ()]
