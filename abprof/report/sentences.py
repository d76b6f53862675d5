"""Put verdicts, reasons, statuses, causes, warnings and guarantees into words, for all reports.

A percentage is a change of time, says "slower" or "faster", and stands beside its interval. The run's headline and
warnings are written in abprof/verdict/.
"""

from __future__ import annotations

from typing import Literal

from abprof.records import GPU_GRAPH, REPORTED, SUSTAINED, Advice, Cause, CellHistory, Comparison, Run, Value, Verdict
from abprof.records.quantities import interval, plural, signed
from abprof.report.text import NOT_RECORDED, clean, duration

NO_INTERVAL = "no interval"
NO_CAUSE = "no cause found"
_NAMED = 3  # commits of a night
CHANGE_AND_TIMES = (  # reports show both, and on a noisy machine they differ
    "The change of time is the mean over epochs of the ratios of neighbouring turns; "
    "base and target are each side's own times, whose ratio may differ."
)

VERDICTS: dict[Verdict, str] = {
    "broken": "an arm failed, or its output is wrong: there is no speed to report",
    "slower": "the whole interval lies beyond the threshold, on the slow side",
    "unclear": "the interval is too wide for any other verdict, or an arm is missing",
    "faster": "the whole interval lies beyond the threshold, on the fast side",
    "slight": "the sign is certain, the size is inside the threshold",
    "same": "the whole interval lies inside the margin: shown to be equal, not merely not shown to differ",
}
MARKS = {
    "broken": "✖", "slower": "▲", "unclear": "?", "fixed": "✔", "faster": "▼", "slight": "△", "same": "=",
}  # fmt: skip
_REASONS = {
    "identical_code": "identical code",
    "waived": "waived",
    "both": "failed on both sides",
    "one_clock": "at one clock",
    "clock": "the device clock differed between the sides; at one clock the result is another",
    "power": "without pauses, at the power limit, the result is another",
    "burst_alone": "by burst alone: no budget or memory for calls without pauses, or they failed",
    "tail": "more of its calls are slow, though the median is not",
    "timer": "the clock outside the process does not confirm the timer inside",
    "impossible": "faster than this device can do the workload's work",
    "budget": "the time budget ended first",
    "not_pursued": "measured only while other cells needed epochs",
    "epochs": "undecided after all planned epochs",
    "interrupted": "interrupted",
    "not_measured": "not measured",
    "precision": "decided, but wider than --precision",
    "quick_nothing_large": "one epoch: nothing large seen",
    "quick_worth_confirming": "one epoch: worth confirming",
    "chance": "may be chance among this many rows",
    "proof": "it loaded files of another side",
    "unsupported on both": "not supported on either side",
    "missing on both": "missing on both sides",
}
JUDGED_BY = {
    "gpu_span": "GPU time",
    GPU_GRAPH: "GPU time in CUDA graphs (no launches in between, warm caches)",
    "gpu_kernels": "kernel durations by CUPTI",
    "wall": "wall clock",
    SUSTAINED: "GPU time without pauses",
    REPORTED: "the time that the command reports",
}


def _reason(code: str) -> str:
    arm, _, what = code.partition("_")
    if code not in _REASONS and arm in ("base", "target", "peer", "side", "control", "first", "second") and what:
        return f"{arm}: {_REASONS['proof'] if what == 'proof' else status(what)}"
    return _REASONS.get(code) or status(clean(code))


def reasons(row: Comparison) -> str:
    """Return the reasons for a comparison's verdict in plain words, each reason once."""
    codes = [f"{c} on both" if row.verdict == "unclear" and c in ("unsupported", "missing") else c for c in row.reasons]
    return "; ".join(dict.fromkeys(map(_reason, codes)))


def status(name: str) -> str:
    """Return a status in words: `build_failed` becomes "build failed"."""
    return {"oom": "out of memory", "wrong": "wrong output"}.get(name, name.replace("_", " "))


def bounds(row: Comparison) -> str:
    """Return the interval as text; "no interval" if the epochs are too few; "" if no change was measured."""
    if row.low_pct is not None and row.high_pct is not None:
        return interval(row.low_pct, row.high_pct, _places(row))
    return "" if row.pct is None else f"{NO_INTERVAL} from {plural(row.epochs, 'epoch')}"


