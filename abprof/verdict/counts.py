"""Counts of rows in, the answer out: must somebody act, and the one sentence that says so first.

Pure, and without a run: a page that is made from a run and a comment that is made from a few numbers of it say the same.
The counts are those of abprof/verdict/headline.py; one that is not there is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

MOST_UNDECIDED = 0.10  # share of the judged rows above which a run gives no answer (exit 4)
Answer = Literal["act", "confirm", "unjudged", "fine"]
Counts = Mapping[str, int]


def answer(counts: Counts, *, measured: bool) -> Answer:
    """Must somebody act? `unjudged`: nothing was measured, what was measured had been written to, the controls failed, or too
    much is undecided to say."""
    if not measured or counts.get("controls_outside") or counts.get("tampered"):
        return "unjudged"
    if counts.get("broken") or certain(counts, "slower"):
        return "act"
    if counts.get("suspect_slower") or counts.get("worth_confirming"):
        return "confirm"
    return "unjudged" if mostly_undecided(counts) else "fine"


def certain(counts: Counts, verdict: str) -> int:
    """Rows of this verdict that false-discovery control leaves in, and nobody has waived."""
    waived = counts.get("waived", 0) if verdict == "slower" else 0
    return counts.get(verdict, 0) - counts.get(f"suspect_{verdict}", 0) - waived


def mostly_undecided(counts: Counts) -> bool:
    """More than a tenth of the judged rows are open."""
    judged = counts.get("comparisons", 0) - counts.get("unsupported", 0) - counts.get("missing", 0)
    return counts.get("undecided", 0) > MOST_UNDECIDED * judged


def nothing_measured(counts: Counts) -> str:
    """The sentence of a run without a number or a finding."""
    return f"Nothing was measured: {_rest(counts) or 'no cell ran'}."


def compared(counts: Counts, *, margin: float, same_code: bool) -> str:
    """The sentence of a comparison: first whether to act, then how many of what. Its changes survive FDR control.

    `margin` is in per cent; `same_code`: every side is the same tree.
    """
    noun = "cell" if counts.get("comparisons", 0) == counts.get("cells", 0) else "comparison"
    total = f"of {many(counts.get('comparisons', 0), noun)}"
    found = _list(counts, ("broken", "slower", "faster"))
    rest = _rest(counts)
    finding = f"{found} {total}" if found else _none(counts, total)
    return f"{_lead(counts, margin, same_code)}: {finding}" + (f"; {rest}." if rest else ".")


def many(number: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def tampered(counts: Counts) -> str:
    """What is said before all else of a run whose files changed while it ran."""
    return f"Do not act on this run, {many(counts['tampered'], 'file')} that it rests on changed while it ran"


def _lead(counts: Counts, margin: float, same_code: bool) -> str:
    if counts.get("tampered"):
        return tampered(counts)
    if counts.get("controls_outside"):
        return (
            f"Do not act on this run, {counts['controls_outside']} of {many(counts.get('controls', 0), 'control')} "
            f"(the same code twice) came out beyond the margin of {margin:g} %"
        )
    said = answer(counts, measured=True)
    if said == "fine":
        return "Nothing to act on" + (" (the same code on every side)" if same_code else "")
    return {"act": "Act", "confirm": "Confirm before acting", "unjudged": "No answer yet"}[said]


def _none(counts: Counts, total: str) -> str:
    where = f"in {total.removeprefix('of ')}"
    if counts.get("quick", 0) == counts.get("comparisons", 0):
        return f"one epoch can't be certain {where}"
    return f"nothing {'else ' if counts.get('waived') else ''}certainly slower or faster {where}"


def _list(counts: Counts, verdicts: Sequence[str]) -> str:
    found = {verdict: certain(counts, verdict) for verdict in verdicts}
    return ", ".join(f"{number} {verdict}" for verdict, number in found.items() if number)


def _rest(counts: Counts) -> str:
    def of(name: str) -> int:
        return counts.get(name, 0)

    identical = f" ({of('identical')} identical code)" if of("identical") else ""
    parts = [
        (of("suspect_slower"), "slower that may be chance"),
        (of("suspect_faster"), "faster that may be chance"),
        (of("worth_confirming"), "worth confirming"),
        (of("quick") - of("worth_confirming"), "with nothing large seen"),
        (of("waived"), "slower and waived"),
        (of("slight"), "slight"),
        (of("same"), f"same{identical}"),
        (of("undecided") - of("worth_confirming"), "undecided"),
        (of("base_not_ok"), "not ok on the base"),
        (of("unsupported"), "unsupported"),
        (of("missing"), "missing on both sides"),
    ]
    return ", ".join(f"{number} {text}" for number, text in parts if number > 0)
