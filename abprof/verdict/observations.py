"""What each arm of each cell did in the run, as named metrics over epochs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from abprof.records import HOST, REPORTED, SUSTAINED, Block, Metric, Observation
from abprof.verdict import stats
from abprof.verdict.cells import CellData
from abprof.verdict.rounds import END, START, table

_PAUSE = 120.0  # seconds between two blocks that mean a later invocation (rerun, --resume)


def observe(data: CellData) -> tuple[Observation, ...]:
    """One observation per arm that was tried, in the run's order."""
    return tuple(_observation(data, arm) for arm in data.states if data.state(arm).seen)


def busy_share(blocks: Sequence[Block]) -> float | None:
    """Time inside turns over time from the first block to the last, worker starts included (0 to 1); None if unknown."""
    if any(block.metric == REPORTED for block in blocks):
        return None  # the process reports durations, not moments
    tables = [table(block.rounds)[0] for block in blocks]
    wall = _wall(blocks)
    return sum(float((each[:, END] - each[:, START]).sum()) for each in tables) / 1e9 / wall if wall else None


def check_share(blocks: Sequence[Block]) -> float | None:
    """Time spent on checking outputs, references included, over the same (0 to 1)."""
    wall = _wall(blocks)
    return sum(block.check_seconds for block in blocks if block.rounds) / wall if wall else None


def _wall(blocks: Sequence[Block]) -> float:
    """Seconds from the first block with rounds to the last, per device, without pauses before later invocations."""
    wall = 0.0
    for device in {block.device for block in blocks}:
        ordered = sorted((b for b in blocks if b.rounds and b.device == device), key=lambda block: block.began)
        wall += sum(block.seconds for block in ordered)
        gaps = (after.began - before.began - before.seconds for before, after in pairwise(ordered))
        wall += sum(gap for gap in gaps if 0 < gap < _PAUSE)
    return wall


def _observation(data: CellData, arm: str) -> Observation:
    state, shown = data.state(arm), data.shows_times(arm)
    outcomes = [block.outcomes[arm] for block in data.blocks if arm in block.outcomes]
    censuses = [outcome.census for outcome in outcomes if outcome.census is not None]
    return Observation(
        cell=data.cell.id,
        arm=arm,
        status=state.status,
        reason=state.reason,
        at=state.at,
        metrics=_metrics(data, arm) if shown else {},
        phases=_phases([outcome.phases for outcome in outcomes if outcome.phases]) if shown else None,
        check=state.check,
        facts={name: value for outcome in outcomes for name, value in outcome.facts.items()},
        epochs=len(data.epoch_medians(arm)),
        log=state.log,
        # Of several passes (a rerun's) the last that succeeded.
        census=next((one for one in reversed(censuses) if not one.missing), censuses[-1] if censuses else None),
        device=data.device,
    )


def _metrics(data: CellData, arm: str) -> dict[str, Metric]:
    """Times in ns, memory in bytes; rates from the judged time and the work that the cell declares."""
    found: dict[str, Metric] = {}
    cell, medians = data.cell, data.epoch_medians(arm)
    if medians:
        found[data.metric] = _time(medians, "; ".join(data.protocols(arm)))
        walls = data.epoch_medians(arm, "wall")
        if data.metric != "wall" and walls and min(walls) > 0:
            found["wall"] = _time(walls, "the host's clock, from an idle device to an idle device")
        if cell.flops:
            found["tflops"] = _rate(cell.flops / 1000, "TFLOP/s", medians, cell.convention)
        if cell.bytes:
            found["bandwidth"] = _rate(cell.bytes, "GB/s", medians, cell.convention)
    outcomes = [block.outcomes[arm] for block in data.blocks if arm in block.outcomes]
    hosts = [outcome.host_ns for outcome in outcomes if outcome.host_ns is not None]
    if hosts:
        found[HOST] = _time(hosts, "the host's clock, to enqueue a warm call on an idle device")
    slices = data.epoch_medians(arm, "sustained")
    if slices:
        found[SUSTAINED] = _time(slices, "calls without a pause, the first third of a second not timed")
    for block in data.sequential:
        for turn in (turn for row in block.rounds for turn in row if block.arms[turn.arm] == arm):
            found[block.metric] = Metric(value=turn.value, unit="ns", better="lower", protocol=block.rule)
    peaks = [outcome.peak_mem_bytes for outcome in outcomes if outcome.peak_mem_bytes is not None]
    if peaks:
        protocol = "largest of the epochs"
        found["peak_mem_bytes"] = Metric(value=float(max(peaks)), unit="bytes", better="lower", protocol=protocol)
    return found


def _time(medians: Sequence[float], protocol: str) -> Metric:
    time = stats.own_time(medians)
    return Metric(value=time.value, unit="ns", low=time.low, high=time.high, better="lower", protocol=protocol)


def _rate(work: float, unit: str, medians: Sequence[float], convention: str) -> Metric:
    """`work` per ns. FLOP / ns / 1000 is TFLOP/s; bytes / ns is GB/s."""
    time = stats.own_time(medians)
    return Metric(
        value=work / time.value,
        unit=unit,
        low=work / time.high if time.high else None,
        high=work / time.low if time.low else None,
        better="higher",
        protocol=convention,
    )


def _phases(recorded: Sequence[dict[str, float | None]]) -> dict[str, float | None] | None:
    """Mean over the passes of each phase, median ns per call, and `residual` = total minus the other phases.

    All from the profiled pass, so that the residual compares like with like. A run profiles its second epoch, with
    --quick its only one. None if no epoch recorded phases.
    """
    if not recorded:
        return None
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(name for each in recorded for name in each):
        known = [value for each in recorded if (value := each.get(name)) is not None]
        means[name] = sum(known) / len(known) if known else None
    total = means.get("total")
    if total is not None:
        means["residual"] = total - sum(v for name, v in means.items() if name not in {"total", "residual"} and v)
    return means
