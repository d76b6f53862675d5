"""The comment: a notice as GitHub-flavoured Markdown that always fits. templates/comment.md holds its words and order.

Everything in a notice is foreign text or a number: texts are code spans, and whatever the template prints is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from jinja2 import Template
from markupsafe import Markup

from abprof.extras.bot.from_run import spelled
from abprof.extras.bot.notice import Notice, Row, Tally
from abprof.records.errors import AbprofError
from abprof.report import kernels, words
from abprof.report.lines import change_text
from abprof.report.lines import note as qualified
from abprof.report.pages import environment
from abprof.report.plain_markdown import code, escape
from abprof.verdict.guarantees import said
from abprof.verdict.headline import certain, compared, nothing_measured

MOST_BYTES = 60_000  # of UTF-8; GitHub takes 65,536 characters
TOP = 5  # rows that are not folded
_NAMED = 5  # workloads that are called by name where a guarantee is weaker


@dataclass(frozen=True)
class Room:
    """How much of each thing a comment holds."""

    rows: int = 10**6
    lines: int = 10**6  # of each log
    troubles: int = 10**6
    warnings: int = 10**6
    facts: bool = True
    text: int = 300  # characters of one foreign text


# Step by step less, until it fits. The last holds numbers alone, and fits whatever is in the notice.
STEPS = (
    Room(),
    Room(lines=10, text=200),
    Room(rows=60, lines=10, text=160),
    Room(rows=25, lines=5, troubles=8, warnings=8, text=120),
    Room(rows=5, lines=0, troubles=4, warnings=4, text=80),
    Room(rows=5, lines=0, troubles=0, warnings=0, facts=False, text=60),
    Room(rows=0, lines=0, troubles=0, warnings=0, facts=False, text=40),
)


@dataclass(frozen=True)
class Around:
    """What the posting stage knows beside the notice, from its own command line and from GitHub."""

    head: str = ""  # the pull request's head commit now; "" when it was not asked
    link: str = ""  # where the full report is; the one address in a comment
    replaces: str = ""  # the commit whose result stood here before

    def __post_init__(self) -> None:
        if self.link and not re.fullmatch(r"https?://[A-Za-z0-9._~:/?#&+,;=%@-]{1,500}", self.link):
            raise AbprofError("not a plain http address", where="--url")


def comment(notice: Notice, around: Around = Around(), most: int = MOST_BYTES) -> str:
    """The comment, in at most `most` bytes of UTF-8. What had to be left out for that is said in it."""
    text = ""
    for room in STEPS:
        text = _rendered(notice, around, room)
        if len(text.encode(errors="replace")) <= most:
            return text
    raise AssertionError(f"the smallest comment takes {len(text.encode())} bytes of {most}")


def sentence(notice: Notice) -> str:
    """The answer in one sentence, made here of numbers alone."""
    if notice.status == "running":
        return "Measuring, no answer yet."
    counts = notice.counts.named()
    if not notice.measured:
        return nothing_measured(counts)
    return compared(counts, margin=notice.margin, same_code=notice.same_code)


def title(notice: Notice) -> str:
    """The answer where there is one line for it, with how far it holds."""
    return sentence(notice) + (" Weaker guarantee." if notice.lacking else "")


def weaker(notice: Notice, limit: int) -> Markup:
    """What this run vouches for less, in a sentence of our own around the names of workloads; "" where nothing."""
    if not notice.lacking:
        return Markup("")
    shown = Markup(", ").join(span(name, limit) for name in notice.lacking_in[:_NAMED])
    more = len(notice.lacking_in) - _NAMED
    names = Markup("{} and {}").format(shown, words.plural(more, "other")) if more > 0 else shown
    return Markup("**Weaker guarantee:** ") + Markup(said(notice.lacking, names))  # noqa: S704 - ours around code spans


def next_step(notice: Notice, *, outdated: bool = False) -> str:
    """What to do now, in words of our own."""
    if outdated:
        return "nothing for this commit; the new head needs a run of its own."
    if notice.answer == "running":
        return "wait for the result, which replaces this comment."
    if notice.counts.tampered:
        return "do not act on these numbers: find out who wrote to those files (the warning names them)."
    if notice.counts.controls_outside:
        return "do not act on these numbers: measure again on a quiet machine."
    steps = [*_to_mend(notice)]
    if certain(notice.counts.named(), "slower"):
        steps.append(
            "make the slower cases as quick again, or have them waived on the base branch (abprof waive), then rebase"
        )
    if notice.answer == "confirm":
        steps.append("measure the doubtful cases again (abprof rerun RUN --only slower,unclear) before acting")
    if notice.answer == "unjudged":
        steps.append("measure again with a larger --budget: this run can not judge")
    if not notice.measured and notice.troubles and all(one.on_base and not one.workload for one in notice.troubles):
        steps.append("mend the base first")
    return "; ".join(steps) + "." if steps else "nothing to do."


def _to_mend(notice: Notice) -> Iterator[str]:
    """What of all that did not run is not the base's doing."""
    if any(trouble.workload for trouble in notice.troubles):
        yield "mend the workload: its own code failed, at the place that is named below"
    failed = {trouble.status for trouble in notice.troubles if not trouble.on_base and not trouble.workload}
    if "build_failed" in failed:
        yield "mend the build; the first lines of its log are below"
    if "wrong" in failed:
        yield "mend the wrong outputs: no speed is reported on a wrong answer"
    if failed - {"build_failed", "wrong"}:
        yield "mend what did not run"


