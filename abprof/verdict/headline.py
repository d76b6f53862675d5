"""The run's header: counts, trust, exit code, and the one sentence that says first whether to act."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from abprof.records import Comparison, Header, Run
from abprof.records.errors import Exit
from abprof.verdict import stats
from abprof.verdict.aggregation import same_code
from abprof.verdict.cell_data import Evidence
from abprof.verdict.counts import compared, many, mostly_undecided, nothing_measured, tampered

_FASTEST = -100 + 1e-9  # per cent of time; a call that takes less than the rest of it reads as -100, which has no log
OPEN = frozenset(
    {
        "budget",
        "epochs",
        "interrupted",
        "not_measured",
        "precision",
        "quick_worth_confirming",
        "clock",
        "power",
        "timer",
    }
)


def summarise(
    run: Run,
    evidence: Mapping[str, Evidence],
    rows: Sequence[Comparison],
    controls: Sequence[Comparison],
    within: Sequence[Comparison] = (),
) -> Header:
    """The header of a run from its rows (base with targets; peers have no say) and its controls. What there is between
    the variants of one branch alone (`within`) is said in its sentence."""
    tested = trust_panel(rows, controls)
    alarms = [row for row in tested if outside_margin(run, row)]
    counts = count(run, rows)
    counts["controls"], counts["controls_outside"] = len(tested), len(alarms)
    counts["tampered"] = sum(one.falsifies for one in run.touched)
    counts["controls_inside"] = sum(inside_margin(run, row) for row in tested)
    decided = len(alarms) + counts["controls_inside"]
    measured = _measured(evidence, rows)
    trusted = not alarms and not counts["tampered"]
    return Header(
        sentence=sentence(run, counts, measured=measured, within=within),
        counts=counts,
        trusted=trusted,
        false_alarm_bound=stats.false_alarm_bound(len(alarms), decided),
        geomean_pct=geomean_pct(run, evidence, rows),
        exit_code=int(exit_code(run, counts, measured=measured, trusted=trusted)),
    )


def untimed(run: Run) -> Header:
    """The header of a run in which nothing was timed: what was looked at under Nsight Compute, and what failed there."""
    failed = [one for one in run.profiles if one.status not in ("ok", "unsupported")]
    ok = [one for one in run.profiles if one.status == "ok"]
    cells = len({one.cell for one in ok})
    said = f"{cells} cell{'s' * (cells != 1)} under Nsight Compute, nothing was timed"
    if failed:
        first = failed[0]
        said += f"; {len(failed)} of {len(run.profiles)} arms failed, first {first.cell} {first.arm}: {first.reason}"
    code = Exit.OK if ok and not failed else Exit.CANNOT_RUN
    return Header(sentence=said, counts={"cells": len(run.cells)}, trusted=True, exit_code=int(code))


# ---------------------------------------------------------------- trust


def trust_panel(rows: Sequence[Comparison], controls: Sequence[Comparison]) -> list[Comparison]:
    """Every comparison of code with itself that has an interval: controls, and identical-code cells measured."""
    known = [row for row in rows if "identical_code" in row.reasons]
    return [row for row in (*controls, *known) if row.low_pct is not None]


def outside_margin(run: Run, row: Comparison) -> bool:
    """The whole interval lies outside the margin: the instrument saw a difference where there is none."""
    margin = _margin(run, row)
    return row.low_pct is not None and row.high_pct is not None and (row.low_pct > margin or row.high_pct < -margin)


def inside_margin(run: Run, row: Comparison) -> bool:
    """The whole interval lies inside the margin. Neither inside nor outside: undecided, it could not have shown much."""
    margin = _margin(run, row)
    return row.low_pct is not None and row.high_pct is not None and -margin <= row.low_pct and row.high_pct <= margin


def _margin(run: Run, row: Comparison) -> float:
    return min(run.settings.margin, run.settings.threshold_of(row.cell))


# ---------------------------------------------------------------- counts


def undecided_row(row: Comparison) -> bool:
    """More epochs could have answered. Not so: a base that does not run, or a case nobody supports."""
    return bool(OPEN & set(row.reasons))


def base_not_ok(row: Comparison) -> bool:
    return row.verdict == "unclear" and any(reason.startswith("base_") for reason in row.reasons)


def count(run: Run, rows: Sequence[Comparison]) -> dict[str, int]:
    """Counts of rows. slower + faster + slight + same + unclear + broken + unsupported + missing = comparisons.

    Of these: `undecided` are rows that more epochs could settle, `base_not_ok` those that the base spoils, `identical`
    the `same` by identical code, `waived` the `slower` that somebody has accepted, `suspect_*` the changed rows that
    false-discovery control leaves out of the sentence.
    """
    apart = {"unsupported": 0, "missing": 0}
    counts = {"cells": len(run.cells), "comparisons": len(rows)}
    counts |= {"slower": 0, "faster": 0, "slight": 0, "same": 0, "unclear": 0, "broken": 0} | apart
    for row in rows:
        alone = row.reasons[0] if row.verdict == "unclear" and row.reasons[:1] in {(key,) for key in apart} else ""
        counts[alone or row.verdict] += 1
    counts["undecided"] = sum(map(undecided_row, rows))
    counts["worth_confirming"] = sum("quick_worth_confirming" in row.reasons for row in rows)
    counts["quick"] = sum(any(reason.startswith("quick_") for reason in row.reasons) for row in rows)
    counts["base_not_ok"] = sum(map(base_not_ok, rows))
    counts["identical"] = sum("identical_code" in row.reasons and row.verdict == "same" for row in rows)
    counts["waived"] = sum("waived" in row.reasons for row in rows)
    for verdict in ("slower", "faster"):
        counts[f"suspect_{verdict}"] = sum(
            row.verdict == verdict and not row.discovery and "waived" not in row.reasons for row in rows
        )
    return counts


def geomean_pct(run: Run, evidence: Mapping[str, Evidence], rows: Sequence[Comparison]) -> float | None:
    """Geometric mean of the time ratios of the first target's rows that have an interval and are ok on both sides."""
    first = next((side.id for side in run.sides if side.id != "base"), None)
    thetas = [
        math.log1p(max(row.pct, _FASTEST) / 100)
        for row in rows
        if row.to.partition(":")[0] == first
        and row.pct is not None
        and row.low_pct is not None
        and all(evidence[row.cell].state(arm).runs for arm in (row.from_, row.to))
    ]
    return stats.percent(sum(thetas) / len(thetas)) if thetas else None