def reach(row: Comparison) -> str:
    """Return the interval as text; for `same`, `slight` and `unclear`, also the smallest detectable slow-down."""
    least = row.detectable_pct if row.verdict in ("same", "slight", "unclear") else None
    found = "" if least is None else f"would detect a slow-down of {least:.{0 if least >= 10 else 1}f} %"
    return "; ".join(filter(None, (bounds(row), found)))


def _places(row: Comparison) -> int:
    return 2 if row.low_pct is not None and row.high_pct is not None and row.high_pct - row.low_pct < 0.5 else 1


def change_text(row: Comparison) -> str:
    """Return the change as text: `2.1 % slower`; `~` if it may be zero; the reasons if nothing was measured."""
    if row.pct is None:
        return reasons(row) or NOT_RECORDED
    around_zero = row.low_pct is not None and row.high_pct is not None and row.low_pct <= 0 <= row.high_pct
    return "~" if row.verdict == "same" or around_zero else signed(row.pct, _places(row))


def _qualifier(row: Comparison) -> str:
    """Join the remarks on a verdict, such as its reasons, or the number of epochs that are still needed."""
    chance = row.verdict in ("slower", "faster") and not row.discovery
    margin = row.certifiable_pct
    host = "" if row.host_pct is None else f"host-bound: the host takes {signed(row.host_pct, 0)}"
    could = "" if margin is None else f"the data show only: within {margin:.1f} %"
    more = "" if row.needed_epochs is None else f"may need {row.needed_epochs} epochs"
    more += "" if row.needed_seconds is None else f" ({row.needed_seconds:.0f} s more)"
    both = _regimes(row)
    return "; ".join(filter(None, (reasons(row), _REASONS["chance"] if chance else "", both, host, could, more)))


def _regimes(row: Comparison) -> str:
    """Return which regime gives the verdict, and the change in the other; "" if only one was measured."""
    pct, low, high = row.sustained_pct, row.sustained_low_pct, row.sustained_high_pct
    if row.metric == SUSTAINED:
        return "verdict by sustained" + ("" if row.burst_pct is None else f"; burst {signed(row.burst_pct)}")
    if pct is None or low is None or high is None:
        return ""
    return f"verdict by burst; sustained {signed(pct)} (95 % interval: {interval(low, high)})"


def note(row: Comparison | None) -> str:
    """Return the remarks on a row's verdict; "" if `change_text` returns the same text."""
    said = _qualifier(row) if row else ""
    return "" if row is None or said == change_text(row) else said


def verdict_and_change(row: Comparison) -> str:
    """Return verdict, remarks and change as text: `slower; time 2.1 % slower (95 % interval: ...)`."""
    why = _qualifier(row)
    verdict = f"{row.verdict} ({why})" if why else row.verdict
    if row.pct is None:
        return verdict
    known = "95 % interval: " if row.low_pct is not None and row.high_pct is not None else ""
    return f"{verdict}; time {signed(row.pct, _places(row))} ({known}{bounds(row)})"


def because(row: Comparison | None, *, notes: bool = True) -> str:
    """Return the causes of a change as text, with their evidence if `notes`; "" if abprof did not search for causes."""
    if row is None or row.causes is None:
        return ""
    return "; ".join(cause(one, notes=notes) for one in row.causes) or NO_CAUSE


def cause(of: Cause, limit: int = 500, *, notes: bool = True) -> str:
    """Return a cause with its line of source: `kernels/ffa/fwd.py:87: spill stores 0 -> 14 in fwd (changed by ...)`."""
    where = f"{of.at}: " if of.at else ""
    note = "; ".join(filter(None, ("no line found" if of.at == "" else "", of.note if notes else "")))
    return clean(f"{where}{of.text}{f' ({note})' if note else ''}", limit)


