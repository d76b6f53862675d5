"""Render a notice (the part of a run that is posted) as a short GitHub comment; the layout is templates/comment.md.

The texts of a notice are untrusted, so the comment shows them as code or escaped.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Template
from markupsafe import Markup

from abprof.extras.bot.notice import Notice, Row, make_notice
from abprof.records import Run
from abprof.records.errors import AbprofError
from abprof.records.quantities import plural
from abprof.report import environment, sentences
from abprof.report.sentences import GUARANTEES, change_text
from abprof.report.sentences import note as qualified
from abprof.report.text import block_of_code, code, duration, span_of_code
from abprof.report.text import markdown as escape
from abprof.verdict import headline

MOST_BYTES = 59_500  # of UTF-8; GitHub accepts 65,536 characters, with the hidden line that github.py adds
TOP = 5  # rows that are not folded
_NAMED = 5  # workloads named in the sentence about a weaker guarantee


@dataclass(frozen=True)
class _Room:
    """The most rows and characters of a notice that fit into a comment."""

    rows: int
    details: int  # number of failures and warnings; 0 leaves out the environment, too
    text: int  # largest number of characters of one untrusted text


# `render` tries these limits in order until the comment fits. The last entry shows only numbers and fits for any notice.
_ROOMS = (_Room(200, 30, 300), _Room(60, 10, 160), _Room(25, 5, 120), _Room(5, 0, 80), _Room(0, 0, 40))


def render(notice: Notice, *, link: str = "", head: str = "", replaces: str = "", most: int = MOST_BYTES) -> str:
    """Return the comment in at most `most` bytes of UTF-8. If it is shortened, the last line says how much is left out.

    `link`: address of the full report. `head`: the pull request's current head commit, "" if unknown. `replaces`: the
    commit of an older comment that this one replaces. Raises AbprofError if `link` is not an http or https address.
    """
    if link and not re.fullmatch(r"https?://[A-Za-z0-9._~:/?#&+,;=%@-]{1,500}", link):
        raise AbprofError("not an http or https address", where="--url")
    for room in _ROOMS:
        text = _rendered(notice, room, link=link, head=head or notice.head, replaces=replaces)
        if len(text.encode(errors="replace")) <= most:
            return text
    raise AssertionError(f"the smallest comment takes more than {most} bytes")


def job_summary(run: Run, folder: Path, room: int) -> bytes:
    """Return what a GitHub job's summary shows of a run: the comment, or report.md if the run has no verdicts. If that
    is larger than `room`, in bytes, return the run's sentence, or nothing if even that is too large."""
    if len(run.sides) > 1 and run.options.timed:
        text = render(make_notice(run))
    else:
        text = (folder / "report.md").read_text(encoding="utf-8")
    short = f"abprof: {escape(sentences.headline(run))} The rest is too long for a summary: see report.md of the run."
    sizes = (f"{shown}\n\n".encode(errors="replace") for shown in (text, short))
    return next((made for made in sizes if len(made) <= room), b"")


def _sentence(notice: Notice) -> str:
    if notice.status == "running":
        return "Measuring, no answer yet."
    margin, same_code = notice.margin, notice.same_code
    return headline.summary(notice.counts, measured=notice.measured, margin=margin, same_code=same_code, action=True)


def _weaker(notice: Notice, limit: int) -> Markup:
    if not notice.lacking:
        return Markup("")
    names = Markup(", ").join(span_of_code(name, limit) for name in notice.lacking_in[:_NAMED])
    if (more := len(notice.lacking_in) - _NAMED) > 0:
        names += Markup(f" and {plural(more, 'other')}")  # noqa: S704 - a number
    return Markup("**Weaker guarantee:** ") + Markup(GUARANTEES[notice.lacking].format(names=names))  # noqa: S704 - ours around code spans


def next_step(notice: Notice, *, outdated: bool = False) -> str:
    """Return what the reader should do next. `outdated`: the measured commit is no longer the pull request's head."""
    if outdated:
        return "nothing for this commit; the new head needs a run of its own."
    if notice.answer == "running":
        return "wait for the result, which replaces this comment."
    if notice.counts.get("tampered"):
        return "do not act on these numbers: find out what wrote to the files that the warning names."
    if notice.counts.get("controls_outside"):
        return "do not act on these numbers: measure again on a quiet machine."
    slower = headline.certain(notice.counts, "slower")
    failed = {trouble.status for trouble in notice.troubles if not trouble.on_base and not trouble.workload}
    only_base = notice.troubles and all(one.on_base and not one.workload for one in notice.troubles)
    steps = {
        "fix the workload: its own code failed, at the place named below": any(one.workload for one in notice.troubles),
        "fix the build; its first error is below": "build_failed" in failed,
        "fix the wrong outputs: no speed is reported on a wrong answer": "wrong" in failed,
        "fix what did not run": failed - {"build_failed", "wrong"},
        "make the slower cases as fast again, or waive them on the base branch (abprof waive), then rebase": slower,
        "measure the doubtful cases again (abprof rerun RUN --only slower,unclear)": notice.answer == "confirm",
        "measure again with a larger --budget: this run gives no answer": notice.answer == "unjudged",
        "fix the base first": only_base and not notice.measured,
    }
    needed = [step for step, wanted in steps.items() if wanted]
    return "; ".join(needed) + "." if needed else "nothing to do."


def _controls(notice: Notice) -> str:
    total, inside, outside = (notice.counts.get(f"controls{name}", 0) for name in ("", "_inside", "_outside"))
    if not total:
        return "No controls (the same code twice) were measured with an interval."
    beyond = f"{inside} of {total} inside the margin of {notice.margin:g} %, {outside} beyond it"
    return f"Controls (the same code twice): {beyond}."


def _because(row: Row, limit: int) -> Markup:
    found = Markup("; ").join(code(cause, limit) for cause in row.causes or ())
    if row.status:
        status = escape(sentences.status(row.status))
        return Markup(": ").join(filter(None, (status, found)))
    none = Markup("") if row.causes is None or row.causes else escape(sentences.NO_CAUSE)
    return Markup("; ").join(filter(None, (found or none, escape(qualified(row.judged())))))


def _rendered(notice: Notice, room: _Room, **context: str) -> str:
    outdated = context["head"] != notice.head
    rows = notice.rows[: room.rows]
    left_out = {
        "row": notice.rows_left_out + max(0, len(notice.rows) - room.rows),
        "failure": notice.troubles_left_out + max(0, len(notice.troubles) - room.details),
        "warning": max(0, len(notice.warnings) - room.details),
    }
    return _template().render(
        notice=notice,
        **context,
        room=room,
        top=rows[:TOP],
        folded=rows[TOP:],
        troubles=notice.troubles[: room.details],
        warnings=notice.warnings[: room.details],
        left_out=[plural(count, noun) for noun, count in left_out.items() if count],
        sentence=_sentence(notice),
        weaker=_weaker(notice, room.text),
        next_step=next_step(notice, outdated=outdated),
        outdated=outdated,
        controls=_controls(notice),
        because=_because,
        change_text=change_text,
        command=shlex.join(notice.command),
        sentences=sentences,
        duration=duration,
    )


@cache
def _template() -> Template:
    made = environment(escape)
    made.filters |= {"span": span_of_code, "fenced": block_of_code}
    return made.get_template("comment.md")