def _measured(evidence: Mapping[str, Evidence], rows: Sequence[Comparison]) -> bool:
    """Whether the run has anything to say: a row with a number or a finding, or, of one branch alone, any time."""
    if rows:
        return any(row.pct is not None or row.verdict != "unclear" for row in rows)
    return any(item.epoch_medians(arm) for item in evidence.values() for arm in item.states)


# ---------------------------------------------------------------- exit code


def exit_code(run: Run, counts: Mapping[str, int], *, measured: bool, trusted: bool) -> Exit:
    """docs/DESIGN.md, "Exit codes, everywhere". Untrusted comes before any verdict, a certain slow-down before doubt.

    `--fail-on never` keeps only "nothing measured"; `unclear` makes one unclear row enough for exit 4, where otherwise
    it takes more than a tenth of the judged rows.
    """
    fail_on = set(run.settings.fail_on)
    if not measured:
        return Exit.CANNOT_RUN
    if "never" in fail_on:
        return Exit.OK
    if not trusted:
        return Exit.UNTRUSTED
    found = {"slower": counts["slower"] - counts.get("waived", 0), "broken": counts["broken"]}
    if any(found[verdict] for verdict in found if verdict in fail_on):
        return Exit.SLOWER
    doubtful = max(counts["unclear"], counts["undecided"])
    if mostly_undecided(counts) or ("unclear" in fail_on and doubtful):
        return Exit.UNTRUSTED
    return Exit.OK


# ---------------------------------------------------------------- the sentence


def sentence(run: Run, counts: Mapping[str, int], *, measured: bool, within: Sequence[Comparison] = ()) -> str:
    """One sentence: first whether to act, then how many of what. Its changes are those that survive FDR control."""
    if not measured:
        return nothing_measured(counts)
    if not counts["comparisons"]:
        label = run.sides[0].label if run.sides else ""
        said = f"rofiled {many(counts['cells'], 'cell')} of {label}; {_between_variants(within)}."
        return f"{tampered(counts)}: p{said}" if counts.get("tampered") else f"P{said}"
    return compared(counts, margin=run.settings.margin, same_code=same_code(run))


def _between_variants(within: Sequence[Comparison]) -> str:
    """What the variants of one branch say of each other: `of 4 comparisons between its variants 3 faster, 1 same`."""
    known = Counter(row.verdict for row in within if row.pct is not None)
    if not known:
        return "one branch alone has no verdict"
    told = ", ".join(f"{number} {verdict}" for verdict, number in known.most_common())
    return f"of {many(known.total(), 'comparison')} between its variants {told}"
