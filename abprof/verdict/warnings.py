"""Warnings: one record per kind, for what changed a verdict or needs a person, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from abprof.records import Advice, Block, Comparison, Run
from abprof.records.quantities import plural
from abprof.verdict import stats, waivers
from abprof.verdict.cells import ArmState, CellData
from abprof.verdict.headline import WITHHELD, base_not_ok, beyond_margin, trust_panel, undecided_row

Cells = Mapping[str, CellData]
Rows = Sequence[Comparison]
_ABOVE_BEST = 1.1  # the measured best rate of a device may be too low by so much


def warnings(run: Run, cells: Cells, rows: Rows, controls: Rows) -> Iterator[Advice]:
    """All warnings of a run, the gravest first."""
    blocks = [block for data in cells.values() for block in data.blocks]

    def with_reason(reason: str) -> Rows:
        return [row for row in rows if reason in row.reasons]

    yield from _touched(run, falsifies=True)
    out = [row for row in trust_panel(rows, controls) if beyond_margin(run, row)]
    worst = max((abs(row.pct or 0.0) for row in out), default=0.0)
    yield from _rows(
        "untrusted",
        out,
        f"the same code against itself differs beyond the margin in {plural(len(out), 'control')}, by up to {worst:.2f} %",
        "something on this machine favours one worker; find it before reading any verdict of this run",
    )
    yield from _arms(
        "proof",
        cells,
        lambda state: state.proof_broken,
        "a worker loaded code from outside its own side",
        "no number is shown; look for an editable install or a path that points elsewhere",
    )
    broken = [row for row in rows if row.verdict == "broken" and not {"proof", "base_proof"} & set(row.reasons)]
    yield from _failed("broken", cells, broken, "broken")
    base = [row for row in rows if base_not_ok(row)]
    yield from _failed("base_not_ok", cells, base, "not ok on the base: nothing to compare the target with")
    yield from _arms(
        "wrong_shown",
        cells,
        lambda state: run.options.allow_wrong and state.status == "wrong",
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
    clock = max((abs(row.clock_pct or 0.0) for row in with_reason("clock")), default=0.0)
    yield from _rows(
        "clock",
        with_reason("clock"),
        f"the device's clock differed between the sides by up to {clock:.2g} %: at one clock they compare otherwise",
        "`abprof rerun RUN` gives fresh epochs; locked clocks (nvidia-smi --lock-gpu-clocks) decide",
    )
    for row in with_reason("power")[:1]:
        turns, slices = f"{row.pct:+.2f} % of time in turns", f"{row.sustained_pct:+.2f} % without a pause"
        yield from _rows(
            "power",
            with_reason("power"),
            f"{row.cell}: {turns}, {slices} at the power limit",
            "which of them counts depends on how the kernel is used: short bursts, or for seconds on end",
        )
    yield from _rows(
        "timer",
        with_reason("timer"),
        "the clock outside the worker does not confirm the worker's timer for these cells",
        "code under test may have patched its timer, or moved its time to where no timer looks (the host, a reset)",
    )
    yield from _rows(
        "roofline",
        [row for row in rows if row.verdict == "faster" and _too_fast(run, cells[row.cell], row)],
        "faster than the best matrix products of plain torch on this device",
        "a result kept from an earlier call, another data type, or a workload that counts too much work",
    )
    yield from _undecided(run, rows)
    yield from _arms(
        "flaky",
        cells,
        lambda state: state.flaky,
        "failed in one epoch and not in the others",
        "it counts as ok; if it comes back, it is a bug",
    )
    lost = [block for block in blocks if block.rounds and len(set(block.rejected)) >= len(block.rounds)]
    yield from _rows(
        "rejected",
        lost,
        f"{len(lost)} epoch blocks lost every round ({', '.join({block.rejected_why: 0 for block in lost})})",
        "the machine was too busy to measure on; run again when it is quiet",
    )
    yield from _rows(
        "one_at_a_time",
        [block for block in blocks if block.alone],
        "the sides do not fit into memory together: they were measured one after the other, in two visits each",
        "their intervals are wider for it; on a device with more memory they take turns call by call",
    )
    names = sorted({name for block in blocks for name in block.state.foreign})
    yield from _rows(
        "foreign",
        [block for block in blocks if block.state.foreign],
        f"other processes used the device: {', '.join(names[:5])}",
        "end them or wait, then run again",
    )
    yield from _touched(run, falsifies=False)
    yield from waivers.advice(run, rows)


def _rows(kind: str, rows: Rows | Sequence[Block], text: str, advice: str) -> Iterator[Advice]:
    if rows:
        yield Advice(kind=kind, text=text, advice=advice, cells=tuple(dict.fromkeys(row.cell for row in rows)))


def _arms(kind: str, cells: Cells, test: Callable[[ArmState], bool], what: str, advice: str) -> Iterator[Advice]:
    hits = [(cell, arm, state) for cell, data in cells.items() for arm, state in data.states.items() if test(state)]
    for cell, arm, state in hits[:1]:
        found = tuple(dict.fromkeys(hit[0] for hit in hits))
        first = f"{cell}, {arm}{f', {state.reason}' if state.reason else ''}"
        yield Advice(
            kind=kind, text=f"{plural(len(found), 'cell')}: {what} (first: {first})", advice=advice, cells=found
        )


def _failed(kind: str, cells: Cells, rows: Rows, what: str) -> Iterator[Advice]:
    for row in rows[:1]:
        arm = row.from_ if cells[row.cell].state(row.to).runs else row.to
        state, number = cells[row.cell].state(arm), len({each.cell for each in rows})
        why = f"{arm} {state.status}{f': {state.reason}' if state.reason else ''}"
        log = f"logs/{state.log.removeprefix('logs/')} in the run folder"
        advice = f"read {log}" if state.log else "the reason stands in the report"
        if state.at:
            advice = f"fix {state.at}, or what this arm returns to it; the traceback is in {log}"
        elif kind == "base_not_ok":
            advice = "fix the base, or compare with another ref"
        yield from _rows(kind, rows, f"{plural(number, 'cell')} {what} (first: {row.cell}, {why})", advice)


def _touched(run: Run, *, falsifies: bool) -> Iterator[Advice]:
    found = [one for one in run.touched if one.falsifies == falsifies]
    for first in found[:1]:
        more = f", and {len(found) - 1} more files" if len(found) > 1 else ""
        so = "what was measured or judged may not be what was built" if falsifies else "no verdict rests on it"
        yield Advice(
            kind="tampered" if falsifies else "written_elsewhere",
            text=f"{first.path} was {first.how} {first.moment}{more}: {so}",
            advice="a package may have written there; --contain always keeps code under test to its own folders",
        )


def _too_fast(run: Run, data: CellData, row: Comparison) -> bool:
    """Whether the target is above the best rate of plain torch's matrix products in this run, while the base is not."""
    machine = run.machines.get(data.device)
    known, medians = machine.ceilings if machine else run.ceilings, [*map(data.epoch_medians, (row.from_, row.to))]
    if not known or not known.tflops or not data.cell.flops or not all(medians):
        return False
    before, after = (data.cell.flops / stats.own_time(each)[0] / 1e3 for each in medians)
    return after > _ABOVE_BEST * known.tflops >= before


def _undecided(run: Run, rows: Rows) -> Iterator[Advice]:
    out = [row for row in rows if undecided_row(row) and not WITHHELD & set(row.reasons)]
    kind, text, advice = "undecided", "undecided when the run ended", f"a --budget above {run.options.budget:g}s"
    margins = [row.certifiable_pct for row in out if row.certifiable_pct is not None]
    if all("quick_worth_confirming" in row.reasons for row in out):
        kind, text, advice = "worth_confirming", "look changed in one quick epoch", "run them without --quick"
    elif all("budget" in row.reasons and not row.look for row in out):
        text = f"undecided: the budget ended before the first look, at {stats.LOOKS[0]} epochs"
    elif margins:
        text += f"; a margin of {max(margins):.2g} % would have been enough"
    if run.status == "interrupted":
        advice = "--resume with its folder goes on"
    elif all("epochs" in row.reasons for row in out):
        advice = f"larger --epochs, up to {stats.LOOKS[-1]}, a quieter machine, or a wider --margin"
    yield from _rows(kind, out, f"{len(out)} of {len(rows)} rows {text}", advice)
