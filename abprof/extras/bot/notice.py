"""The notice: the part of a run that is posted to GitHub, as a record that is checked strictly when read.

The measuring job writes the notice; the posting job, which has a token, does not trust the file: texts and lists have a
largest length, numbers are finite, and an unknown key is an error. No text of a notice is used as a path, address, pull
request or markup. docs/schemas/notice.schema.json is generated from this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from abprof.records import UNREADABLE, VERSION, Arm, Comparison, Record, Run, Side, Verdict
from abprof.records.errors import AbprofError
from abprof.report import Page, sentences
from abprof.report.sentences import VERDICTS, Lacking, lacking
from abprof.report.text import clean
from abprof.verdict import headline

MOST_BYTES = 1 << 20
Name = Annotated[str, Meta(max_length=200)]
Text = Annotated[str, Meta(max_length=600)]
Code = Annotated[str, Meta(max_length=40, pattern="^[a-z0-9_]*$")]
Commit = Annotated[str, Meta(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")]
Moment = Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+]00:00)$")]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Percent = Annotated[float, Meta(ge=-100.0, le=1e9)]
Time = Annotated[float, Meta(ge=0.0, le=1e18)]  # ns
MOST_ROWS, MOST_FAILURES, MOST_FACTS = 200, 20, 60
Facts = Annotated[tuple[tuple[Name, Text], ...], Meta(max_length=MOST_FACTS)]


class Ref(Record, frozen=True, kw_only=True):
    """A side: its name and its commit."""

    label: Name
    commit: Commit
    uncommitted: bool = False  # a working tree on top of this commit


class Row(Record, frozen=True, kw_only=True):
    """A compared cell whose verdict is not `same`, with both times and the causes of the change."""

    case: Name
    verdict: Verdict
    status: Code = ""  # status of the arm that failed or was wrong; "" if both are ok
    reasons: Annotated[tuple[Code, ...], Meta(max_length=10)] = ()
    pct: Percent | None = None
    low_pct: Percent | None = None
    high_pct: Percent | None = None
    certifiable_pct: Percent | None = None
    epochs: Count = 0
    discovery: bool = False
    base_ns: Time | None = None
    target_ns: Time | None = None
    causes: Annotated[tuple[Text, ...], Meta(max_length=8)] | None = None  # None: no search for causes
    nights: Text = ""  # sparkline of the cell's nights and their last change; "": no nights

    def judged(self) -> Comparison:
        """Return this row as a Comparison, the type that functions of abprof/report take."""
        names = set(self.__struct_fields__) & set(Comparison.__struct_fields__) - {"causes"}
        shared = {name: getattr(self, name) for name in names}
        return Comparison(cell=self.case, from_="base", to="target", metric="", **shared)


class Trouble(Record, frozen=True, kw_only=True):
    """A failure that left arms without times."""

    arm: Name
    what: Name
    status: Code
    reason: Text
    on_base: bool
    workload: bool = False  # the workload's own code failed
    log: Name = ""


class Notice(Record, frozen=True, kw_only=True):
    """The part of a run that is posted. If it was read from a file, any field may be forged."""

    schema: Literal[3]
    abprof: Name  # version
    run: Name  # the run's id
    status: Literal["running", "complete", "interrupted"]
    began: Moment
    base: Ref
    targets: Annotated[tuple[Ref, ...], Meta(min_length=1, max_length=9)]
    measured: bool
    same_code: bool
    counts: Annotated[dict[Code, Count], Meta(max_length=40)]  # rows by outcome (abprof/verdict); absent: 0
    threshold: Percent
    margin: Percent
    device: Name
    lacking: Lacking = ""  # the missing guarantee, and the workloads without it
    lacking_in: Annotated[tuple[Name, ...], Meta(max_length=MOST_ROWS)] = ()
    rows: Annotated[tuple[Row, ...], Meta(max_length=MOST_ROWS)] = ()
    rows_left_out: Count = 0
    troubles: Annotated[tuple[Trouble, ...], Meta(max_length=MOST_FAILURES)] = ()
    troubles_left_out: Count = 0
    warnings: Annotated[tuple[Text, ...], Meta(max_length=20)] = ()
    notes: Annotated[tuple[Text, ...], Meta(max_length=20)] = ()
    environment: Facts = ()
    command: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()

    @property
    def head(self) -> str:
        """Return the commit of the first target: the pull request's head when it was measured."""
        return self.targets[0].commit

    @property
    def answer(self) -> headline.Answer | Literal["running"]:
        """Return "act", "confirm", "unjudged" or "fine"; "running" while the run has not ended."""
        if self.status == "running":
            return "running"
        return headline.answer(self.counts, measured=self.measured)

    @property
    def unchanged(self) -> bool:
        """Whether one line is enough for this notice: nothing changed, and there are no warnings or failures."""
        counts = self.counts
        moved = any(counts.get(name) for name in ("slower", "faster", "slight", "unclear", "broken", "fixed", "quick"))
        quiet = not (self.warnings or self.troubles or moved) and self.status == "complete"
        return quiet and self.answer == "fine" and counts.get("same", 0) > 0


def encode(notice: Notice) -> bytes:
    """Return the content of a notice file. Raises AbprofError if `read_notice` would refuse the file."""
    data = msgspec.json.format(msgspec.json.encode(notice), indent=1) + b"\n"
    _decoded(data, notice.run)
    return data


def read_notice(path: Path) -> Notice:
    """Read the notice in an untrusted file. Raises AbprofError unless the file is regular, at most 1 MiB and valid."""
    where = str(path)
    try:
        if path.is_symlink() or not path.is_file():
            raise AbprofError("not a regular file", where=where, advice="abprof report RUN --format artifact makes one")
        with path.open("rb") as file:
            return _decoded(file.read(MOST_BYTES + 1), where)
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=where) from None


