"""Runs and blocks with programmed times and outcomes, for tests of the verdict stage. No worker, no clock."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from abprof.records import Arm, Block, Cell, Machine, Options, Outcome, Run, Side, Status, Turn, Workload

BASE_NS = 1_000_000.0


def side(id: str, label: str = "", tree: str = "") -> Side:
    name = label or {"base": "main", "target": "optimize_ffa"}.get(id, id)
    digit = {"base": "a", "target": "b"}.get(id, "c")
    return Side(id=id, spec=name, kind="commit", commit=digit * 40, tree=tree or digit * 40, label=name)


def cells(number: int, **fields: Any) -> tuple[Cell, ...]:
    common = {"workload": "dense", "kernel": "ffa", "suite": "dense", **fields}
    return tuple(Cell(id=f"dense/n={i}", params={"n": i}, **common) for i in range(number))


_OPTIONS = {
    "threshold": 1.5, "margin": 0.5, "budget": 600.0, "all": True, "timer": "auto",
    "arguments": ("main", "optimize_ffa"),
}  # fmt: skip


def head(
    number: int = 1,
    *,
    sides: Sequence[Side] | None = None,
    variants: tuple[str, ...] = (),
    peers: tuple[str, ...] = (),
    control: bool = False,
    settings: Mapping[str, Any] | None = None,
    cell: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Run:
    """A run without results: one workload `dense` of `number` cells on base and target (threshold 1.5, margin 0.5)."""
    known = tuple(sides) if sides is not None else (side("base"), side("target"))
    arms = [Arm(id=f"{s.id}:{v}" if v else s.id, side=s.id, variant=v) for s in known for v in variants or ("",)]
    arms += [Arm(id=f"peer:{peer}", side="base", peer=peer) for peer in peers]
    if control:
        arms.append(Arm(id="control", side="control", variant=variants[0] if variants else ""))
    workload = Workload(
        name="dense", kernel="ffa", suite="dense", axes=("n",), judge="wall", variants=variants, peers=peers
    )
    run = Run(
        schema=2, id="20261120T021700Z-main-optimize_ffa", status="complete", began="2026-11-20T02:17:00Z",
        options=Options(**{**_OPTIONS, **(settings or {})}), sides=known, workloads=(workload,), arms=tuple(arms),
        cells=cells(number, **(cell or {})), machine=Machine(host="test", device="simulated", kind="simulated"),
    )  # fmt: skip
    return msgspec.structs.replace(run, **fields)


def block(
    epoch: int,
    ratios: Mapping[str, float],
    *,
    cell: str = "dense/n=0",
    status: Mapping[str, Status | Outcome] | None = None,
    rounds: int = 5,
    noise: float = 0.0,
    seed: int = 0,
    base_ns: float = BASE_NS,
    mhz: Mapping[str, float] | None = None,
    **fields: Any,
) -> Block:
    """One epoch of one cell. `ratios`: time of each arm that took turns, relative to `base_ns`; `noise`: sd of each
    turn's log time. `status`: outcomes other than ok (a status, or a whole Outcome). `mhz`: the clock of each arm's turns."""
    chance = random.Random(f"{seed}/{cell}/{epoch}")
    arms = tuple(ratios)
    turns = []
    for i in range(rounds):
        order = chance.sample(range(len(arms)), len(arms))
        values = {arm: base_ns * ratios[arms[arm]] * chance.lognormvariate(0.0, noise) for arm in order}
        clocks = {arm: (mhz or {}).get(arms[arm], 0.0) for arm in order}
        turns.append(tuple(Turn(a, i, i + 1, values[a], values[a] + 5_000, 0.0, clocks[a]) for a in order))
    outcomes = {arm: Outcome(status="ok") for arm in arms}
    for arm, given in (status or {}).items():
        outcomes[arm] = given if isinstance(given, Outcome) else Outcome(status=given, reason=f"{arm} went {given}")
    values = {"metric": "wall", "timer": "simulated", "calls": 1, **fields}
    return Block(
        epoch=epoch, cell=cell, arms=arms, began=float(epoch), seconds=1.0, rounds=tuple(turns) if arms else (),
        outcomes=outcomes, **values,
    )  # fmt: skip


def epochs(ratios: Sequence[float], **fields: Any) -> list[Block]:
    """One block an epoch, 1, 2, ...: base at 1, target at the programmed ratio."""
    return [block(i, {"base": 1.0, "target": ratio}, **fields) for i, ratio in enumerate(ratios, start=1)]
