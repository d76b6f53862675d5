"""Summarise a run in counts, an exit code and a sentence, and write the run's warnings with advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from abprof.records import LOOKS, POWER_CAP, Advice, Arm, Block, Comparison, Header, Run
from abprof.records.errors import Exit
from abprof.records.quantities import plural, signed
from abprof.verdict import stats, waivers
from abprof.verdict.cells import ArmState, CellData, builds_of, epochs_left, seconds_of, start_seconds

_USEFUL = 10  # a margin more times as wide than --margin is no advice
MOST_UNDECIDED = 0.10  # larger shares of undecided rows mean exit code 4
WITHHELD = frozenset({"clock", "power", "timer"})  # reasons: another reading contradicts the verdict
# Reasons that further epochs may remove.
OPEN = {"budget", "epochs", "interrupted", "not_measured", "precision", "quick_worth_confirming"} | WITHHELD
Answer = Literal["act", "confirm", "unjudged", "fine"]
Counts = Mapping[str, int]
Cells = Mapping[str, CellData]
Rows = Sequence[Comparison]
_OWN_WARNING = frozenset({"proof", "base_proof", "impossible"})  # reasons of `broken` rows with a warning of their own
_VERDICTS = ("slower", "faster", "slight", "same", "unclear", "broken", "unsupported", "missing")


def summarise(run: Run, cells: Cells, rows: Rows, controls: Rows, within: Rows) -> Header:
    """Summarise a run. `rows` compare base and targets, `controls` base and itself, `within` variants of one side."""
    tested = self_comparisons(rows, controls)
    outside, inside = len(beyond_margin(run, cells, tested)), sum(inside_margin(run, row) for row in tested)
    counts = count(run, rows) | {"controls": len(tested), "controls_outside": outside, "controls_inside": inside}
    counts["controls_second_build"] = sum(two_builds(run, cells[row.cell], row) for row in tested)
    counts["tampered"] = sum(one.falsifies for one in run.touched)
    counts |= {"uncertified": 1} if run.uncertified else {}
    measured = any(row.pct is not None or row.shown != "unclear" for row in rows)
    if not rows:
        measured = any(data.epoch_medians(arm) for data in cells.values() for arm in data.states)
    sentence = summary(counts, measured=measured, margin=run.options.margin, same_code=run.one_code)
    return Header(
        sentence=_one_branch(run, counts, within) if measured and not rows else sentence,
        counts=counts,
        trusted=not outside and not counts["tampered"],
        false_alarm_bound=stats.false_alarm_bound(outside, outside + inside),
        exit_code=int(_exit_code(run, counts, measured=measured)),
    )


def untimed(run: Run) -> Header:
    """Return the summary of a run that timed nothing: how many cells were profiled, and how many arms failed."""
    failed = [one for one in run.profiles if one.status not in ("ok", "unsupported")]
    cells = {one.cell for one in run.profiles if one.status == "ok"}
    sentence = f"{plural(len(cells), 'cell')} under Nsight Compute, nothing was timed"
    for first in failed[:1]:
        why = f"first {first.cell} {first.arm}: {first.reason}"
        sentence += f"; {len(failed)} of {len(run.profiles)} arms failed, {why}"
    code = Exit.OK if cells and not failed else Exit.CANNOT_RUN
    return Header(sentence=sentence, counts={"cells": len(run.cells)}, trusted=True, exit_code=int(code))


def self_comparisons(rows: Rows, controls: Rows) -> list[Comparison]:
    """Return the comparisons of code with itself that have an interval: controls, and rows of identical code."""
    known = [row for row in rows if "identical_code" in row.reasons]
    return [row for row in (*controls, *known) if row.low_pct is not None]


def two_builds(run: Run, data: CellData, row: Comparison) -> bool:
    """Whether the row's arms ran two builds, so that a comparison of the same code contains what differs in them."""
    builds = builds_of(run, data.cell, data.blocks)
    keys = {build.key for arm in (row.from_, row.to) if (build := builds.get(Arm.of(arm).side, builds.get("base")))}
    return len(keys) > 1


def inside_margin(run: Run, row: Comparison) -> bool:
    """Whether the row's whole 95 % interval lies inside the margin; False without an interval."""
    margin = min(run.options.margin, run.options.threshold_of(row.cell))
    low, high = row.low_pct, row.high_pct
    return low is not None and high is not None and -margin <= low and high <= margin


