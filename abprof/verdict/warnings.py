"""Warnings: one record per kind, for what changed a verdict or needs a person, with what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from abprof.records import Advice, Block, Comparison, Run, Touched
from abprof.records import messages as wire
from abprof.records.quantities import plural
from abprof.verdict import stats, waivers
from abprof.verdict.cells import ArmState, CellData
from abprof.verdict.comparison import WITHHELD
from abprof.verdict.headline import base_not_ok, outside_margin, trust_panel, undecided_row

Cells = Mapping[str, CellData]
Rows = Sequence[Comparison]
_ABOVE_BEST = 1.1  # the measured best rate of a device may be too low by so much


def warnings(run: Run, cells: Cells, rows: Rows, controls: Rows) -> Iterator[Advice]:
    """All warnings of a run, the gravest first."""
    if found := [one for one in run.touched if one.falsifies]:
        yield Advice(
            kind="tampered",
            text=f"{_touched(found)}: what was measured or judged may not be what was built",
            advice="a package may have written there: read the change, then measure again with --contain always",
        )
    yield from _untrusted(run, rows, controls)
    yield from _arms(
        cells,
        "proof",
        lambda data, arm: data.state(arm).proof_broken,
        "a worker loaded code from outside its own side",
        "no number is shown; look for an editable install or a path that points elsewhere",
    )
    broken = [row for row in rows if row.verdict == "broken" and not {"proof", "base_proof"} & set(row.reasons)]
    yield from _failed(cells, "broken", broken, "broken")
    base = [row for row in rows if base_not_ok(row)]
    yield from _failed(cells, "base_not_ok", base, "not ok on the base: nothing to compare the target with")
    yield from _arms(
        cells,
        "wrong_shown",
        lambda data, arm: data.allow_wrong and data.state(arm).status == "wrong",
        "wrong answers, and their times are shown because of --allow-wrong",
        "do not use these times",
    )
    suspects = [row for row in rows if row.verdict in {"slower", "faster"} and not row.discovery]
    yield from _rows(
        "suspect",
        suspects,
        f"{len(suspects)} of the changed rows may be chance among so many cells (false-discovery control at 5 %)",
        "their intervals stand; `abprof rerun RUN` gives them fresh epochs",
    )
    clock = [row for row in rows if "clock" in row.reasons and row.clock_pct is not None]
    worst = max((abs(row.clock_pct or 0.0) for row in clock), default=0.0)
    yield from _rows(
        "clock",
        clock,
        f"the device's clock differed between the sides by up to {worst:.2g} %: at one clock they compare otherwise",
        "`abprof rerun RUN` gives fresh epochs; locked clocks (nvidia-smi --lock-gpu-clocks) decide",
    )
    power = [row for row in rows if "power" in row.reasons]
    for row in power[:1]:
        turns, slices = f"{row.pct:+.2f} % of time in turns", f"{row.sustained_pct:+.2f} % without a pause"
        yield from _rows(
            "power",
            power,
            f"{row.cell}: {turns}, {slices} at the power limit",
            "which of them counts depends on how the kernel is used: short bursts, or for seconds on end",
        )
    yield from _rows(
        "timer",
        [row for row in rows if "timer" in row.reasons],
        "the clock outside the worker does not confirm the worker's timer for these cells",
        "code under test may have patched its timer, or moved its time to where no timer looks (the host, a reset)",
    )
    yield from _roofline(run, cells, rows)
    yield from _undecided(run, cells, rows)
    yield from _arms(
        cells,
        "flaky",
        lambda data, arm: data.state(arm).flaky,
        "failed in one epoch and not in the others",
        "it counts as ok; if it comes back, it is a bug",
    )
    blocks = [block for data in cells.values() for block in data.blocks]
    lost = [block for block in blocks if block.rounds and len(set(block.rejected)) >= len(block.rounds)]
    why = next((f" ({block.rejected_why})" for block in lost if block.rejected_why), "")
    yield from _rows(
        "rejected",
        lost,
        f"{len(lost)} epoch blocks lost every round{why}",
        "the machine was too busy to measure on; run again when it is quiet",
    )
    yield from _rows(
        "one_at_a_time",
        [block for block in blocks if block.alone],
        "the sides do not fit into memory together: they were measured one after the other, in two visits each",
        "their intervals are wider for it; on a device with more memory they take turns call by call",
    )
    foreign = [block for block in blocks if block.state.foreign]
    names = sorted({name for block in foreign for name in block.state.foreign})
    yield from _rows(
        "foreign",
        foreign,
        f"other processes used the device: {', '.join(names[:5])}",
        "end them or wait, then run again",
    )
    elsewhere = [one for one in run.touched if not one.falsifies]
    if elsewhere:
        yield Advice(
            kind="written_elsewhere",
            text=f"{_touched(elsewhere)}; no verdict rests on it",
            advice="a package's own log or notes, or code under test, or something else on this machine; --contain always "
            "keeps code under test to its own folders",
        )
    yield from waivers.advice(run, rows)


# ---------------------------------------------------------------- kinds of warnings


def _rows(kind: str, rows: Rows | Sequence[Block], text: str, advice: str) -> Iterator[Advice]:
    if rows:
        yield Advice(kind=kind, text=text, advice=advice, cells=tuple(dict.fromkeys(row.cell for row in rows)))


def _arms(cells: Cells, kind: str, test: Callable[[CellData, str], bool], what: str, advice: str) -> Iterator[Advice]:
    hits = [(cell, arm, data.state(arm)) for cell, data in cells.items() for arm in data.states if test(data, arm)]
    if hits:
        cell, arm, state = hits[0]
        found = tuple(dict.fromkeys(hit[0] for hit in hits))
        why = f", {state.reason}" if state.reason else ""
        text = f"{plural(len(found), 'cell')}: {what} (first: {cell}, {arm}{why})"
        yield Advice(kind=kind, text=text, advice=advice, cells=found)


def _failed(cells: Cells, kind: str, rows: Rows, what: str) -> Iterator[Advice]:
    if rows:
        row = rows[0]
        states = [(arm, cells[row.cell].state(arm)) for arm in (row.to, row.from_)]
        arm, state = next((pair for pair in states if not pair[1].runs), states[0])
        found = tuple(dict.fromkeys(each.cell for each in rows))
        why = f"{arm} {state.status}" + (f": {state.reason}" if state.reason else "")
        text = f"{plural(len(found), 'cell')} {what} (first: {row.cell}, {why})"
        hint = _hint(cells[row.cell], state, on_base=kind == "base_not_ok")
        yield Advice(kind=kind, text=text, advice=hint, cells=found)


def _touched(found: Sequence[Touched]) -> str:
    one = found[0]
    return f"{one.path} was {one.how} {one.moment}" + (f", and {len(found) - 1} more files" if len(found) > 1 else "")


def _untrusted(run: Run, rows: Rows, controls: Rows) -> Iterator[Advice]:
    panel = trust_panel(rows, controls)
    out = [row for row in panel if outside_margin(run, row)]
    if out:
        worst = max(out, key=lambda row: abs(row.pct or 0.0))
        yield from _rows(
            "untrusted",
            out,
            f"the same code against itself differs in {len(out)} of {len(panel)} controls, "
            f"at worst by {worst.pct:+.2f} % [{worst.low_pct:+.2f}, {worst.high_pct:+.2f}]",
            "something on this machine favours one worker; find it before reading any verdict of this run",
        )


def _roofline(run: Run, cells: Cells, rows: Rows) -> Iterator[Advice]:
    """A `faster` target above the best rate of plain torch's matrix products in this run, while the base is not."""
    above: dict[str, tuple[float, float]] = {}
    for row in (row for row in rows if row.verdict == "faster"):
        data = cells[row.cell]
        known, flops = run.ceilings_of(data.device), data.cell.flops
        medians = [data.epoch_medians(arm) for arm in (row.from_, row.to)]
        if known and known.tflops and flops and all(medians):
            before, after = (flops / stats.own_time(each).value / 1e3 for each in medians)
            if after > _ABOVE_BEST * known.tflops >= before:
                above[row.cell] = after, known.tflops
    if above:
        rate, best = max(above.values(), key=lambda both: both[0])
        yield Advice(
            kind="roofline",
            text=f"faster than this device can be: up to {rate:.4g} TFLOP/s, its best matrix products reached {best:.4g}",
            advice="a result kept from an earlier call, another data type, or a workload that counts too much work",
            cells=tuple(above),
        )