def history(one: CellHistory) -> str:
    """Describe the nights of a cell: `30 nights of main to 2026-11-25; 4.1 % slower since night 17 (2026-11-12): COMMITS`."""
    nights = f"{plural(len(one.dates), 'night')} of {clean(one.series, 60)} to {one.dates[-1]}"
    if not one.night or one.pct is None:
        return f"{nights}; no confirmed change"
    why = {"machine": ", by the machine", "open": ", by code or machine"}.get(one.because, "")
    named = [clean(commit, 80) for commit in one.commits[:_NAMED]]
    more = len(one.commits) - len(named) + one.more_commits
    commits = "; ".join([*named, *([f"{more} more"] if more else [])])
    change = f"{signed(one.pct)} since night {one.night} ({one.since}){why}"
    return f"{nights}; {change}{': ' if commits else ''}{commits}"


def two_modes(ns: tuple[float, float], counts: tuple[int, int], units: str, factor: str) -> str:
    """Describe two modes of an arm's times: `two modes, 1.210 and 1.340 ms: they go with the process (5 and 3 of 8
    processes)`. `counts`: of the `units` in each; `factor`: what explains them, "" for nothing."""
    first, second = map(duration, ns)
    both = f"{first.removesuffix(second[second.index(' ') :])} and {second}"
    count = f"{counts[0]} and {counts[1]} of {sum(counts)} {units}"
    return f"two modes, {both}: they go with {factor or 'nothing that was recorded'} ({count})"


def fact(value: Value) -> str:
    """Format a value that a workload reports about a case, such as a density. A float gets four significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else clean(value)


def headline(run: Run) -> str:
    """Return the run's result in one sentence."""
    return clean(run.header.sentence, 1000) if run.header else "Nothing was judged"


def incomplete(run: Run) -> tuple[str, ...]:
    """Return a tuple: one sentence if the run is incomplete, nothing if the run is complete."""
    return () if run.status == "complete" else (f"This run is {run.status}: what is missing was not measured.",)


def warning(one: Advice) -> str:
    """Return a warning and its advice on one line."""
    return f"{clean(one.text, 400)} ({clean(one.advice, 1000)})" if one.advice else clean(one.text, 400)


Lacking = Literal["", "reported", "sides", "forks of one process", "one process"]
FORKED: Lacking = "forks of one process"  # in Run.workloads_from of `abprof.compare`, like HERE
HERE: Lacking = "one process"
GUARANTEES: dict[Lacking, str] = {  # the sentence after `Weaker guarantee: `; `names` are of workloads
    "": "",
    "reported": "the command timed itself. Whether its outputs are right, and which code its processes loaded, is not checked.",
    FORKED: "base and target ran in forks of one process, with its modules. At most the agreement of their outputs was checked.",
    HERE: "base and target ran in one process, and may affect each other. At most the agreement of their outputs was checked.",
    "sides": "{names} has no reference. At most the agreement of the sides' outputs was checked: a common error is not seen.",
}


def lacking(run: Run) -> tuple[Lacking, tuple[str, ...]]:
    """Return a key of GUARANTEES that says what the run did not check ("": nothing), and the affected workloads."""
    if run.command is not None:
        return "reported", ()
    timed = {cell.workload for cell in run.cells}
    sides = (load for load in run.workloads if load.checked == "sides" and load.judge != "reported")
    alone = tuple(load.name for load in sides if load.name in timed)
    ways: dict[str, Lacking] = {FORKED: FORKED, HERE: HERE}
    return (ways.get(run.workloads_from, "sides"), alone) if alone else ("", ())


def guarantee(run: Run) -> str:
    """Return a sentence on what the run did against code that deceives; "" if a command timed itself, or nothing is timed."""
    if run.command is not None or not run.options.timed:
        return ""
    if run.options.untrusted:
        inside = clean(run.options.sandbox) or "a sandbox"
        checks = "inputs changed before each call; another process checked a random sample of outputs"
        return f"Code under test was not trusted: run in {inside}; {checks}"
    where = f"in {clean(run.options.sandbox)}" if run.options.sandbox else "without a sandbox"
    return f"For trusted code, {where}: a kernel that falsifies its own times or checks may pass; --untrusted guards against that"


def weaker(run: Run, most: int = 0) -> tuple[str, ...]:
    """Return a tuple: one sentence on what the run did not check, or nothing. `most`: workloads to name (0: all)."""
    lack, names = lacking(run)
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in names[: most or None])
    shown += f" and {len(names) - most} more" if most and len(names) > most else ""
    return (f"Weaker guarantee: {GUARANTEES[lack].format(names=shown)}",) if lack else ()
