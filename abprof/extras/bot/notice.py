"""The notice: what a run has to say to a pull request, as one small typed record, and its strict reader.

The stage that runs a branch's code writes it, the stage that holds a token reads it and believes nothing in it but that it
is data: every text is short, every number finite, every list bounded, an unknown key is an error. No path, address, pull
request or markup in it is ever used as one. docs/schemas/notice.schema.json is made from this file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from abprof.records import UNREADABLE, Comparison, Record, Verdict
from abprof.records.errors import AbprofError
from abprof.verdict.guarantees import Lacking
from abprof.verdict.headline import Answer, answer

SCHEMA = 1
MOST_BYTES = 1 << 20
DEEPEST = 8  # brackets within brackets: the record needs five
Name = Annotated[str, Meta(max_length=200)]
Text = Annotated[str, Meta(max_length=600)]
Code = Annotated[str, Meta(max_length=40, pattern="^[a-z0-9_]*$")]
Commit = Annotated[str, Meta(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")]
Moment = Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+]00:00)$")]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Percent = Annotated[float, Meta(ge=-100.0, le=1e9)]
Time = Annotated[float, Meta(ge=0.0, le=1e18)]  # ns
MOST_ROWS, MOST_FAILURES, MOST_LINES, MOST_FACTS = 200, 20, 30, 60
Facts = Annotated[tuple[tuple[Name, Text], ...], Meta(max_length=MOST_FACTS)]


class Ref(Record, frozen=True, kw_only=True):
    """A side: what it is called and which commit it is."""

    id: Name
    label: Name
    commit: Commit
    uncommitted: bool = False  # a working tree that stands on this commit
    subject: Name = ""


class Tally(Record, frozen=True, kw_only=True):
    """All rows of one verdict, and between which changes of time they lie; None where none has a number."""

    verdict: Verdict
    rows: Count
    lowest_pct: Percent | None = None
    highest_pct: Percent | None = None


class Row(Record, frozen=True, kw_only=True):
    """One row that is not the same: the fields of a comparison that its words need, both times, and its causes."""

    case: Name
    to: Name
    verdict: Verdict
    status: Code = ""  # of the arm that did not run or was wrong; "" where both are ok
    reasons: Annotated[tuple[Code, ...], Meta(max_length=10)] = ()
    pct: Percent | None = None
    low_pct: Percent | None = None
    high_pct: Percent | None = None
    certifiable_pct: Percent | None = None
    epochs: Count = 0
    discovery: bool = False
    base_ns: Time | None = None
    target_ns: Time | None = None
    causes: Annotated[tuple[Text, ...], Meta(max_length=8)] | None = None  # None: not looked for

    def judged(self) -> Comparison:
        """The same as a comparison, for the functions that word one."""
        fields = {name: getattr(self, name) for name in _OF_A_COMPARISON}
        return Comparison(cell=self.case, from_="base", metric="", **fields)


_OF_A_COMPARISON = (
    "to", "verdict", "reasons", "pct", "low_pct", "high_pct", "certifiable_pct", "epochs", "discovery",
)  # fmt: skip


class Trouble(Record, frozen=True, kw_only=True):
    """A reason why arms have no speed, told once for all of them, with lines of its log."""

    arm: Name
    what: Name
    status: Code
    reason: Text
    on_base: bool
    workload: bool = False  # its own code failed, and not what is measured
    log: Name = ""
    lines: Annotated[tuple[Name, ...], Meta(max_length=MOST_LINES)] = ()


class Warned(Record, frozen=True, kw_only=True):
    """A warning of the run."""

    kind: Name
    text: Text
    advice: Text = ""


class Notice(Record, frozen=True, kw_only=True):
    """What is posted of a run. Everything in it may have been written by somebody who means harm."""

    schema: Literal[1]
    abprof: Name  # version
    run: Name  # id
    status: Literal["running", "complete", "interrupted"]
    began: Moment
    base: Ref
    targets: Annotated[tuple[Ref, ...], Meta(min_length=1, max_length=9)]
    measured: bool
    same_code: bool
    counts: Annotated[dict[Code, Count], Meta(max_length=40)]  # rows by outcome (abprof/verdict); absent: 0
    threshold: Percent
    margin: Percent
    fail_on: Annotated[tuple[Literal["slower", "broken", "unclear", "never"], ...], Meta(max_length=4)]
    false_alarm_bound: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    device: Name
    lacking: Lacking = ""  # the weaker guarantee, which is said unfolded, and whose it is
    lacking_in: Annotated[tuple[Name, ...], Meta(max_length=MOST_ROWS)] = ()
    tallies: Annotated[tuple[Tally, ...], Meta(max_length=8)] = ()
    rows: Annotated[tuple[Row, ...], Meta(max_length=MOST_ROWS)] = ()
    rows_left_out: Count = 0
    troubles: Annotated[tuple[Trouble, ...], Meta(max_length=MOST_FAILURES)] = ()
    troubles_left_out: Count = 0
    warnings: Annotated[tuple[Warned, ...], Meta(max_length=20)] = ()
    notes: Annotated[tuple[Text, ...], Meta(max_length=20)] = ()
    environment: Facts = ()
    command: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()

    @property
    def head(self) -> str:
        """The commit that the answer is about: the first target's."""
        return self.targets[0].commit

    @property
    def answer(self) -> Answer | Literal["running"]:
        """Must somebody act?"""
        if self.status == "running":
            return "running"
        return answer(self.counts, measured=self.measured)

    @property
    def unchanged(self) -> bool:
        """Whether every row is the same and there are no warnings, so that one line is enough."""
        counts = self.counts
        moved = any(counts.get(name) for name in ("slower", "faster", "slight", "unclear", "broken", "quick"))
        quiet = not (self.warnings or self.troubles or moved) and self.status == "complete"
        return quiet and self.answer == "fine" and counts.get("same", 0) > 0