def beyond_margin(run: Run, cells: Cells, rows: Rows) -> Rows:
    """Return those of `rows` (code against itself) whose whole interval lies outside the margin: false alarms. The
    error level is divided by the number of rows (Bonferroni): at most 5 % of unbiased runs have a false alarm."""
    level, found = stats.tabled(0.05 / max(1, len(rows))), []
    for row in rows:
        data = cells[row.cell]
        values, rounding = data.epoch_values(row.from_, row.to), data.rounding(row.from_, row.to)
        interval = stats.repeated_interval(values, level, rounding)
        low, high = stats.band(min(run.options.margin, run.options.threshold_of(row.cell)))
        if interval and (interval.low > high or interval.high < low):
            found.append(row)
    return found


def undecided_row(row: Comparison) -> bool:
    """Whether further epochs could decide the row."""
    return bool(OPEN & set(row.reasons))


def base_not_ok(row: Comparison) -> bool:
    return row.shown == "unclear" and any(reason.startswith("base_") for reason in row.reasons)


def count(run: Run, rows: Rows) -> dict[str, int]:
    """Return the number of rows with each verdict, and further counts of the same rows.

    The further counts include `undecided` (further epochs could decide), `base_not_ok` (the base does not run),
    `identical` (`same` because the code is identical), `waived` (`slower` with a waiver), `suspect_slower` and
    `suspect_faster` (may be chance: rejected by false-discovery control).
    """
    counts = {"cells": len(run.cells), "comparisons": len(rows)} | dict.fromkeys(_VERDICTS, 0)
    for row in rows:
        first = row.reasons[0] if row.verdict == "unclear" and row.reasons else ""
        name = first if first in ("unsupported", "missing") else row.shown
        counts[name] = counts.get(name, 0) + 1
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
    """Return how many rows have this verdict, survive false-discovery control and have no waiver."""
    waived = counts.get("waived", 0) if verdict == "slower" else 0
    return counts.get(verdict, 0) - counts.get(f"suspect_{verdict}", 0) - waived


def _mostly_undecided(of: Counts) -> bool:
    """Whether more than a tenth of the judged rows are undecided or rejected by false-discovery control."""
    judged = of.get("comparisons", 0) - of.get("unsupported", 0) - of.get("missing", 0)
    return sum(of.get(k, 0) for k in ("undecided", "suspect_slower", "suspect_faster")) > MOST_UNDECIDED * judged


def answer(counts: Counts, *, measured: bool) -> Answer:
    """Return what the user should do: `act`, `confirm` first, or nothing (`fine`); `unjudged`: no answer yet."""
    if not measured or counts.get("controls_outside") or counts.get("tampered"):
        return "unjudged"
    slower = certain(counts, "slower")
    if counts.get("broken") or (slower and not counts.get("uncertified")):
        return "act"
    if slower or counts.get("suspect_slower") or counts.get("worth_confirming"):
        return "confirm"
    return "unjudged" if _mostly_undecided(counts) else "fine"


def _exit_code(run: Run, counts: Counts, *, measured: bool) -> Exit:
    fail_on = run.options.fail_on
    if not measured:
        return Exit.CANNOT_RUN
    if "never" in fail_on:
        return Exit.OK
    if counts["controls_outside"] or counts["tampered"]:
        return Exit.UNTRUSTED
    if "broken" in fail_on and counts["broken"]:
        return Exit.SLOWER
    if "slower" in fail_on and certain(counts, "slower"):
        return Exit.UNTRUSTED if run.uncertified else Exit.SLOWER
    doubtful = "unclear" in fail_on and any(counts[k] for k in ("unclear", "undecided", "suspect_slower"))
    return Exit.UNTRUSTED if doubtful or _mostly_undecided(counts) else Exit.OK


def _one_branch(run: Run, counts: Counts, within: Rows) -> str:
    known = Counter(row.verdict for row in within if row.pct is not None)
    between = "one branch alone has no verdict"
    if known:
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in known.most_common())
        between = f"of {plural(known.total(), 'comparison')} between its variants {verdicts}"
    profiled = f"rofiled {plural(counts['cells'], 'cell')} of {run.sides[0].label if run.sides else ''}; {between}."
    return f"{_lead(counts, 0.0)}: p{profiled}" if counts["tampered"] else f"P{profiled}"