def _undecided(run: Run, cells: Cells, rows: Rows) -> Iterator[Advice]:
    out = [row for row in rows if undecided_row(row) and not WITHHELD & set(row.reasons)]
    if not out:
        return
    kind, text, advice = "undecided", "undecided when the run ended", _how_to_decide(run, out)
    margins = [row.certifiable_pct for row in out if row.certifiable_pct is not None]
    if all("quick_worth_confirming" in row.reasons for row in out):
        kind, text, advice = "worth_confirming", "look changed in one quick epoch", "run them without --quick"
    elif all("budget" in row.reasons and not row.look for row in out):
        text = (
            f"undecided: the budget of {run.options.budget:g} s ended before the first look, at {stats.LOOKS[0]} epochs"
        )
        advice = f"no verdict is given before it; on this machine as it was, --budget {_sufficient_budget(run, cells)}s"
    elif margins:
        text += f"; a margin of {max(margins):.2g} % would have been enough"
    yield from _rows(kind, out, f"{len(out)} of {len(rows)} rows {text}", advice)


def _how_to_decide(run: Run, out: Rows) -> str:
    if run.status == "interrupted":
        return "it was interrupted: --resume with its folder goes on"
    if not all("epochs" in row.reasons for row in out):
        return f"more epochs may: --budget above {run.options.budget:g}s"
    fixed = run.options.epochs
    later = next((look for look in stats.LOOKS if fixed is not None and look > fixed), None)
    if later is None:
        return f"all {stats.LOOKS[-1]} planned epochs are there: a quieter machine, or a wider --margin"
    return f"more epochs may: --epochs {later}"