def encode(notice: Notice) -> bytes:
    """The notice as the bytes of its file, read back strictly. Raises ValueError for what its own reader would refuse."""
    data = msgspec.json.format(msgspec.json.encode(notice), indent=1) + b"\n"
    try:
        parsed = _parsed(data)
    except (msgspec.MsgspecError, AbprofError) as error:
        raise ValueError(f"a notice that its reader refuses: {error}") from None
    if parsed != notice:
        raise ValueError("a notice that reads as another")
    return data


def read_notice(path: Path) -> Notice:
    """The notice in a file that anybody may have written. Raises AbprofError in one clear line; never reads more than
    1 MiB of it, follows no link, and waits for no pipe."""
    where = str(path)
    try:
        if path.is_symlink() or not path.is_file():
            raise AbprofError("not a regular file", where=where, advice="abprof report RUN --format artifact makes one")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise AbprofError(error.strerror or str(error), where=where) from None
    try:
        return _parsed(data)
    except AbprofError as error:
        raise AbprofError(error.what, where=where) from None
    except UNREADABLE as error:
        raise AbprofError(f"not a notice of this abprof: {_plain(error)}", where=where) from None


def _parsed(data: bytes) -> Notice:
    if len(data) > MOST_BYTES:
        raise AbprofError(f"larger than {MOST_BYTES} bytes")
    if _depth(data) > DEEPEST:
        raise AbprofError(f"more than {DEEPEST} brackets within brackets")
    return msgspec.json.decode(data, type=Notice)


# One pass: it matches at every quote, up to the end where no quote closes it. A pattern that could fail there would be
# tried again from each of a million quotes.
_STRING = re.compile(rb'"(?:[^"\\]|\\.?)*+"?', re.DOTALL)


def _depth(data: bytes) -> int:
    depth = deepest = 0
    for bracket in re.findall(rb"[\[\]{}]", _STRING.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _plain(error: Exception) -> str:
    """What msgspec says, without the foreign key that it may quote."""
    said = re.sub(
        r"`[^`]*`", lambda found: found[0] if found[0].isascii() and found[0].isprintable() else "`?`", str(error)
    )
    return said[:300]
