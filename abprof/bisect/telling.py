"""Pure: a bisection in words."""

from __future__ import annotations

from abprof import stats
from abprof.bisect.search import Answer, Finding
from abprof.bisect.state import State


def name(of: State, commit: str) -> str:
    """A commit for people."""
    subject = of.subject(commit) or of.labels.get(commit, "")
    return f"{commit[:10]}{f' ({subject})' if subject else ''}"


def in_words(answer: Answer) -> str:
    """An answer for people."""
    if answer.said == "cannot":
        return f"cannot be measured there ({answer.reason})"
    numbers = "no interval yet"
    if answer.theta is not None and answer.low is not None and answer.high is not None:
        numbers = "{:+.2f} % of time [{:+.2f}, {:+.2f}]".format(
            *map(stats.percent, (answer.theta, answer.low, answer.high))
        )
    words = {
        "below": "not the slow one",
        "above": "slow",
        "between": "slow, though not by the whole",
        "unclear": "unclear",
    }
    return f"{words[answer.said]}{f' ({answer.reason})' if answer.reason else ''}, {numbers}"


def decided(of: State) -> bool:
    """Whether every row has its answer: culprits, or nothing slower."""
    return all(finding.kind == "culprit" for found in of.found for finding in found.findings)


def result(of: State) -> list[str]:
    """What was found, row by row, for people."""
    if not of.found:
        return [f"nothing changed: {name(of, of.good)} and {name(of, of.bad)} hold the same kernels"]
    lines = []
    for found in of.found:
        lines += [f"{found.row.label}: {_sentence(of, finding)}" for finding in found.findings]
        if not found.findings:
            ends = next(one.answer for one in of.steps[0].rows if one.row == found.row)
            lines.append(f"{found.row.label}: nothing changed, not slower: {in_words(ends)}")
    return lines


def _sentence(of: State, finding: Finding) -> str:
    last, count = name(of, finding.commits[-1]), len(finding.commits)
    numbers = in_words(finding.answer)
    if finding.kind == "culprit":
        undone = f"; taken back by {name(of, finding.undone)}" if finding.undone else ""
        return f"{last} made it slower than its parent {finding.parent[:10]}: {numbers}{undone}"
    if finding.kind == "range":
        return f"one of {count} commits after {finding.parent[:10]} up to {last} made it slower: {numbers}"
    if finding.kind == "doubtful":
        return f"the steps lead to {last}, which is not confirmed against {finding.parent[:10]}: {numbers}"
    return f"undecided after {finding.parent[:10]} up to {last}: {numbers}"
