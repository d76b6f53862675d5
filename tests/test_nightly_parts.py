"""The parts of a nightly job: what is planned, what is kept, who is told, when doctor worries."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abprof.extras.history.changes import Change
from abprof.extras.history.fleet import Shift
from abprof.extras.history.index import Row, opened
from abprof.extras.history.night import begun
from abprof.extras.nightly import heartbeat, keep, night
from abprof.extras.nightly.night import Done, Report
from abprof.extras.nightly.plan import Job, Tonight, after, given_up, jobs, last, number_of
from abprof.extras.nightly.summary import markdown
from abprof.measure.run_context import Place
from abprof.records import Night
from abprof.records.errors import AbprofError, Exit
from tests import runs
from tests.nights import BEGAN, Nights

HEAD, LAST, RELEASE = "h" * 40, "l" * 40, "r" * 40
TONIGHT, OTHER = Tonight(HEAD, "", "asked", "m1"), Tonight("y", "", "asked", "m1")


def row(number: int, kind: str, base: str, head: str, **more: Any) -> Row:
    fields = {
        "asked": "asked",
        "machine": "m1",
        "began": "2026-01-01",
        "subject": "",
        "exit_code": 0,
        "sentence": "",
        "heads": 3,
    }
    return Row(folder=f"f{number}", series="main", number=number, kind=kind, base=base, head=head, **(fields | more))


# ---------------------------------------------------------------- what is planned


@pytest.mark.parametrize(
    ("nights", "tonight", "todo"),
    [
        ([], TONIGHT, [Job("first", (HEAD,))]),
        ([row(1, "first", "", HEAD)], TONIGHT, []),
        ([row(1, "first", "", LAST)], TONIGHT, [Job("step", (LAST, HEAD))]),
        ([row(1, "first", "", LAST), row(2, "step", LAST, HEAD)], TONIGHT, []),
        # the head went back to an older commit: that is news, once
        ([row(1, "first", "", HEAD), row(2, "step", HEAD, LAST)], TONIGHT, [Job("step", (LAST, HEAD))]),
        # a head of which nothing ran is nobody's base, and is not tried every night
        ([row(1, "first", "", LAST), row(2, "step", LAST, HEAD, heads=0)], TONIGHT, []),
        ([row(1, "first", "", LAST), row(2, "step", LAST, "x", heads=0)], TONIGHT, [Job("step", (LAST, HEAD))]),
        ([row(1, "first", "", HEAD, heads=0)], TONIGHT, []),
        # a night on which nothing could run is done again
        ([row(1, "first", "", HEAD, heads=0, settled=0)], TONIGHT, [Job("first", (HEAD,))]),
        (
            [row(1, "first", "", LAST), row(2, "step", LAST, HEAD, heads=0, settled=0)],
            TONIGHT,
            [Job("step", (LAST, HEAD))],
        ),
        # but not for ever: a head that kills every worker does so tomorrow, too
        ([row(i, "first", "", HEAD, heads=0, settled=0) for i in (1, 2)], TONIGHT, [Job("first", (HEAD,))]),
        ([row(i, "first", "", HEAD, heads=0, settled=0) for i in (1, 2, 3)], TONIGHT, []),
        ([row(i, "first", "", HEAD, heads=0, settled=0) for i in (1, 2, 3)], OTHER, [Job("first", ("y",))]),
        (
            [row(1, "first", "", LAST), *(row(i, "step", LAST, HEAD, heads=0, settled=0) for i in (2, 3, 4))],
            TONIGHT,
            [],
        ),
        # another matrix, another machine
        ([row(1, "first", "", HEAD, asked="less")], TONIGHT, [Job("first", (HEAD,))]),
        ([row(1, "first", "", HEAD, machine="m0")], TONIGHT, [Job("first", (HEAD,))]),
        # a fixed release
        ([row(1, "first", "", HEAD)], Tonight(HEAD, RELEASE, "asked", "m1"), [Job("against", (RELEASE, HEAD))]),
        ([row(1, "first", "", HEAD), row(1, "against", RELEASE, HEAD)], Tonight(HEAD, RELEASE, "asked", "m1"), []),
        ([row(1, "first", "", HEAD)], Tonight(HEAD, HEAD, "asked", "m1"), []),
    ],
)  # fmt: skip
def test_jobs(nights: list[Row], tonight: Tonight, todo: list[Job]) -> None:
    assert jobs(nights, tonight) == todo


def test_what_was_given_up_is_said_until_there_is_something_new() -> None:
    vain = [row(i, "first", "", HEAD, heads=0, settled=0, sentence="all crashed") for i in (1, 2, 3)]
    assert given_up(vain, TONIGHT) == "all crashed"
    assert given_up(vain[:2], TONIGHT) == given_up(vain, OTHER) == ""
    assert given_up([*vain, row(4, "first", "", HEAD)], TONIGHT) == "", "another commit came in between, and back"
    released = Tonight(HEAD, RELEASE, "asked", "m1")
    assert given_up([*vain, row(4, "against", RELEASE, HEAD)], released) == "all crashed", (
        "its own step was never judged"
    )
    lost = [row(i, "against", RELEASE, HEAD, heads=0, settled=0, sentence="no release") for i in (2, 3, 4)]
    assert given_up([row(1, "first", "", HEAD), *lost], released) == "no release"
    assert given_up([row(1, "first", "", HEAD), *lost], TONIGHT) == "", "it is asked for no longer"


def test_a_night_that_was_begun_is_found(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    done, killed = nights.add({"w/n=1": (1.0, 1.0)}), nights.add({"w/n=1": (1.0, 1.0)})
    text = (killed / "run.json").read_text()
    run = json.loads(text)
    (killed / "run.json").write_text(json.dumps({**run, "status": "running"}))
    about = msgspec.convert(run["night"], Night)
    commits = [side["commit"] for side in run["sides"]]
    assert begun(tmp_path, about, commits) == killed
    assert begun(tmp_path, msgspec.structs.replace(about, number=7), commits) is None
    assert begun(tmp_path, about, ["0" * 40]) is None
    (done / "run.json").write_text("{")
    assert begun(tmp_path, about, commits) == killed
    (killed / "run.json").write_text(text)
    assert begun(tmp_path, about, commits) is None, "it has ended"


def test_a_stretch_begins_anew_after_a_commit_that_is_gone_and_is_begun_once() -> None:
    nights = [row(1, "first", "", "x"), row(2, "step", "x", LAST), row(3, "against", RELEASE, LAST)]
    assert last(nights) == LAST
    assert [night.number for night in after(nights, LAST)] == [3]
    assert jobs(after(nights, LAST), TONIGHT) == [Job("first", (HEAD,))]
    nights.append(row(4, "first", "", HEAD, heads=0, exit_code=1))  # it does not build
    assert last(nights) == LAST
    assert jobs(after(nights, LAST), TONIGHT) == []


def test_numbers_go_on() -> None:
    assert number_of([]) == 1
    assert number_of([row(7, "step", LAST, HEAD), row(3, "step", LAST, HEAD)]) == 8


# ---------------------------------------------------------------- what is kept


@pytest.fixture
def old(tmp_path: Path) -> Nights:
    nights = Nights(tmp_path / "runs")
    for _ in range(6):
        folder = nights.add({"w/n=1": (1.0, 1.0)})
        (folder / "rounds.jsonl").write_bytes(b"x" * 1000)
        (folder / "report.md").write_text("said")
        (folder / "logs" / "base.log").write_text("log")
    return nights


def kept(nights: Nights) -> list[bool]:
    return [(folder / "rounds.jsonl").exists() for folder in sorted(nights.runs_dir.glob("*/"))]


def prune(nights: Nights, what: keep.Keep, days: float) -> list[str]:
    with opened(nights.runs_dir) as index:
        rows = index.nights("main")
    return keep.prune(nights.runs_dir, rows, what, BEGAN + timedelta(days=days))


def test_age_takes_rounds_and_leaves_what_history_needs(old: Nights) -> None:
    said = prune(old, keep.Keep(days=3, nights=1), 7)
    assert kept(old) == [False, False, False, True, True, True]
    assert len(said) == 3
    first = sorted(old.runs_dir.glob("*/"))[0]
    assert sorted(path.name for path in first.iterdir()) == ["report.md", "run.json"]
    with opened(old.runs_dir, anew=True) as index:
        assert len(index.nights("main")) == 6
    assert prune(old, keep.Keep(days=3, nights=1), 7) == []


def test_the_newest_stay_whatever_their_age_and_size(old: Nights) -> None:
    prune(old, keep.Keep(days=0, gib=0, nights=2), 400)
    assert kept(old) == [False] * 4 + [True] * 2


def test_size_takes_the_oldest_first(old: Nights) -> None:
    total = sum(path.stat().st_size for path in old.runs_dir.glob("*/**/*"))
    prune(old, keep.Keep(days=10**4, gib=(total - 6000) / 2**30, nights=1), 7)
    assert kept(old) == [False, False, True, True, True, True]


def test_what_began_in_the_future_or_never_is_not_old(old: Nights) -> None:
    assert prune(old, keep.Keep(days=3, nights=0), -1000) == []


def test_other_runs_are_not_touched(old: Nights) -> None:
    mine = old.runs_dir / "20200101T000000Z-mine"
    mine.mkdir()
    (mine / "rounds.jsonl").write_text("mine")
    prune(old, keep.Keep(days=0, gib=0, nights=1), 400)
    assert (mine / "rounds.jsonl").exists()


# ---------------------------------------------------------------- exit codes, and what is measured


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (Change("w/a", 7, 9, "confirmed", "drift", 5.0, "code"), Exit.SLOWER),
        (Change("w/a", 7, 9, "confirmed", "drift", 5.0, "open"), Exit.SLOWER),
        (Change("w/a", 7, 9, "confirmed", "drift", 5.0, "machine"), Exit.OK),
        (Change("w/a", 7, 9, "confirmed", "drift", -5.0, "code"), Exit.OK),
        (Change("w/a", 9, 9, "suspected", "step", 5.0, "code"), Exit.OK),
    ],
)
def test_a_slow_down_that_many_nights_confirm_is_exit_code_1(
    change: Change, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night, "_after", lambda *_: ((change,), (), []))
    done = Done("step", LAST, HEAD, 0, "nothing slower", {}, "")
    of = night._Since("main", 9, HEAD, 8)
    assert night._report(Place.__new__(Place), night.Wish(), of, "step", [done], ()).exit_code == code


def test_a_night_is_told_though_what_follows_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AbprofError("another abprof is writing the index")

    monkeypatch.setattr(night, "_after", fail)
    for code, then in ((Exit.OK, Exit.UNTRUSTED), (Exit.SLOWER, Exit.SLOWER)):
        done = Done("step", LAST, HEAD, code, "", {}, "")
        of = night._Since("main", 9, HEAD, 8)
        report = night._report(Place.__new__(Place), night.Wish(), of, "step", [done], ("before",))
        assert report.exit_code == then
        assert report.runs == (done,)
        assert report.notes[0] == "before"
        assert "another abprof is writing the index" in report.notes[1]


def test_a_first_night_that_is_not_to_be_trusted_is_no_failure() -> None:
    first, step = Job("first", (HEAD,)), Job("step", (LAST, HEAD))
    measured, nothing = runs.run(), runs.changed(runs.run(), observations=())
    assert night._first_is_no_failure(first, measured, Exit.UNTRUSTED) == Exit.OK
    header = runs.changed(measured.header, counts={**measured.header.counts, "tampered": 1})
    assert night._first_is_no_failure(first, runs.changed(measured, header=header), Exit.UNTRUSTED) == Exit.UNTRUSTED
    assert night._first_is_no_failure(first, nothing, Exit.UNTRUSTED) == Exit.UNTRUSTED
    assert night._first_is_no_failure(first, measured, Exit.CANNOT_RUN) == Exit.CANNOT_RUN
    assert night._first_is_no_failure(step, measured, Exit.UNTRUSTED) == Exit.UNTRUSTED


# ---------------------------------------------------------------- the summary


def test_the_summary_says_first_whether_to_act_and_keeps_foreign_text_in_code() -> None:
    evil = "w/`x`|@you\n# <script>"
    changes = tuple(Change(f"{evil}{i}", 7, 9, "confirmed", "step", 5.25, "code") for i in range(30))
    weaker = (f"Weaker guarantee: {evil} has no reference. That is all.", f"Of 3 cells, {evil}.")
    run = Done("step", LAST, HEAD, 1, "1 slower", {"slower": 1}, "/runs/x", weaker)
    text = markdown(Report("step", "main", 9, HEAD, 1, (run,), changes, (Shift(9, 4.0, 12),), ("`note`",)))
    assert text.startswith("## abprof nightly, `main`: slower or broken, please read\n")
    assert "all 12 cells moved together by +4.0 %" in text
    assert "10 more are in history.html" in text
    assert text.index("**`Weaker guarantee: ") < text.index("**`Of 3 cells") < text.index("| confirmed")
    assert "\n# " not in text
    assert all(line.count("`") % 2 == 0 for line in text.splitlines())
    rows = [line for line in text.splitlines() if line.startswith("| confirmed")]
    assert len(rows) == 20
    assert all(line.count("|") == 7 for line in rows)


# ---------------------------------------------------------------- the heartbeat


@pytest.mark.parametrize(
    ("more", "hours", "fine", "said"),
    [
        ({"ended": 1000.0, "exit_code": 1}, 2, True, "exit code 1"),
        ({"ended": 1000.0, "exit_code": 2, "did": "could not: no git"}, 2, False, "exit code 2: could not: no git"),
        ({"ended": 1000.0, "exit_code": 3}, 2, False, "exit code 3"),
        ({"ended": 1000.0}, 40, False, "last ended 40 h ago"),
        ({"last_end": 1000.0}, 20, True, "last ended 20 h ago"),  # at work now, or killed last night
        ({"last_end": 1000.0}, 40, False, "last ended 40 h ago"),
        ({}, 1, True, "never came to an end"),
        ({}, 40, False, "never came to an end"),
        ({"ended": 1000.0}, -30, False, "from now"),
    ],
)
def test_heartbeats(tmp_path: Path, more: dict[str, Any], hours: float, fine: bool, said: str) -> None:
    beat = heartbeat.Heartbeat(series="main", repo=str(tmp_path), runs_dir="", began=1000.0, **more)
    heartbeat.write(tmp_path, beat)
    assert heartbeat.last(tmp_path, str(tmp_path), "main") == beat
    ((ok, text, _),) = heartbeat.examine(tmp_path, 1000.0 + hours * 3600)
    assert ok is fine
    assert said in text


def test_a_repository_that_is_gone_and_a_heartbeat_that_cannot_be_read(tmp_path: Path) -> None:
    heartbeat.write(tmp_path, heartbeat.Heartbeat(series="main", repo=str(tmp_path / "gone"), runs_dir="", began=0.0))
    assert list(heartbeat.examine(tmp_path)) == []
    (tmp_path / heartbeat.FOLDER / "x.json").write_text("{")
    ((ok, text, advice),) = heartbeat.examine(tmp_path)
    assert not ok
    assert "cannot be read" in text
    assert advice
