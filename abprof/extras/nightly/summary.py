"""The Markdown summary of a night: whether a person must act, then what was seen."""

from __future__ import annotations

from abprof.extras.history.changes import Change
from abprof.extras.nightly.night import Report
from abprof.records.errors import Exit
from abprof.records.visible import printable

_MOST = 20  # changes that are listed
_LONGEST = 2000  # letters of what a run vouches for less: it names files of anybody's


def markdown(report: Report) -> str:
    """A page of at most some thousand characters. Foreign text stands in code spans."""
    lines = [f"## abprof nightly, {_code(report.series)}: {_answer(report)}", ""]
    lines.append(
        f"Night {report.number}, head {_code(report.head[:10])}."
        if report.number
        else f"Head {_code(report.head[:10])}."
    )
    for run in report.runs:
        with_ = f"{_code(run.base[:10])} with {_code(run.head[:10])}" if run.base else f"{_code(run.head[:10])} alone"
        lines += ["", f"- {run.kind}: {with_}: {_code(run.sentence)} ({_code(run.run_dir)})"]
        lines += [f"\n  **{_code(line, _LONGEST)}**" for line in run.weaker]
    for shift in report.shifts:
        lines += [
            "",
            f"The machine: all {shift.cells} cells moved together by {shift.pct:+.1f} % of time, with the same code.",
        ]
    if report.changes:
        lines += ["", "| | cell | since night | change of time | looks like | moved by |", "|---|---|--:|--:|---|---|"]
        lines += [_row(change) for change in report.changes[:_MOST]]
        if len(report.changes) > _MOST:
            lines += ["", f"{len(report.changes) - _MOST} more are in history.html."]
    lines += [f"\n{_code(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


def _answer(report: Report) -> str:
    if report.did == "nothing":
        return "nothing new"
    words = {
        Exit.OK: "nothing to do",
        Exit.SLOWER: "slower or broken, please read",
        Exit.UNTRUSTED: "could not be judged",
    }
    return words.get(Exit(report.exit_code), "could not run")


def _row(change: Change) -> str:
    moved = {"code": "the code", "machine": "the machine", "open": "not known"}[change.because]
    return (
        f"| {change.state} | {_code(change.trend)} | {change.night} | {change.pct:+.1f} % | {change.kind} | {moved} |"
    )


def _code(text: str, most: int = 200) -> str:
    """A text as a code span that nothing in it can end: no pings, no links, no markup."""
    clean = printable(text, most).replace("`", "'").replace("|", "¦")
    return f"`{clean or ' '}`"
