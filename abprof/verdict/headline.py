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
WITHHELD = frozenset({"clock", "power", "timer"})  # reasons: another reading contradicts the verdict
# Reasons that more epochs could remove.
OPEN = {"budget", "epochs", "interrupted", "not_measured", "precision", "quick_worth_confirming"} | WITHHELD
_FASTEST = -100 + 1e-9  # per cent; a change rounded to -100 has no logarithm
Answer = Literal["act", "confirm", "unjudged", "fine"]
Counts = Mapping[str, int]
_VERDICTS = ("slower", "faster", "slight", "same", "unclear", "broken", "unsupported", "missing")


def summarise(
    run: Run,
    cells: Mapping[str, CellData],
    rows: Sequence[Comparison],
    controls: Sequence[Comparison],
    within: Sequence[Comparison],
) -> Header:
    """The header of a run from its rows (base with targets) and controls. `within`, the comparisons between variants,
    affects the sentence of a run of one branch alone."""
    tested = trust_panel(rows, controls)
    beyond = [beyond_margin(run, row) for row in tested]
    outside, inside = beyond.count(True), beyond.count(False)
    counts = count(run, rows) | {"controls": len(tested), "controls_outside": outside, "controls_inside": inside}
    counts["tampered"] = sum(one.falsifies for one in run.touched)
    measured = any(row.pct is not None or row.verdict != "unclear" for row in rows)
    if not rows:
        measured = any(data.epoch_medians(arm) for data in cells.values() for arm in data.states)
    sentence = summary(counts, measured=measured, margin=run.options.margin, same_code=same_code(run))
    return Header(
        sentence=_one_branch(run, counts, within) if measured and not rows else sentence,
        counts=counts,
        trusted=not outside and not counts["tampered"],
        false_alarm_bound=stats.false_alarm_bound(outside, outside + inside),
        geomean_pct=_geomean_pct(run, cells, rows),
        exit_code=int(_exit_code(run, counts, measured=measured)),
    )


def untimed(run: Run) -> Header:
    """The header of a run in which nothing was timed: what Nsight Compute recorded, and what failed."""
    failed = [one for one in run.profiles if one.status not in ("ok", "unsupported")]
    cells = {one.cell for one in run.profiles if one.status == "ok"}
    sentence = f"{plural(len(cells), 'cell')} under Nsight Compute, nothing was timed"
    for first in failed[:1]:
        why = f"first {first.cell} {first.arm}: {first.reason}"
        sentence += f"; {len(failed)} of {len(run.profiles)} arms failed, {why}"
    code = Exit.OK if cells and not failed else Exit.CANNOT_RUN
    return Header(sentence=sentence, counts={"cells": len(run.cells)}, trusted=True, exit_code=int(code))


def trust_panel(rows: Sequence[Comparison], controls: Sequence[Comparison]) -> list[Comparison]:
    """Every comparison of code with itself that has an interval: controls, and measured cells of identical code."""
    known = [row for row in rows if "identical_code" in row.reasons]
    return [row for row in (*controls, *known) if row.low_pct is not None]


def beyond_margin(run: Run, row: Comparison) -> bool | None:
    """Whether the whole interval lies outside the margin: a difference was measured where there is none. False if it lies
    inside, None if it does neither."""
    margin = min(run.options.margin, run.options.threshold_of(row.cell))
    if row.low_pct is None or row.high_pct is None:
        return None
    if row.low_pct > margin or row.high_pct < -margin:
        return True
    return False if -margin <= row.low_pct and row.high_pct <= margin else None


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
    counts = {"cells": len(run.cells), "comparisons": len(rows)} | dict.fromkeys(_VERDICTS, 0)
    for row in rows:
        first = row.reasons[0] if row.verdict == "unclear" and row.reasons else ""
        counts[first if first in ("unsupported", "missing") else row.verdict] += 1
    chance = [row.verdict for row in rows if not row.discovery and "waived" not in row.reasons]
    return counts | {
        "undecided": sum(map(undecided_row, rows)),
        "worth_confirming": sum("quick_worth_confirming" in row.reasons for row in rows),
        "quick": sum(any(reason.startswith("quick_") for reason in row.reasons) for row in rows),
        "base_not_ok": sum(map(base_not_ok, rows)),
        "identical": sum("identical_code" in row.reasons and row.verdict == "same" for row in rows),
        "waived": sum("waived" in row.reasons for row in rows),
        "suspect_slower": chance.count("slower"),
        "suspect_faster": chance.count("faster"),
    }


def certain(counts: Counts, verdict: str) -> int:
    """Rows of this verdict that survive false-discovery control and have no waiver."""
    waived = counts.get("waived", 0) if verdict == "slower" else 0
    return counts.get(verdict, 0) - counts.get(f"suspect_{verdict}", 0) - waived


