"""The parts of a nightly job: its plan and its summary."""

from typing import Any

import pytest

from abprof.extras.nightly import NightReport, commits_of, summary
from abprof.extras.nightly.changes import Change, Shift
from abprof.extras.nightly.history import NightRow

HEAD, LAST = "h" * 40, "l" * 40
PLAIN = {"matrix": "matrix", "machine": "m1", "began": "2026-01-01", "subject": "", "exit_code": 0, "sentence": ""}


def row(number: int, kind: str, base: str, head: str, **more: Any) -> NightRow:
    fields = PLAIN | {"heads": 3} | more
    return NightRow(folder=f"f{number}", series="main", number=number, kind=kind, base=base, head=head, **fields)


@pytest.mark.parametrize(
    ("nights", "commits"),
    [
        ([], (HEAD,)),
        ([row(1, "first", "", HEAD)], ()),
        ([row(1, "first", "", LAST)], (LAST, HEAD)),
        ([row(1, "first", "", LAST), row(2, "step", LAST, HEAD)], ()),
        # the head went back to an older commit: that is new, once
        ([row(1, "first", "", HEAD), row(2, "step", HEAD, LAST)], (LAST, HEAD)),
        # a head of which nothing ran is never a base, and is not tried every night
        ([row(1, "first", "", LAST), row(2, "step", LAST, HEAD, heads=0)], ()),
        ([row(1, "first", "", LAST), row(2, "step", LAST, "x", heads=0)], (LAST, HEAD)),
        ([row(1, "first", "", HEAD, heads=0)], ()),
        # a night on which nothing could run is repeated
        ([row(1, "first", "", HEAD, heads=0, settled=False)], (HEAD,)),
        ([row(1, "first", "", LAST), row(2, "step", LAST, HEAD, heads=0, settled=False)], (LAST, HEAD)),
        # another matrix, another machine
        ([row(1, "first", "", HEAD, matrix="less")], (HEAD,)),
        ([row(1, "first", "", HEAD, machine="m0")], (HEAD,)),
        # a commit that the repository lost
        ([row(1, "first", "", LAST), row(2, "step", LAST, "gone")], (LAST, HEAD)),
    ],
)
def test_what_is_measured_tonight(nights: list[NightRow], commits: tuple[str, ...]) -> None:
    assert commits_of(nights, HEAD, "matrix", "m1", lambda commit: commit != "gone") == commits


def test_the_summary_begins_with_the_answer_and_keeps_foreign_text_in_code() -> None:
    evil = "w/`x`|@you\n# <script>"
    changes = tuple(Change(f"{evil}{i}", 7, 9, 5.25, "code") for i in range(30))
    weaker = (f"Weaker guarantee: {evil} has no reference.",)
    run = row(9, "step", LAST, HEAD, exit_code=1, sentence="1 slower")
    text = summary(NightReport("step", "main", 9, HEAD, 1, (run,), weaker, changes, (Shift(9, 4.0, 12),), ("`note`",)))
    assert text.startswith("## abprof nightly, `main`: slower or broken, please read\n")
    assert "all 12 cells together became 4.0 % slower" in text
    assert "10 more are in history.html" in text
    assert "\n# " not in text
    assert len([line for line in text.splitlines() if line.endswith("| 7 | 5.2 % slower | the code |")]) == 20
