"""Observations: what each arm of each cell did in the run, as named metrics over epochs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from abprof.records import GPU_GRAPH, HOST, REPORTED, SUSTAINED, Block, Census, Metric, Observation, Outcome, Value
from abprof.verdict import stats
from abprof.verdict.cell_data import Evidence
from abprof.verdict.columns import END, START, columns

_PAUSE = 120.0  # seconds between two blocks: longer, and the second is of a later invocation (rerun, --resume)


def observe(item: Evidence) -> tuple[Observation, ...]:
    """One observation per arm, in the run's order: none is left out because it failed, only what was never tried."""
    return tuple(_observation(item, arm) for arm in item.states if item.state(arm).seen)


def busy_share(blocks: Sequence[Block]) -> float | None:
    """Time inside turns over the time from the first block to the last, starts of workers included (0 to 1); None where
    there is none, or it is not known."""
    if any(block.metric == REPORTED for block in blocks):
        return None  # of what one process said, nobody knows when it was
    inside = sum(_inside(block) for block in blocks if block.rounds) / 1e9
    wall = _wall(blocks)
    return inside / wall if wall else None


def _inside(block: Block) -> float:
    table, _ = columns(block.rounds)
    return float((table[:, END] - table[:, START]).sum())


def check_share(blocks: Sequence[Block]) -> float | None:
    """Time spent on checking outputs, references included, over the same (0 to 1)."""
    wall = _wall(blocks)
    return sum(block.check_seconds for block in blocks if block.rounds) / wall if wall else None


def _wall(blocks: Sequence[Block]) -> float:
    """Seconds from the first block with rounds to the last, without the pause before a later invocation; of several devices
    together."""
    devices = {block.device for block in blocks}
    if len(devices) > 1:
        return sum(_wall([block for block in blocks if block.device == device]) for device in devices)
    ordered = sorted((block for block in blocks if block.rounds), key=lambda block: block.began)
    wall = sum(block.seconds for block in ordered)
    for before, after in pairwise(ordered):
        gap = after.began - before.began - before.seconds
        wall += gap if 0 < gap < _PAUSE else 0.0
    return wall


def _observation(item: Evidence, arm: str) -> Observation:
    state = item.state(arm)
    medians = item.epoch_medians(arm)
    return Observation(
        cell=item.cell.id,
        arm=arm,
        status=state.status,
        reason=state.reason,
        at=state.at,
        metrics=_metrics(item, arm, medians) if item.numbers(arm) else {},
        phases=phases(item, arm) if item.numbers(arm) else None,
        check=state.check,
        facts=facts(item, arm),
        epochs=len(medians),
        log=state.log,
        census=census(item, arm),
        uncaptured=item.uncaptured(arm),
        device=item.device,
    )


def _metrics(item: Evidence, arm: str, medians: list[float]) -> dict[str, Metric]:
    """Times in ns, memory in bytes; rates from the judged time and the cell's work, by its stated convention."""
    found: dict[str, Metric] = {}
    if medians:
        protocol = "; ".join(item.protocols(arm))
        time = stats.own_time(medians)
        found[item.metric] = _time(time, protocol)
        walls = item.epoch_medians(arm, "wall")
        if item.metric != "wall" and walls and min(walls) > 0:
            found["wall"] = _time(stats.own_time(walls), "the host's clock, from an idle device to an idle device")
        if item.cell.flops:
            found["tflops"] = _rate(item.cell.flops / 1000, "TFLOP/s", time, item.cell.convention)
        if item.cell.bytes:
            found["bandwidth"] = _rate(item.cell.bytes, "GB/s", time, item.cell.convention)
    replays = item.epoch_medians(arm, "graph")
    if replays:
        found[GPU_GRAPH] = _time(
            stats.own_time(replays), f"replayed from a CUDA graph, warm caches; {item.beside[0].rule}"
        )
    hosts = [o.host_ns for o in _outcomes(item, arm) if o.host_ns is not None]
    if hosts:
        found[HOST] = _time(stats.own_time(hosts), "the host's clock, to enqueue a warm call on an idle device")
    slices = item.epoch_medians(arm, "sustained")
    if slices:
        found[SUSTAINED] = _time(stats.own_time(slices), "calls without a pause, the first third of a second not timed")
    for block in item.sequential:
        for turn in (turn for row in block.rounds for turn in row if block.arms[turn.arm] == arm):
            found[block.metric] = Metric(value=turn.value, unit="ns", better="lower", protocol=block.rule)
    peaks = [o.peak_mem_bytes for o in _outcomes(item, arm) if o.peak_mem_bytes is not None]
    if peaks:
        found["peak_mem_bytes"] = Metric(
            value=float(max(peaks)), unit="bytes", better="lower", protocol="largest of the epochs"
        )
    return found


def _time(time: stats.OwnTime, protocol: str) -> Metric:
    return Metric(value=time.value, unit="ns", low=time.low, high=time.high, better="lower", protocol=protocol)


def _rate(work: float, unit: str, time: stats.OwnTime, convention: str) -> Metric:
    """`work` per ns. FLOP / ns / 1000 is TFLOP/s; bytes / ns is GB/s. Less time is more rate."""
    return Metric(
        value=work / time.value,
        unit=unit,
        low=work / time.high if time.high else None,
        high=work / time.low if time.low else None,
        better="higher",
        protocol=convention,
    )


def phases(item: Evidence, arm: str) -> dict[str, float | None] | None:
    """Each phase, median ns per call, and `residual` = total minus the phases that were recorded.

    All from the profiled pass, so that residual compares like with like. A run profiles one epoch, its second, with
    --quick its only one; where several recorded phases, it is the mean of them. None: no epoch recorded phases.
    """
    recorded = [o.phases for o in _outcomes(item, arm) if o.phases]
    if not recorded:
        return None
    names = dict.fromkeys(name for each in recorded for name in each)
    means: dict[str, float | None] = {}
    for name in names:
        known = [value for each in recorded if (value := each.get(name)) is not None]
        means[name] = sum(known) / len(known) if known else None
    total = means.get("total")
    if total is not None:
        means["residual"] = total - sum(v for name, v in means.items() if name not in {"total", "residual"} and v)
    return means


def facts(item: Evidence, arm: str) -> dict[str, Value]:
    """What the workload says of this case and arm; of several sittings that were told, the last."""
    told: dict[str, Value] = {}
    for outcome in _outcomes(item, arm):
        told |= outcome.facts
    return told


def census(item: Evidence, arm: str) -> Census | None:
    """What a call launched; of several passes (a rerun's) the last that knows."""
    told = [outcome.census for outcome in _outcomes(item, arm) if outcome.census is not None]
    return next((one for one in reversed(told) if not one.missing), told[-1] if told else None)


def _outcomes(item: Evidence, arm: str) -> list[Outcome]:
    return [block.outcomes[arm] for block in item.blocks if arm in block.outcomes]
