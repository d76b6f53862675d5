"""The run's header: counts, trust, exit code, and the sentence that says first whether to act."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from abprof.records import Arm, Comparison, Header, Run
from abprof.records.errors import Exit
from abprof.records.quantities import plural
from abprof.verdict import stats
from abprof.verdict.cells import CellData, same_code

MOST_UNDECIDED = 0.10  # share of the judged rows above which a run gives no answer (exit 4)
# Reasons that more epochs could remove.
OPEN = frozenset({"budget", "epochs", "interrupted", "not_measured", "precision", "quick_worth_confirming",
                  "clock", "power", "timer"})  # fmt: skip
_FASTEST = -100 + 1e-9  # per cent; a change rounded to -100 has no logarithm
Answer = Literal["act", "confirm", "unjudged", "fine"]
Counts = Mapping[str, int]


def summarise(
    run: Run,
    cells: Mapping[str, CellData],
    rows: Sequence[Comparison],
    controls: Sequence[Comparison],
    within: Sequence[Comparison] = (),
) -> Header:
    """The header of a run from its rows (base with targets) and controls. `within`, the comparisons between variants,
    affects the sentence of a run of one branch alone."""
    tested = trust_panel(rows, controls)
    outside = sum(outside_margin(run, row) for row in tested)
    inside = sum(inside_margin(run, row) for row in tested)
    counts = count(run, rows)
    counts |= {"controls": len(tested), "controls_outside": outside, "controls_inside": inside}
    counts["tampered"] = sum(one.falsifies for one in run.touched)
    measured = any(row.pct is not None or row.verdict != "unclear" for row in rows)
    if not rows:
        measured = any(data.epoch_medians(arm) for data in cells.values() for arm in data.states)
    trusted = not outside and not counts["tampered"]
    return Header(
        sentence=_sentence(run, counts, within, measured=measured),
        counts=counts,
        trusted=trusted,
        false_alarm_bound=stats.false_alarm_bound(outside, outside + inside),
        geomean_pct=_geomean_pct(run, cells, rows),
        exit_code=int(_exit_code(run, counts, measured=measured, trusted=trusted)),
    )


def untimed(run: Run) -> Header:
    """The header of a run in which nothing was timed: what Nsight Compute recorded, and what failed."""
    failed = [one for one in run.profiles if one.status not in ("ok", "unsupported")]
    ok = [one for one in run.profiles if one.status == "ok"]
    sentence = f"{plural(len({one.cell for one in ok}), 'cell')} under Nsight Compute, nothing was timed"
    if failed:
        first = failed[0]
        sentence += (
            f"; {len(failed)} of {len(run.profiles)} arms failed, first {first.cell} {first.arm}: {first.reason}"
        )
    code = Exit.OK if ok and not failed else Exit.CANNOT_RUN
    return Header(sentence=sentence, counts={"cells": len(run.cells)}, trusted=True, exit_code=int(code))


# ---------------------------------------------------------------- trust


def trust_panel(rows: Sequence[Comparison], controls: Sequence[Comparison]) -> list[Comparison]:
    """Every comparison of code with itself that has an interval: controls, and measured cells of identical code."""
    known = [row for row in rows if "identical_code" in row.reasons]
    return [row for row in (*controls, *known) if row.low_pct is not None]


def outside_margin(run: Run, row: Comparison) -> bool:
    """Whether the whole interval lies outside the margin: a difference was measured where there is none."""
    margin = min(run.options.margin, run.options.threshold_of(row.cell))
    return row.low_pct is not None and row.high_pct is not None and (row.low_pct > margin or row.high_pct < -margin)


def inside_margin(run: Run, row: Comparison) -> bool:
    """Whether the whole interval lies inside the margin."""
    margin = min(run.options.margin, run.options.threshold_of(row.cell))
    return row.low_pct is not None and row.high_pct is not None and -margin <= row.low_pct and row.high_pct <= margin


# ---------------------------------------------------------------- counts


def undecided_row(row: Comparison) -> bool:
    """Whether more epochs could answer."""
    return bool(OPEN & set(row.reasons))


def base_not_ok(row: Comparison) -> bool:
    return row.verdict == "unclear" and any(reason.startswith("base_") for reason in row.reasons)


def count(run: Run, rows: Sequence[Comparison]) -> dict[str, int]:
    """Counts of rows. slower + faster + slight + same + unclear + broken + unsupported + missing = comparisons.

    Of these: `undecided` could be settled by more epochs, `base_not_ok` have a base that does not run, `identical` are the
    `same` of identical code, `waived` the `slower` with a waiver, `suspect_*` the changed that false-discovery control
    leaves out.
    """
    counts = {"cells": len(run.cells), "comparisons": len(rows)}
    verdicts = ("slower", "faster", "slight", "same", "unclear", "broken", "unsupported", "missing")
    counts |= dict.fromkeys(verdicts, 0)
    for row in rows:
        first = row.reasons[0] if row.verdict == "unclear" and row.reasons else ""
        counts[first if first in ("unsupported", "missing") else row.verdict] += 1
    counts["undecided"] = sum(map(undecided_row, rows))
    counts["worth_confirming"] = sum("quick_worth_confirming" in row.reasons for row in rows)
    counts["quick"] = sum(any(reason.startswith("quick_") for reason in row.reasons) for row in rows)
    counts["base_not_ok"] = sum(map(base_not_ok, rows))
    counts["identical"] = sum("identical_code" in row.reasons and row.verdict == "same" for row in rows)
    counts["waived"] = sum("waived" in row.reasons for row in rows)
    for verdict in ("slower", "faster"):
        changed = [row for row in rows if row.verdict == verdict and "waived" not in row.reasons]
        counts[f"suspect_{verdict}"] = sum(not row.discovery for row in changed)
    return counts


def certain(counts: Counts, verdict: str) -> int:
    """Rows of this verdict that survive false-discovery control and have no waiver."""
    waived = counts.get("waived", 0) if verdict == "slower" else 0
    return counts.get(verdict, 0) - counts.get(f"suspect_{verdict}", 0) - waived


def mostly_undecided(counts: Counts) -> bool:
    """Whether more than a tenth of the judged rows are open."""
    judged = counts.get("comparisons", 0) - counts.get("unsupported", 0) - counts.get("missing", 0)
    return counts.get("undecided", 0) > MOST_UNDECIDED * judged


def answer(counts: Counts, *, measured: bool) -> Answer:
    """Whether to act. `unjudged`: nothing was measured, files were tampered with, controls failed, or too much is open."""
    if not measured or counts.get("controls_outside") or counts.get("tampered"):
        return "unjudged"
    if counts.get("broken") or certain(counts, "slower"):
        return "act"
    if counts.get("suspect_slower") or counts.get("worth_confirming"):
        return "confirm"
    return "unjudged" if mostly_undecided(counts) else "fine"


def _geomean_pct(run: Run, cells: Mapping[str, CellData], rows: Sequence[Comparison]) -> float | None:
    """Geometric mean of the time ratios of the first target's rows that have an interval and run on both sides."""
    first = next((side.id for side in run.sides if side.id != "base"), None)
    thetas = [
        math.log1p(max(row.pct, _FASTEST) / 100)
        for row in rows
        if Arm.of(row.to).side == first
        and row.pct is not None
        and row.low_pct is not None
        and all(cells[row.cell].state(arm).runs for arm in (row.from_, row.to))
    ]
    return stats.percent(sum(thetas) / len(thetas)) if thetas else None