def _decoded(data: bytes, where: str) -> Notice:
    if len(data) > MOST_BYTES:
        raise AbprofError(f"larger than {MOST_BYTES} bytes", where=where)
    try:
        return msgspec.json.decode(data, type=Notice)
    except UNREADABLE as error:
        raise AbprofError(f"not a notice of this abprof: {error}"[:300], where=where) from None


_SHARED = ("verdict", "pct", "low_pct", "high_pct", "certifiable_pct", "epochs", "discovery")


def make_notice(run: Run) -> Notice:
    """Return the notice of `run`. Raises AbprofError if the run has one side or no times, and so no verdict."""
    if not run.options.timed:
        raise AbprofError("a run without timings has no verdict", where=run.id, advice="report.md has the counters")
    if len(run.sides) < 2:
        raise AbprofError("a run of one branch has no verdict to post", where=run.id, advice="compare two refs")
    shown, order = Page(run, ()), [*VERDICTS]
    between_sides = [one for one in run.comparisons if not one.with_peer]
    rows = sorted(_rows(run, shown), key=lambda row: (order.index(row.verdict), -abs(row.pct or 0.0)))
    troubles = list(_troubles(shown))
    lack, names = lacking(run)
    notes = (*run.notes, *(f"waiver: {one.line}" for one in run.in_force))
    return Notice(
        schema=3,
        abprof=VERSION,
        run=clean(run.id, 200),
        status=run.status,
        began=run.began,
        base=_ref(run.sides[0]),
        targets=tuple(map(_ref, run.sides[1:10])),
        measured=bool(run.header) and any(c.pct is not None or c.shown != "unclear" for c in between_sides),
        same_code=run.one_code,
        counts={name: min(count, 10**6) for name, count in (run.header.counts if run.header else {}).items()},
        threshold=run.options.threshold,
        margin=run.options.margin,
        device=clean(shown.where, 200),
        lacking=lack,
        lacking_in=tuple(clean(name, 200) for name in names[:MOST_ROWS]),
        rows=tuple(rows[:MOST_ROWS]),
        rows_left_out=max(0, len(rows) - MOST_ROWS),
        troubles=tuple(troubles[:MOST_FAILURES]),
        troubles_left_out=max(0, len(troubles) - MOST_FAILURES),
        warnings=tuple(clean(": ".join(filter(None, (one.text, one.advice))), 600) for one in run.warnings[:20]),
        notes=tuple(clean(note, 600) for note in notes[:20]),
        environment=tuple((clean(name, 200), clean(text, 600)) for name, text in shown.machine)[:MOST_FACTS],
        command=_command(run),
    )


def _ref(side: Side) -> Ref:
    return Ref(label=clean(side.label, 200), commit=side.commit, uncommitted=side.kind == "worktree")


def _rows(run: Run, shown: Page) -> Iterator[Row]:
    """Yield the rows to post: all but those whose verdict is `same` and those that both sides skip."""
    for group in shown.workloads:
        several = f" against {group.target.label}" if group.target and len(run.sides) > 2 else ""
        for line in group.lines:
            row, judged = line.row, line.row.comparison
            if not judged or row.verdict == "same" or row.apart:
                continue
            failed = row.failing
            # A time that the parent's clock did not confirm may be made up, and would read as a speed.
            doubted = "timer" in judged.reasons or (run.options.check == "outside" and judged.verdict == "unclear")
            if doubted:
                none = dict.fromkeys(("pct", "low_pct", "high_pct", "certifiable_pct"))
                judged = msgspec.structs.replace(judged, **none)
            causes = [sentences.cause(cause, 600) for cause in judged.causes] if judged.causes is not None else None
            if failed and not causes:
                causes = [failed[-1].reason] if failed[-1].reason else []
            yield Row(
                case=clean(group.full_name(row.cell, row.variant) + several, 200),
                status=failed[-1].status if failed else "",
                reasons=tuple(re.sub("[^a-z0-9_]", "", code)[:40] for code in judged.reasons[:10]),
                **{name: getattr(judged, name) for name in _SHARED},
                base_ns=row.ns(row.base),
                target_ns=None if doubted else row.ns(row.target),
                causes=None if causes is None else tuple(clean(cause, 600) for cause in causes[:8]),
                nights=clean(line.nights, 600),
            )


def _troubles(shown: Page) -> Iterator[Trouble]:
    for one in sorted(shown.failed, key=lambda one: one.seen[0].status != "build_failed"):
        seen = one.seen[0]
        yield Trouble(
            arm=clean(one.arm, 200),
            what=clean(one.what, 200),
            status=seen.status,
            reason=clean(one.reason, 600),
            on_base=Arm.of(seen.arm).side == "base" and not seen.cell.endswith("/"),
            workload=bool(seen.at),
            log=clean(one.log, 200),
        )


def _command(run: Run) -> tuple[str, ...]:
    """Return the command line that repeats the run on the same commits with the same seed; () if it is too long."""
    words = run.options.arguments
    words = words[1:] if words[:1] == ("abprof",) else words
    end = words.index("--") if "--" in words else len(words)  # the words after `--` belong to the command
    seed = () if "--seed" in words[:end] or words[:1] == ("demo",) else ("--seed", str(run.options.seed))
    command = ("abprof", *words[:end], *seed, *words[end:])
    return command if len(command) <= 100 and all(clean(word, 600) == word for word in command) else ()