def _mostly_undecided(of: Counts) -> bool:
    """Whether more than a tenth of the judged rows are open."""
    judged = of.get("comparisons", 0) - of.get("unsupported", 0) - of.get("missing", 0)
    return of.get("undecided", 0) > MOST_UNDECIDED * judged


def answer(counts: Counts, *, measured: bool) -> Answer:
    """Whether to act. `unjudged`: nothing was measured, files were tampered with, controls failed, or too much is open."""
    if not measured or counts.get("controls_outside") or counts.get("tampered"):
        return "unjudged"
    if counts.get("broken") or certain(counts, "slower"):
        return "act"
    if counts.get("suspect_slower") or counts.get("worth_confirming"):
        return "confirm"
    return "unjudged" if _mostly_undecided(counts) else "fine"


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


def _exit_code(run: Run, counts: Counts, *, measured: bool) -> Exit:
    """docs/DESIGN.md, "Exit codes, everywhere". Untrusted comes before any verdict, a certain slow-down before doubt.

    `--fail-on never` keeps only "nothing measured"; with `unclear` one unclear row is enough for exit 4, otherwise it
    takes more than a tenth of the judged rows.
    """
    fail_on = run.options.fail_on
    if not measured:
        return Exit.CANNOT_RUN
    if "never" in fail_on:
        return Exit.OK
    if counts["controls_outside"] or counts["tampered"]:
        return Exit.UNTRUSTED
    if ("slower" in fail_on and counts["slower"] > counts["waived"]) or ("broken" in fail_on and counts["broken"]):
        return Exit.SLOWER
    doubtful = "unclear" in fail_on and (counts["unclear"] or counts["undecided"])
    return Exit.UNTRUSTED if doubtful or _mostly_undecided(counts) else Exit.OK


def _one_branch(run: Run, counts: Counts, within: Sequence[Comparison]) -> str:
    """The sentence of a run of one branch."""
    known = Counter(row.verdict for row in within if row.pct is not None)
    between = "one branch alone has no verdict"
    if known:
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in known.most_common())
        between = f"of {plural(known.total(), 'comparison')} between its variants {verdicts}"
    profiled = f"rofiled {plural(counts['cells'], 'cell')} of {run.sides[0].label if run.sides else ''}; {between}."
    return f"{_lead(counts, 0.0)}: p{profiled}" if counts["tampered"] else f"P{profiled}"


def summary(counts: Counts, *, measured: bool, margin: float, same_code: bool, action: bool = False) -> str:
    """The sentence of a comparison: `3 slower, 1 faster, 2 unchanged (6 cells).`, changes by false-discovery control.

    A run that must not be acted on, or has no answer, says so first; with `action` every run says first whether to act.
    `margin` is in per cent; `same_code`: every side is the same tree.
    """
    if not measured:
        return f"Nothing was measured: {_rest(counts) or 'no cell ran'}."
    rows = counts.get("comparisons", 0)
    changed = {verdict: certain(counts, verdict) for verdict in ("broken", "slower", "faster")}
    found = [f"{number} {verdict}" for verdict, number in changed.items() if number] + [_rest(counts)]
    notes = [plural(rows, "cell" if rows == counts.get("cells", 0) else "comparison")]
    notes += ["the same code on every side"] if same_code else []
    notes += ["one epoch, nothing is certain"] if rows == counts.get("quick", 0) else []
    sentence = f"{', '.join(filter(None, found))} ({', '.join(notes)})."
    doubtful = answer(counts, measured=True) == "unjudged"
    return f"{_lead(counts, margin)}: {sentence}" if action or doubtful else sentence


def _lead(counts: Counts, margin: float) -> str:
    """Whether to act, and why not."""
    if counts.get("tampered"):
        return f"Do not act on this run, {plural(counts['tampered'], 'file')} that it rests on changed while it ran"
    if counts.get("controls_outside"):
        controls = (
            f"{counts['controls_outside']} of {plural(counts.get('controls', 0), 'control')} (the same code twice)"
        )
        return f"Do not act on this run, {controls} came out beyond the margin of {margin:g} %"
    leads = {"act": "Act", "confirm": "Confirm before acting", "unjudged": "No answer yet", "fine": "Nothing to act on"}
    return leads[answer(counts, measured=True)]


def _rest(counts: Counts) -> str:
    of = Counter(counts)
    parts = {
        "slower that may be chance": of["suspect_slower"],
        "faster that may be chance": of["suspect_faster"],
        "worth confirming": of["worth_confirming"],
        "with nothing large seen": of["quick"] - of["worth_confirming"],
        "slower and waived": of["waived"],
        "slight": of["slight"],
        "unchanged" + (f" ({of['identical']} identical code)" if of["identical"] else ""): of["same"],
        "undecided": of["undecided"] - of["worth_confirming"],
        "not ok on the base": of["base_not_ok"],
        "unsupported": of["unsupported"],
        "missing on both sides": of["missing"],
    }
    return ", ".join(f"{number} {text}" for text, number in parts.items() if number > 0)