def _exit_code(run: Run, counts: Counts, *, measured: bool, trusted: bool) -> Exit:
    """docs/DESIGN.md, "Exit codes, everywhere". Untrusted comes before any verdict, a certain slow-down before doubt.

    `--fail-on never` keeps only "nothing measured"; with `unclear` one unclear row is enough for exit 4, otherwise it
    takes more than a tenth of the judged rows.
    """
    fail_on = set(run.options.fail_on)
    if not measured:
        return Exit.CANNOT_RUN
    if "never" in fail_on:
        return Exit.OK
    if not trusted:
        return Exit.UNTRUSTED
    found = {"slower": counts["slower"] - counts["waived"], "broken": counts["broken"]}
    if any(found[verdict] for verdict in found if verdict in fail_on):
        return Exit.SLOWER
    doubtful = max(counts["unclear"], counts["undecided"])
    return Exit.UNTRUSTED if mostly_undecided(counts) or ("unclear" in fail_on and doubtful) else Exit.OK


# ---------------------------------------------------------------- the sentence


def _sentence(run: Run, counts: Counts, within: Sequence[Comparison], *, measured: bool) -> str:
    if not measured:
        return nothing_measured(counts)
    if counts["comparisons"]:
        return compared(counts, margin=run.options.margin, same_code=same_code(run))
    known = Counter(row.verdict for row in within if row.pct is not None)
    between = "one branch alone has no verdict"
    if known:
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in known.most_common())
        between = f"of {plural(known.total(), 'comparison')} between its variants {verdicts}"
    profiled = f"rofiled {plural(counts['cells'], 'cell')} of {run.sides[0].label if run.sides else ''}; {between}."
    return f"{_tampered(counts)}: p{profiled}" if counts.get("tampered") else f"P{profiled}"


