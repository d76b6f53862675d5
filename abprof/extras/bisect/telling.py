"""Pure: a bisection in words."""

from __future__ import annotations

from abprof.extras.bisect.questions import Answer, Finding
from abprof.extras.bisect.state import Given, State
from abprof.report.sentences import in_one_line
from abprof.verdict import stats

_SAID = {"below": "no", "above": "yes", "between": "yes, though not by the whole", "unclear": "unclear"}
_NAMED = 12  # commits of a range that are named


def name(of: State, commit: str) -> str:
    """A commit for people: its first digits, with the first line of its message or how it was asked for."""
    known = of.subject(commit) or of.labels.get(commit, "")
    return f"{commit[:10]} ({known})" if known and known != commit[:10] else commit[:10]


def weaker(of: State) -> tuple[str, ...]:
    """What every step vouches for less, as its run's own pages say it."""
    if of.asked.command:
        return (in_one_line("reported"),)
    return (in_one_line("sides", ", ".join(of.unchecked)),) if of.unchecked else ()


def asked(given: Given) -> str:
    """What a step asked of a row."""
    return f"slower by more than {stats.percent(given.cut):.2f} %?"


def in_words(answer: Answer) -> str:
    """An answer for people."""
    if answer.said == "cannot":
        return f"cannot be measured there ({answer.reason})"
    return f"{_SAID[answer.said]}{f' ({answer.reason})' if answer.reason else ''}, {numbers(answer)}"


def numbers(answer: Answer) -> str:
    """The change of time with its interval."""
    if answer.theta is None or answer.low is None or answer.high is None:
        return answer.reason or "no interval yet"
    found = map(stats.percent, (answer.theta, answer.low, answer.high))
    return "{:+.2f} % of time [{:+.2f}, {:+.2f}]".format(*found)


def decided(of: State) -> bool:
    """Whether every row has its answer: culprits, or nothing slower."""
    return all(finding.kind in {"culprit", "faster"} for found in of.found for finding in found.findings)


def result(of: State) -> list[str]:
    """What was found, row by row, for people."""
    if not of.found:
        return [f"nothing changed: {name(of, of.good)} and {name(of, of.bad)} hold the same kernels"]
    lines = []
    for found in of.found:
        lines += [f"{found.row.label}: {_sentence(of, finding)}" for finding in found.findings]
        if not found.findings:
            ends = next(one for one in of.steps[0].rows if one.row == found.row)
            lines.append(f"{found.row.label}: {_nothing(ends)} {asked(ends).capitalize()} {in_words(ends.answer)}")
    return lines


def _nothing(ends: Given) -> str:
    if ends.answer.low is not None and ends.answer.low > 0:
        return "slower, by less than is looked for (a smaller --threshold looks for it)."
    return "nothing changed." if ends.answer.high is None or ends.answer.high >= 0 else "faster, not slower."


def _sentence(of: State, finding: Finding) -> str:
    last, parent, count = name(of, finding.commits[-1]), finding.parent[:10], len(finding.commits)
    change = numbers(finding.answer)
    if finding.kind == "culprit":
        return f"{last} made it slower than its parent {parent}: {change}{_undone(of, finding)}"
    if finding.kind == "faster":
        return f"{last} made it faster again than its parent {parent}: {change}"
    if finding.kind == "range":
        which = f" ({', '.join(commit[:10] for commit in finding.commits)})" if count <= _NAMED else ""
        return (
            f"one of {count} commits after {parent} up to {last} made it slower: {change}{which}{_undone(of, finding)}"
        )
    if finding.kind == "doubtful" and finding.undone:
        return f"{last} is slower than {parent}: {change}{_undone(of, finding)}"
    if finding.kind == "doubtful" and count > 1:
        others = f"{count - 1} commits that it has and {parent} has not"
        return f"the steps lead to {last} or one of {others}, none of which is confirmed: {change}"
    if finding.kind == "doubtful":
        return f"the steps lead to {last}, which is not confirmed against {parent}: {change}"
    return f"undecided after {parent} up to {last}: {change}"


def _undone(of: State, finding: Finding) -> str:
    """What became of a slip until the bad end, or ""."""
    if not finding.undone:
        return ""
    back = name(of, finding.undone)
    if finding.kind == "doubtful":
        return f"; whether {back} took it back is not certain"
    says_so = any(link.reverts for link in of.links if link.commit == finding.undone)
    return f"; taken back by {back}" if says_so else f"; made up for by {back}: the bad end is no longer slower by it"