def _sufficient_budget(run: Run, cells: Cells) -> int:
    """Seconds to reach the first look at the pace of this run's epochs: a tenth more, rounded up."""
    # (device, epoch) -> seconds: a device measures its cells one after the other.
    spans: dict[tuple[str, int], float] = {}
    for block in (block for data in cells.values() for block in data.blocks):
        spans[block.device, block.epoch] = spans.get((block.device, block.epoch), 0.0) + block.seconds
    longest = max(spans.values(), default=0.0)
    if len({device for device, _ in spans}) < 2:
        longest = max(longest, run.options.budget / max(1, len(spans)))
    return 10 * math.ceil(0.11 * stats.LOOKS[0] * longest)


# ---------------------------------------------------------------- hints


def undescribed(cell: str) -> bool:
    """Whether this cell id is of a whole workload whose cells are not known because it failed."""
    return cell.endswith("/")


def _hint(data: CellData, state: ArmState, *, on_base: bool) -> str:
    """What to do about an arm that did not run."""
    log = f"logs/{state.log.removeprefix('logs/')} in the run folder"
    if state.at:
        return f"fix {state.at}, or what this arm returns to it; the traceback is in {log}"
    if undescribed(data.cell.id):
        file = f"{data.cell.workload}.py"
        if wire.no_module(state.reason):
            return f"install the module that {file} needs for the workers, or fix {file}; see {log}"
        return f"{file} could not be loaded: see {log}"
    if on_base:
        return "fix the base, or compare with another ref"
    if state.log:
        return f"read {log}"
    return {
        "wrong": "the workload's check() compares with its reference; the speed of a wrong answer means nothing",
        "missing": "add it on that side, or compare refs that both have it; abprof.toml can set its path "
        "(docs/CONFIG.md)",
        "unsupported": "the kernel rejects the case: leave it out in the workload's skip(), or support it",
    }.get(state.status, "the workers' logs are in logs/ of the run folder")