def summary(counts: Counts, *, measured: bool, margin: float, same_code: bool, action: bool = False) -> str:
    """Return the sentence that sums up a comparison, like `3 slower, 1 faster, 2 unchanged (6 cells).`

    Changes that may be chance are counted apart. With `action`, or if the run gives no answer, the sentence begins with
    what the user should do. `margin` is in per cent; `same_code`: all sides have the same tree.
    """
    if not measured:
        return f"Nothing was measured: {_rest(counts) or 'no cell ran'}."
    rows = counts.get("comparisons", 0)
    changed = {verdict: certain(counts, verdict) for verdict in ("broken", "slower", "faster", "fixed")}
    rest = _rest({**counts, "identical": 0} if same_code else counts)
    found = [f"{number} {verdict}" for verdict, number in changed.items() if number] + [rest]
    notes = [plural(rows, "cell" if rows == counts.get("cells", 0) else "comparison")]
    notes += ["the same code on every side"] if same_code else []
    notes += ["one epoch, nothing is certain"] if rows == counts.get("quick", 0) else []
    sentence = f"{', '.join(filter(None, found))} ({', '.join(notes)})."
    doubtful = answer(counts, measured=True) == "unjudged"
    return f"{_lead(counts, margin)}: {sentence}" if action or doubtful else sentence


def _lead(counts: Counts, margin: float) -> str:
    if counts.get("tampered"):
        return f"Do not act on this run, {plural(counts['tampered'], 'file')} that it rests on changed while it ran"
    if counts.get("controls_outside"):
        controls = (
            f"{counts['controls_outside']} of {plural(counts.get('controls', 0), 'control')} (the same code twice)"
        )
        return f"Do not act on this run, {controls} came out beyond the margin of {margin:g} %"
    leads = {"act": "Act", "confirm": "Confirm before acting", "unjudged": "No answer yet", "fine": "Nothing to act on"}
    leads |= {"fine": "Fixed"} if counts.get("fixed") else {}
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
        "unchanged" + (f" ({of['identical']} with identical code)" if of["identical"] else ""): of["same"],
        "undecided": of["undecided"] - of["worth_confirming"],
        "not ok on the base": of["base_not_ok"],
        "unsupported": of["unsupported"],
        "missing on both sides": of["missing"],
    }
    return ", ".join(f"{number} {text}" for text, number in parts.items() if number > 0)


# Kind -> (finding, advice). `_warning` fills in the braces; `{n}` is the number of rows, blocks or cells.
_WARNINGS = {
    "untrusted": (
        "{controls}: two copies of the same code differ beyond the margin, by up to {worst:.2f} %",
        "something favours one worker or build (layout, autotuning); find the cause before you trust any verdict of this run",
    ),
    "uncertified": (
        "{n} slower, but exit code 4 in place of 1: {why}",
        "run `abprof selfcheck --preset ci` on this machine; repeat that after each boot and driver change",
    ),
    "proof": (
        "a worker loaded code from outside its own side",
        "times of this code are not shown; look for an editable install or a path that points elsewhere",
    ),
    "wrong_shown": ("outputs are wrong; times are shown because of --allow-wrong", "do not use these times"),
    "suspect": (
        "{n} of the changed rows may be chance among so many cells (false-discovery control at 5 %)",
        "the intervals are valid; `abprof rerun RUN` measures these rows again",
    ),
    "clock": (
        "the device's clock differed between the sides by up to {most:.2g} %, and the verdict depends on that",
        "run `abprof rerun RUN`, or run again with --lock-clocks",
    ),
    "power": (
        "{cell}: {turns} in turns, {sustained} without a pause at the power limit",
        "--regime burst judges the first, for a kernel called in short bursts; --regime sustained the second",
    ),
    "timer": (
        "the clock outside the worker does not confirm the worker's timer for these cells",
        "code under test may have patched the timer, or moved work out of the timed call (to the host or a reset)",
    ),
    "roofline": (
        "in {where} the target is faster than the best matrix products of plain torch on this device",
        "check for a result reused from an earlier call, another data type, or a workload that counts too much work",
    ),
    "tail": (
        "more calls of the target are slow: the slowest tenth by up to {most:.1f} %, the median by less",
        "the verdict uses the median; report.html shows both changes in the cell's detail",
    ),
    "host_bound": (
        "{n} rows are host-bound: the host enqueues a call {most}, beside the device's time",
        "callers that wait for each call (triton.testing.do_bench) see the host's time; a CUDA graph avoids that time",
    ),
    "dependent": (
        "successive epochs depend on each other (autocorrelation {lag:+.2f}): intervals are too narrow",
        "load or temperature may change over minutes; run again when the machine is quiet",
    ),
    "flaky": ("failed in one epoch and not in the others", "the arm counts as ok; a failure that comes back is a bug"),
    "rejected": (
        "{n} epoch blocks lost every round ({why})",
        "the machine was too busy to measure on; run again when the machine is quiet",
    ),
    "power_limit": (
        "the GPU hit its power limit and fell below the locked clock, in {n} epochs of these cells",
        "choose a lower --lock-clocks; the verdicts allow for clocks that vary",
    ),
    "one_at_a_time": (
        "the sides do not fit into memory together: each was measured alone, in two visits",
        "intervals are wider; a device with more memory gives narrower intervals",
    ),
    "interpreted": (
        "TRITON_INTERPRET is set: Triton's kernels, if any, ran in its interpreter, whose times say nothing about a GPU",
        "unset it, and measure on a GPU",
    ),
    "foreign": (
        "other processes used the device: {names}",
        "end these processes, or wait until they end; then run again",
    ),
}