def controls(notice: Notice) -> str:
    """What the same code against itself showed."""
    counts = notice.counts
    if not counts.controls:
        return "No controls (the same code twice) were measured with an interval."
    undecided = max(0, counts.controls - counts.controls_inside - counts.controls_outside)
    text = f"Controls (the same code twice): {counts.controls_inside} of {counts.controls} inside the margin of "
    text += f"{notice.margin:g} %, {counts.controls_outside} beyond it, {undecided} undecided"
    if notice.false_alarm_bound is not None:
        text += f"; false alarms in at most {100 * notice.false_alarm_bound:.0f} % of cells (95 % upper bound)"
    return text + "."


def between(tally: Tally) -> str:
    """The range of a verdict's changes; no average over a selection."""
    if tally.lowest_pct is None or tally.highest_pct is None:
        return ""
    if tally.rows == 1 or tally.lowest_pct == tally.highest_pct:
        return words.signed(tally.lowest_pct)
    return words.interval(tally.lowest_pct, tally.highest_pct)


def because(row: Row, limit: int) -> Markup:
    """The causes of a row, each as data."""
    found = Markup("; ").join(code(cause, limit) for cause in row.causes or ())
    if row.status:
        said = Markup(escape(words.STATUSES.get(row.status, "did not run")))  # type: ignore[call-overload] # noqa: S704
        return Markup(": ").join(filter(None, (said, found)))
    note = escape(qualified(row.judged()))
    none = Markup("") if row.causes is None or row.causes else escape(kernels.NO_CAUSE)
    return Markup("; ").join(filter(None, (found or none, note)))


def span(text: str, limit: int = 120) -> Markup:
    """A code span outside a table, where nothing takes the backslash from a bar."""
    return Markup(code(text, limit).replace("\\|", "|"))  # noqa: S704


def fenced(texts: Sequence[str]) -> Markup:
    """Lines as a fenced block, the fence longer than any run of backticks in them.

    One blank stands before each: to bots that read comments `/close` at the start of a line is a command.
    """
    lines = [" " + words.clean(text, 2000) for text in texts]
    longest = max((len(run) for line in lines for run in _backticks(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup("\n".join([fence, *lines, fence]))  # noqa: S704 - nothing ends the block but its fence


def _backticks(line: str) -> list[str]:
    return [run for run in "".join(letter if letter == "`" else " " for letter in line).split() if run]


def _left_out(notice: Notice, room: Room) -> list[str]:
    """What is not in the comment and was in the run."""
    rows = notice.rows_left_out + max(0, len(notice.rows) - room.rows)
    troubles = notice.troubles_left_out + max(0, len(notice.troubles) - room.troubles)
    logs = sum(len(trouble.lines) > room.lines for trouble in notice.troubles[: room.troubles])
    warnings = max(0, len(notice.warnings) - room.warnings)
    said = [
        (rows, words.plural(rows, "row")),
        (troubles, words.plural(troubles, "failure")),
        (logs, f"lines of {words.plural(logs, 'log')}"),
        (warnings, words.plural(warnings, "warning")),
        (not room.facts, "the environment and the command"),
    ]
    return [text for count, text in said if count]


def _rendered(notice: Notice, around: Around, room: Room) -> str:
    cut = replace(room, rows=min(room.rows, len(notice.rows)))
    outdated = bool(around.head) and around.head != notice.head
    return _template().render(
        notice=notice,
        around=around,
        room=cut,
        top=notice.rows[: min(TOP, cut.rows)],
        folded=notice.rows[min(TOP, cut.rows) : cut.rows],
        troubles=notice.troubles[: room.troubles],
        warnings=notice.warnings[: room.warnings],
        left_out=_left_out(notice, room),
        sentence=sentence(notice),
        title=title(notice),
        weaker=weaker(notice, cut.text),
        next_step=next_step(notice, outdated=outdated),
        outdated=outdated,
        controls=controls(notice),
        between=between,
        because=because,
        change_text=change_text,
        spelled=spelled,
        words=words,
    )


@cache
def _template() -> Template:
    made = environment(escape)
    made.filters |= {"code": code, "span": span, "fenced": fenced}
    return made.get_template("comment.md")