def nothing_measured(counts: Counts) -> str:
    """The sentence of a run without a number or a finding."""
    return f"Nothing was measured: {_rest(counts) or 'no cell ran'}."


def compared(counts: Counts, *, margin: float, same_code: bool, action: bool = False) -> str:
    """The sentence of a comparison: `3 slower, 1 faster, 2 unchanged (6 cells).`, changes by false-discovery control.

    A run that must not be acted on, or has no answer, says so first; with `action` every run says first whether to act.
    `margin` is in per cent; `same_code`: every side is the same tree.
    """
    noun = "cell" if counts.get("comparisons", 0) == counts.get("cells", 0) else "comparison"
    changed = {verdict: certain(counts, verdict) for verdict in ("broken", "slower", "faster")}
    found = [f"{number} {verdict}" for verdict, number in changed.items() if number] + [_rest(counts)]
    notes = [plural(counts.get("comparisons", 0), noun), *(["the same code on every side"] if same_code else [])]
    notes += ["one epoch, nothing is certain"] if counts.get("quick", 0) == counts.get("comparisons", 0) else []
    sentence = f"{', '.join(filter(None, found))} ({', '.join(notes)})."
    doubtful = counts.get("tampered") or answer(counts, measured=True) == "unjudged"
    return f"{_lead(counts, margin)}: {sentence}" if action or doubtful else sentence


def _tampered(counts: Counts) -> str:
    return f"Do not act on this run, {plural(counts['tampered'], 'file')} that it rests on changed while it ran"


def _lead(counts: Counts, margin: float) -> str:
    if counts.get("tampered"):
        return _tampered(counts)
    if counts.get("controls_outside"):
        return (
            f"Do not act on this run, {counts['controls_outside']} of {plural(counts.get('controls', 0), 'control')} "
            f"(the same code twice) came out beyond the margin of {margin:g} %"
        )
    leads = {"act": "Act", "confirm": "Confirm before acting", "unjudged": "No answer yet", "fine": "Nothing to act on"}
    return leads[answer(counts, measured=True)]


def _rest(counts: Counts) -> str:
    of = Counter(counts)
    identical = f" ({of['identical']} identical code)" if of["identical"] else ""
    parts = [
        (of["suspect_slower"], "slower that may be chance"),
        (of["suspect_faster"], "faster that may be chance"),
        (of["worth_confirming"], "worth confirming"),
        (of["quick"] - of["worth_confirming"], "with nothing large seen"),
        (of["waived"], "slower and waived"),
        (of["slight"], "slight"),
        (of["same"], f"unchanged{identical}"),
        (of["undecided"] - of["worth_confirming"], "undecided"),
        (of["base_not_ok"], "not ok on the base"),
        (of["unsupported"], "unsupported"),
        (of["missing"], "missing on both sides"),
    ]
    return ", ".join(f"{number} {text}" for number, text in parts if number > 0)