def warnings(run: Run, cells: Cells, rows: Rows, controls: Rows) -> Iterator[Advice]:
    """Yield all warnings of a run, most serious first."""
    yield from _touched(run, falsifies=True)
    if run.environment.get("TRITON_INTERPRET", "0") not in {"", "0"}:
        yield _warning("interpreted")
    out = beyond_margin(run, cells, self_comparisons(rows, controls))
    worst = max((abs(row.pct or 0.0) for row in out), default=0.0)
    yield from _rows("untrusted", out, controls=plural(len(out), "control"), worst=worst)
    slower = [row for row in rows if row.verdict == "slower" and row.discovery and "waived" not in row.reasons]
    yield from _rows("uncertified", slower if run.uncertified else [], why=run.uncertified)
    yield from _arms("proof", cells, lambda state: state.proof_broken)
    broken = [row for row in rows if row.verdict == "broken" and not _OWN_WARNING & set(row.reasons)]
    yield from _failed("broken", cells, broken, "broken")
    base = [row for row in rows if base_not_ok(row)]
    yield from _failed("base_not_ok", cells, base, "not ok on the base: nothing to compare the target with")
    yield from _arms("wrong_shown", cells, lambda state: run.options.allow_wrong and state.status == "wrong")
    yield from _doubts(cells, rows)
    yield from _undecided(run, cells, rows)
    yield from _arms("flaky", cells, lambda state: state.flaky)
    yield from _conditions(run, [block for data in cells.values() for block in data.blocks])
    yield from _touched(run, falsifies=False)
    yield from waivers.advice(run, rows)


def _doubts(cells: Cells, rows: Rows) -> Iterator[Advice]:
    because = {
        code: [row for row in rows if code in row.reasons] for code in ("clock", "power", "timer", "impossible", "tail")
    }
    yield from _rows("suspect", [r for r in rows if r.verdict in {"slower", "faster"} and not r.discovery])
    yield from _rows(
        "clock", because["clock"], most=max((abs(r.clock_pct or 0.0) for r in because["clock"]), default=0.0)
    )
    for row in because["power"][:1]:
        turns, sustained = (signed(pct or 0.0, 2) for pct in (row.pct, row.sustained_pct))
        yield from _rows("power", because["power"], cell=row.cell, turns=turns, sustained=sustained)
    yield from _rows("timer", because["timer"])
    yield from _rows("roofline", because["impossible"], where=plural(len(because["impossible"]), "row"))
    yield from _rows("tail", because["tail"], most=max((r.tail_pct or 0.0 for r in because["tail"]), default=0.0))
    bound = [row for row in rows if row.host_pct is not None]
    yield from _rows("host_bound", bound, most=signed(max((r.host_pct or 0.0 for r in bound), key=abs, default=0.0), 0))
    dependence = stats.lag_one([cells[row.cell].epoch_values(row.from_, row.to) for row in rows])
    if dependence is not None:
        yield _warning("dependent", lag=dependence)


def _conditions(run: Run, blocks: Sequence[Block]) -> Iterator[Advice]:
    lost = [block for block in blocks if block.rounds and len(set(block.rejected)) >= len(block.rounds)]
    yield from _rows("rejected", lost, why=", ".join({block.rejected_why: 0 for block in lost}))
    capped = [block for block in blocks if run.options.lock_clocks and POWER_CAP in block.state.throttle]
    yield from _rows("power_limit", capped)
    yield from _rows("one_at_a_time", [block for block in blocks if block.alone])
    names = sorted({name for block in blocks for name in block.state.foreign})
    yield from _rows("foreign", [block for block in blocks if block.state.foreign], names=", ".join(names[:5]))


