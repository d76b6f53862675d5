"""Warnings of the verdict stage: one record a kind, and only what changed a verdict or needs a person."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from abprof.records import Advice, Comparison, Run, Touched
from abprof.verdict import hints as mending
from abprof.verdict import stats, waivers
from abprof.verdict.cell_data import Evidence
from abprof.verdict.headline import base_not_ok, outside_margin, trust_panel, undecided_row
from abprof.verdict.timer_check import beyond_the_device


def advise(
    run: Run, evidence: Mapping[str, Evidence], rows: Sequence[Comparison], controls: Sequence[Comparison]
) -> tuple[Advice, ...]:
    """All warnings of a run, the gravest first."""
    found = [
        _tampered(run),
        _controls(run, rows, controls),
        _states(evidence, "proof", lambda item, arm: item.state(arm).proof_broken, PROOF),
        _rows(evidence, "broken", [r for r in rows if r.verdict == "broken" and not _proof(r)], "broken"),
        _rows(evidence, "base_not_ok", [row for row in rows if base_not_ok(row)], BASE),
        _states(evidence, "wrong_shown", _wrong_shown, WRONG),
        _suspects(rows),
        _clock(rows),
        _power(rows),
        _timer(rows),
        _roofline(run, evidence, rows),
        _undecided(run, evidence, rows),
        _states(evidence, "flaky", lambda item, arm: item.state(arm).flaky, FLAKY),
        _lost(evidence),
        _crowded(evidence),
        _foreign(evidence),
        _elsewhere(run),
    ]
    return tuple(advice for advice in (*found, *waivers.advice(run, rows)) if advice is not None)


Words = tuple[str, str]  # what is so, and what to do
PROOF = (
    "a worker loaded code from outside its own side",
    "no number stands here; look for an editable install or a path that points elsewhere",
)
BASE = "not ok on the base: nothing to compare the target with"
WRONG = ("wrong answers, and their times are shown because of --allow-wrong", "do not use these times")
FLAKY = ("failed in one epoch and not in the others", "it counts as ok; if it comes back, it is a bug")


def _controls(run: Run, rows: Sequence[Comparison], controls: Sequence[Comparison]) -> Advice | None:
    panel = trust_panel(rows, controls)
    out = [row for row in panel if outside_margin(run, row)]
    if not out:
        return None
    worst = max(out, key=lambda row: abs(row.pct or 0.0))
    return Advice(
        kind="untrusted",
        text=f"the same code against itself differs in {len(out)} of {len(panel)} controls, "
        f"at worst by {worst.pct:+.2f} % [{worst.low_pct:+.2f}, {worst.high_pct:+.2f}]",
        advice="something on this machine favours one worker; find it before reading any verdict of this run",
        cells=_unique(row.cell for row in out),
    )


def _tampered(run: Run) -> Advice | None:
    found = [one for one in run.touched if one.falsifies]
    if not found:
        return None
    return Advice(
        kind="tampered",
        text=f"{_first(found)}: what was measured or judged may not be what was built",
        advice="a package may have written there: read the change, then measure again with --contain always",
    )


def _elsewhere(run: Run) -> Advice | None:
    found = [one for one in run.touched if not one.falsifies]
    if not found:
        return None
    return Advice(
        kind="written_elsewhere",
        text=f"{_first(found)}; no verdict rests on it",
        advice="a package's own log or notes, or code under test, or something else on this machine; --contain always "
        "keeps code under test to its own folders",
    )


def _first(found: Sequence[Touched]) -> str:
    one = found[0]
    more = f", and {len(found) - 1} more files" if len(found) > 1 else ""
    return f"{one.path} was {one.how} {one.moment}{more}"


def _crowded(evidence: Mapping[str, Evidence]) -> Advice | None:
    out = _unique(cell for cell, item in evidence.items() if any(block.alone for block in item.blocks))
    if not out:
        return None
    return Advice(
        kind="one_at_a_time",
        text="the sides do not fit into memory together: they were measured one after the other, in two visits each",
        advice="their intervals are wider for it; on a device with more memory they take turns call by call",
        cells=out,
    )


def _suspects(rows: Sequence[Comparison]) -> Advice | None:
    out = [row for row in rows if row.verdict in {"slower", "faster"} and not row.discovery]
    if not out:
        return None
    return Advice(
        kind="suspect",
        text=f"{len(out)} of the changed rows may be chance among so many cells (false-discovery control at 5 %)",
        advice="their intervals stand; `abprof rerun RUN` gives them fresh epochs",
        cells=_unique(row.cell for row in out),
    )


def _clock(rows: Sequence[Comparison]) -> Advice | None:
    out = [row for row in rows if "clock" in row.reasons and row.clock_pct is not None]
    if not out:
        return None
    worst = max((row.clock_pct for row in out if row.clock_pct is not None), key=abs)
    return Advice(
        kind="clock",
        text=f"the device's clock differed between the sides by up to {abs(worst):.2g} %: at one clock they compare otherwise",
        advice="`abprof rerun RUN` gives fresh epochs; locked clocks (nvidia-smi --lock-gpu-clocks) answer for sure",
        cells=_unique(row.cell for row in out),
    )


def _power(rows: Sequence[Comparison]) -> Advice | None:
    out = [row for row in rows if "power" in row.reasons]
    if not out:
        return None
    row = out[0]
    return Advice(
        kind="power",
        text=f"{row.cell}: {row.pct:+.2f} % of time in turns, {row.sustained_pct:+.2f} % without a pause at the power limit",
        advice="which of them counts depends on how the kernel is used: short bursts, or for seconds on end",
        cells=_unique(row.cell for row in out),
    )


def _timer(rows: Sequence[Comparison]) -> Advice | None:
    out = [row for row in rows if "timer" in row.reasons]
    if not out:
        return None
    return Advice(
        kind="timer",
        text="what the timer in the worker says of these cells was not seen by the clock outside it",
        advice="the code under test may have patched its timer, or moved its time to where no timer looks (the host, a reset)",
        cells=_unique(row.cell for row in out),
    )


def _roofline(run: Run, evidence: Mapping[str, Evidence], rows: Sequence[Comparison]) -> Advice | None:
    rates = {row.cell: beyond_the_device(run, evidence[row.cell], row) for row in rows}
    above = {cell: rate for cell, rate in rates.items() if rate is not None}
    if not above:
        return None
    most = max(above, key=lambda cell: above[cell])
    known = run.ceilings_of(evidence[most].device)
    best = (known.tflops if known else None) or 0.0
    return Advice(
        kind="roofline",
        text=f"faster than this device can be: up to {above[most]:.4g} TFLOP/s, "
        f"and its best matrix products reached {best:.4g}",
        advice="a result that is kept from an earlier call, another data type, or a workload that counts too much work",
        cells=tuple(above),
    )


def _undecided(run: Run, evidence: Mapping[str, Evidence], rows: Sequence[Comparison]) -> Advice | None:
    out = [row for row in rows if undecided_row(row) and not {"clock", "power", "timer"} & set(row.reasons)]
    if not out:
        return None
    kind, text = "undecided", "undecided when the run ended"
    advice = _what_may_decide(run, out)
    margins = sorted(row.certifiable_pct for row in out if row.certifiable_pct is not None)
    if all("quick_worth_confirming" in row.reasons for row in out):
        kind, text, advice = "worth_confirming", "look changed in one quick epoch", "run them without --quick"
    elif all("budget" in row.reasons and not row.look for row in out):
        text = f"undecided: the budget of {run.settings.budget:g} s ended before the first look, at {stats.LOOKS[0]} epochs"
        advice = f"no verdict is given before it; on this machine as it was, --budget {_enough(run, evidence)}s"
    elif margins:
        text += f"; a margin of {margins[-1]:.2g} % would have been enough"
    cells = _unique(row.cell for row in out)
    return Advice(kind=kind, text=f"{len(out)} of {len(rows)} rows {text}", advice=advice, cells=cells)


def _what_may_decide(run: Run, out: Sequence[Comparison]) -> str:
    if run.status == "interrupted":
        return "it was interrupted: --resume with its folder goes on"
    if not all("epochs" in row.reasons for row in out):
        return f"more epochs may: --budget above {run.settings.budget:g}s"
    asked = run.settings.epochs
    later = next((look for look in stats.LOOKS if asked is not None and look > asked), None)
    if later is None:
        return f"all {stats.LOOKS[-1]} planned epochs are there: a quieter machine, or a wider --margin"
    return f"more epochs may: --epochs {later}"


def _enough(run: Run, evidence: Mapping[str, Evidence]) -> int:
    """Seconds in which the first look would have been reached, by what the epochs took: rounded up, with a tenth more."""
    spans: dict[tuple[str, int, int], tuple[float, float]] = {}
    for block in (block for item in evidence.values() for block in item.blocks):
        key = block.device, block.shard, block.epoch
        begin, end = spans.get(key, (block.began, 0.0))
        spans[key] = (min(begin, block.began), max(end, block.began + block.seconds))
    # A device measures its shards one after the other: an epoch of all its cells is one of each.
    longest: dict[str, dict[int, float]] = {}
    for (device, shard, _), (begin, end) in spans.items():
        of = longest.setdefault(device, {})
        of[shard] = max(of.get(shard, 0.0), end - begin)
    each = max((sum(of.values()) for of in longest.values()), default=0.0)
    if len(longest) < 2:
        each = max(each, run.settings.budget / max(1, len(spans)))
    return 10 * math.ceil(0.11 * stats.LOOKS[0] * each)


def _rows(evidence: Mapping[str, Evidence], kind: str, rows: Sequence[Comparison], what: str) -> Advice | None:
    if not rows:
        return None
    row = rows[0]
    states = [(arm, evidence[row.cell].state(arm)) for arm in (row.to, row.from_)]
    arm, state = next((pair for pair in states if not pair[1].runs), states[0])
    cells = _unique(each.cell for each in rows)
    why = f"{arm} {state.status}" + (f": {state.reason}" if state.reason else "")
    text = f"{_cells(cells)} {what} (first: {row.cell}, {why})"
    advice = mending.of(evidence[row.cell], arm, state, on_base=kind == "base_not_ok")
    return Advice(kind=kind, text=text, advice=advice, cells=cells)


def _states(
    evidence: Mapping[str, Evidence], kind: str, test: Callable[[Evidence, str], bool], words: Words
) -> Advice | None:
    hits = [(cell, arm, item.state(arm)) for cell, item in evidence.items() for arm in item.states if test(item, arm)]
    if not hits:
        return None
    cell, arm, state = hits[0]
    cells = _unique(hit[0] for hit in hits)
    why = f", {state.reason}" if state.reason else ""
    text = f"{_cells(cells)}: {words[0]} (first: {cell}, {arm}{why})"
    return Advice(kind=kind, text=text, advice=words[1], cells=cells)


def _lost(evidence: Mapping[str, Evidence]) -> Advice | None:
    """Epochs whose every round was rejected: the cell got fewer epochs than it was given time for."""
    lost = [b for item in evidence.values() for b in item.blocks if b.rounds and len(set(b.rejected)) >= len(b.rounds)]
    if not lost:
        return None
    why = next((block.rejected_why for block in lost if block.rejected_why), "")
    return Advice(
        kind="rejected",
        text=f"{len(lost)} epoch blocks lost every round" + (f" ({why})" if why else ""),
        advice="the machine was not fit to measure on for that long; run again when it is quiet",
        cells=_unique(block.cell for block in lost),
    )


def _foreign(evidence: Mapping[str, Evidence]) -> Advice | None:
    seen = [b for item in evidence.values() for b in item.blocks if b.state.foreign]
    if not seen:
        return None
    names = sorted({name for block in seen for name in block.state.foreign})
    return Advice(
        kind="foreign",
        text=f"other processes used the device: {', '.join(names[:5])}",
        advice="end them or wait, then run again",
        cells=_unique(block.cell for block in seen),
    )


def _proof(row: Comparison) -> bool:
    return bool({"proof", "base_proof"} & set(row.reasons))


def _wrong_shown(item: Evidence, arm: str) -> bool:
    return item.allow_wrong and item.state(arm).status == "wrong"


def _unique(cells: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cells))


def _cells(cells: Sequence[str]) -> str:
    return f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
