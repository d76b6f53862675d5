"""A run in which everything that a run can hold is there once, and the same run with other words in it.

Every text of a run comes from a branch, a machine or a tool: what one is called must not change what a report is.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from abprof import records as model
from abprof.records import (
    Cause,
    CellHistory,
    Census,
    KernelProfile,
    Launch,
    Loss,
    Machine,
    Night,
    Observation,
    Profile,
    Record,
    Run,
    Sampled,
    SampledFunction,
    Touched,
    Trace,
    Waiver,
)
from tests import declared, notices, runs
from tests.why import cases

_SPILL = cases.recorded()["spill"]
_COUNTED = {"gpu__time_duration.sum": 1000.0, "dram__bytes.sum": 4096.0, "lts__t_bytes.sum": 8192.0}


@cache
def plain() -> Run:
    """Two targets, five workloads with phases, variants, a peer, a ladder and a sweep; kernels, causes, traces, counters and
    samples of the row that got slower; what failed in each way; waivers, what was touched, warnings."""
    whole, more = runs.three_targets(), declared.run()
    cell = next(one.cell for one in whole.comparisons if one.verdict == "slower")
    side = {"base": _SPILL["base"], "target": _SPILL["target"]}
    peer = runs.changed(more.comparisons[-1], from_="peer:sdpa", to="base", cell=whole.cells[-1].id)
    cells = (*whole.cells[1:3], *whole.cells[5:12:2], whole.cells[-1], *more.cells[:1], *more.cells[-2:])
    names = {one.id for one in cells}
    seen = (
        runs.changed(one, census=cases.census(side[one.arm], 1e7)) if one.cell == cell and one.arm in side else one
        for one in (*whole.observations, *map(_with_facts, more.observations))
    )
    rows = (*map(_with_causes, (*whole.comparisons, *more.comparisons)), peer)
    whole = runs.changed(
        whole,
        sides=whole.sides[:3],
        workloads=(*whole.workloads, *more.workloads),
        cells=cells,
        observations=tuple(one for one in seen if one.cell in names),
        comparisons=tuple(one for one in rows if one.cell in names),
        controls=tuple(one for one in whole.controls if one.cell in names),
        within=(runs.changed(peer, from_="base:ws", to="base:ws_pp"),),
        kernels=(*cases.kernels(side["base"], "base"), *cases.kernels(side["target"], "target")),
        traces=tuple(_trace(cell, arm) for arm in side),
        profiles=tuple(_profile(cell, arm) for arm in side),
        sampled=tuple(_sampled(cell, arm) for arm in side),
        touched=(Touched(path="/home/ada/bench.py", how="changed", moment="in epoch 2"),),
        waivers=(Waiver(cells="dense/*causal*", most_pct=5.0, reason="new layout", owner="ada", expires="2026-12-31"),),
        status="complete",
    )
    return notices.counted(whole)


@cache
def spread() -> Run:
    """Two devices of two models, one of which lost a shard; a night."""
    whole = runs.run()
    devices = {f"GPU-{name}": Machine(host="node7", device=f"NVIDIA {name}", kind="cuda") for name in ("H100", "H200")}
    names = tuple(devices)
    place = {cell.id: names[number % 2] for number, cell in enumerate(whole.cells)}
    night = Night(series="main nightly", number=3, kind="step", asked="matrix", machine={"driver": "570.86"})
    return notices.counted(
        runs.changed(
            whole,
            machines=devices,
            observations=tuple(runs.changed(one, device=place[one.cell]) for one in whole.observations),
            losses=(Loss(shard=2, device=names[0], cells=(whole.cells[0].id,), reason="its program was killed"),),
            night=night,
            history=tuple(map(_nights, whole.cells[:4])),
        )
    )


def _nights(cell: Any) -> CellHistory:
    change = {"night": 2, "since": "2026-11-19", "pct": 4.0, "commits": ("0a1b2c3d4e Wider tiles",), "more_commits": 2}
    dates = ("2026-11-18", "2026-11-19")
    return CellHistory(cell=cell.id, series="main nightly", dates=dates, ns=(1e6, 1.04e6), because="open", **change)


def _with_causes(row: Any) -> Any:
    cause = Cause(kind="spills", text="106 spill stores appeared", kernels=("polynomial",), evidence=("kernels",))
    return runs.changed(row, causes=(cause,) if row.verdict == "slower" else ()) if row.pct is not None else row


def _with_facts(seen: Observation) -> Observation:
    made: Observation = runs.changed(seen, facts={**seen.facts, "layout": "row major"})
    return made


def _trace(cell: str, arm: str) -> Trace:
    launches = (Launch(name="elementwise_kernel", count=2, ns=5e3, choice="BLOCK: 64", offered="0123"),)
    return Trace(
        cell=cell, arm=arm, file=f"traces/dense.{arm}.json", calls=5, census=Census(launches=launches), left_out=3
    )


def _profile(cell: str, arm: str) -> Profile:
    kernel = KernelProfile(name="attention_forward", grid="(132, 1, 1)", block="(384, 1, 1)", kind="compute", launches=5,
                           launches_a_call=1, metrics=_COUNTED)  # fmt: skip
    return Profile(cell=cell, arm=arm, purpose="profile", warmup=2, runs=3, kernels=(kernel,), notes=("one call apart",),
                   file=f"ncu/dense.{arm}.ncu-rep", csv=f"ncu/dense.{arm}.csv", ncu="2025.1")  # fmt: skip


def _sampled(cell: str, arm: str) -> Sampled:
    functions = (SampledFunction(name="at::native::add", object="libtorch_cpu.so", samples=9, own=True),)
    return Sampled(cell=cell, arm=arm, calls=10, hz=100, event="cycles", samples=9, functions=functions)


def words(run: Run) -> list[str]:
    """Every text of the run that may be another, in the order they stand there. Not free are the contract's own words (`slower`,
    `gpu_span`), hashes, moments, and the ids of sides."""
    fixed = _literals() | _KEPT | {side.id for side in run.sides} | set(run.header.counts if run.header else ())
    found = dict.fromkeys(text for text in _texts(run) if text not in fixed)
    return [text for text in found if not text.startswith("2026") and set(text) - set("0123456789abcdef")]


def with_words(run: Run, other: Callable[[int, str], str]) -> Run:
    """The run in which each word is called `other(its number, the word)`, wherever it stands: all still belongs together."""
    names = {word: other(number, word) for number, word in enumerate(words(run))}
    return _rewritten(run, lambda text: names.get(text, text))  # type: ignore[no-any-return]


@cache
def _literals() -> frozenset[str]:
    """The words that the model takes no others for."""
    hints = [
        get_type_hints(kind) for kind in vars(model).values() if isinstance(kind, type) and issubclass(kind, Record)
    ]
    return frozenset(word for held in hints for hint in held.values() for word in _chosen(hint))


def _chosen(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from (word for word in get_args(hint) if isinstance(word, str))
    else:
        for inner in get_args(hint):
            yield from _chosen(inner)


# Words that reports look for: another in their place is another run, and not the same one by another name.
_KEPT = {
    "", "control", "gpu_span", "wall", "peak_mem_bytes", "tflops", "ns", "bytes", "abprof", "fwd", "bwd", "direction", "seqlen",
    "mask_type", "sparsity_ratio", "q_block_size", "k_block_size", "total", "residual", "density", "autotuned", "budget", "wrong",
    "minimum_dram_bytes", "minimum_l2_bytes", "dense", "block_sparse", "crash", "oom", "timeout", "build_failed", "base_missing",
    "unsupported", "missing", "both", "identical_code", "TFLOP/s", "causal", "full", "dram__bytes.sum", "lts__t_bytes.sum",
    "gpu__time_duration.sum",
}  # fmt: skip


def _fields(value: Any) -> tuple[str, ...]:
    """The names of a record's fields."""
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return value.__struct_fields__ if isinstance(value, msgspec.Struct) else ()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif names := _fields(value):
        for name in names:
            yield from _texts(getattr(value, name))
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from _texts(key)
            yield from _texts(held)
    elif isinstance(value, tuple | list):
        for held in value:
            yield from _texts(held)


def _rewritten(value: Any, of: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return of(value)
    if names := _fields(value):
        fields = {name: getattr(value, name) for name in names}
        changed = {name: _rewritten(held, of) for name, held in fields.items()}
        replace = dataclasses.replace if dataclasses.is_dataclass(value) else msgspec.structs.replace
        return replace(value, **{name: held for name, held in changed.items() if held is not fields[name]})
    if isinstance(value, dict):
        return {of(key): _rewritten(held, of) for key, held in value.items()}
    if isinstance(value, tuple):
        made = tuple(_rewritten(held, of) for held in value)
        return value if all(new is old for new, old in zip(made, value, strict=True)) else made
    return value