def _warning(kind: str, cells: Sequence[str] = (), **values: Any) -> Advice:
    text, advice = _WARNINGS[kind]
    return Advice(kind=kind, text=text.format(**values), advice=advice, cells=tuple(dict.fromkeys(cells)))


def _rows(kind: str, rows: Rows | Sequence[Block], **values: Any) -> Iterator[Advice]:
    if rows:
        yield _warning(kind, [row.cell for row in rows], n=len(rows), **values)


def _arms(kind: str, cells: Cells, test: Callable[[ArmState], bool]) -> Iterator[Advice]:
    hits = [(cell, arm, state) for cell, data in cells.items() for arm, state in data.states.items() if test(state)]
    for cell, arm, state in hits[:1]:
        one = _warning(kind, [hit[0] for hit in hits])
        first = f"{cell}, {arm}{f', {state.reason}' if state.reason else ''}"
        yield msgspec.structs.replace(one, text=f"{plural(len(one.cells), 'cell')}: {one.text} (first: {first})")


def _failed(kind: str, cells: Cells, rows: Rows, what: str) -> Iterator[Advice]:
    for row in rows[:1]:
        arm = row.from_ if cells[row.cell].state(row.to).runs else row.to
        state, number = cells[row.cell].state(arm), len({each.cell for each in rows})
        why = f"{arm} {state.status}{f': {state.reason}' if state.reason else ''}"
        log = f"logs/{state.log.removeprefix('logs/')} in the run folder"
        advice = f"read {log}" if state.log else "see the reason in the report"
        if state.at:
            advice = f"fix {state.at}, or the value that this arm passes to it; the traceback is in {log}"
        elif kind == "base_not_ok":
            advice = "fix the base, or compare with another ref"
        text = f"{plural(number, 'cell')} {what} (first: {row.cell}, {why})"
        yield Advice(kind=kind, text=text, advice=advice, cells=tuple(dict.fromkeys(each.cell for each in rows)))


def _touched(run: Run, *, falsifies: bool) -> Iterator[Advice]:
    found = [one for one in run.touched if one.falsifies == falsifies]
    for first in found[:1]:
        more = f", and {len(found) - 1} more files" if len(found) > 1 else ""
        own = any(build.path and first.path.startswith(f"{build.path}/src/") for build in run.builds)
        harmless = "the build changed its own sources" if own else "no result depends on this file"
        so = "results may not be those of the built code" if falsifies else harmless
        yield Advice(
            kind="tampered" if falsifies else "written_elsewhere",
            text=f"{first.path} was {first.how} {first.moment}{more}: {so}",
            advice="find the kernel package that writes there; `--contain always` confines code under test to its own folders",
        )


def _undecided(run: Run, cells: Cells, rows: Rows) -> Iterator[Advice]:
    out = [row for row in rows if undecided_row(row) and not WITHHELD & set(row.reasons)]
    kind, text, advice = "undecided", "undecided when the run ended", f"give a --budget above {run.options.budget:g}s"
    margins = [row.certifiable_pct for row in out if row.certifiable_pct is not None]
    if all("quick_worth_confirming" in row.reasons for row in out):
        kind, text, advice = "worth_confirming", "look changed in one quick epoch", "run these cells without --quick"
    elif all("budget" in row.reasons and not row.look for row in out):
        text = f"undecided: the budget ended before {LOOKS[0]} epochs, the fewest that give a verdict"
    elif margins and max(margins) <= _USEFUL * run.options.margin:
        text += f"; a margin of {max(margins):.1f} % would have been enough"
    left = sorted((number, row.cell) for row in out if (number := epochs_left(cells, row)))
    if kind == "undecided" and left:
        epochs = {cell: number for number, cell in left}  # the most of a cell's rows, which share them
        seconds = seconds_of(cells, epochs, start_seconds(cells))
        advice = f"`abprof rerun RUN --only unclear`: {len(left)} of them would be decided after about {seconds:.0f} s"
    if run.status == "interrupted":
        advice = "continue with abprof run --resume RUN"
    elif all("epochs" in row.reasons for row in out):
        more = any(row.epochs < LOOKS[-1] for row in out)
        advice = f"give more --epochs (up to {LOOKS[-1]}), " if more else ""
        advice += "use a quieter machine, or widen --margin"
    if out:
        found = tuple(dict.fromkeys(row.cell for row in out))
        yield Advice(kind=kind, text=f"{len(out)} of {len(rows)} rows {text}", advice=advice, cells=found)
