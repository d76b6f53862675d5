"""Which timer reads a short call under `--timer auto`: chosen once a cell, kept by what goes on with it (abprof/measure/timers.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from abprof.measure import turns
from abprof.records import Block
from abprof.store import runfolder
from tests.fleet.test_pool import TWO
from tests.simulated.lab import Result
from tests.simulated.planted import LONG, NewLab, broken, load, new_lab, planted, times
from tests.simulated.scenario import Scenario, Time

__all__ = ["new_lab"]

SHORT, CLOSER = 1e4, 8e3  # ns of a short call, by events and by CUPTI
# By events the short call is 15 % slower on the target; by CUPTI's records, which have no launch in them, as fast.
MIXED = Scenario(
    workloads={"w": load(["short", "long"], judge="gpu", phases=[("forward", "range", "", 0.5)])},
    times=times(
        Time(ns=SHORT, cell="*case=short"),
        planted("short", 1.15),
        Time(factor=1 / 1.15, cell="*case=short", side="target", timer="cupti"),
        Time(factor=CLOSER / SHORT, cell="*case=short", timer="cupti"),
        planted("long", 1.15),
    ),
    packages={"cupti-python": "13.0.1"},
)
EVENTS = turns.TIMER["simulated"]


def blocks(result: Result) -> list[Block]:
    assert result.folder is not None
    return runfolder.read(result.folder)[1]


def read_by(result: Result) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in blocks(result):
        if one.judged and one.rounds:
            found.setdefault(one.cell, set()).add(one.timer)
    return found


def test_calls_under_20_us_are_read_by_cupti_and_others_by_events(new_lab: NewLab) -> None:
    result = new_lab(MIXED).abprof("main", "fast")
    assert result.table() == {"w/case=short": "same", "w/case=long": "slower"}
    assert read_by(result) == {"w/case=short": {"cupti"}, "w/case=long": {EVENTS}}
    assert {row.metric for row in result.run.comparisons} == {"gpu_span"}
    seen = next(o for o in result.run.observations if (o.cell, o.arm) == ("w/case=short", "base"))
    assert seen.metrics["gpu_span"].value == pytest.approx(CLOSER)
    assert seen.metrics["gpu_span"].protocol == "cupti, 1 call a turn"
    assert not result.run.notes


def test_the_profiled_pass_comes_after_all_epochs(new_lab: NewLab) -> None:
    """After torch's profiler has run in a process, CUPTI's records are wrong there."""
    result = new_lab(MIXED).abprof("main", "fast")
    of = blocks(result)
    profiled = [one for one in of if one.outcomes["target"].census is not None]
    assert sorted(one.cell for one in profiled) == ["w/case=long", "w/case=short"]
    assert of[-2:] == profiled
    assert not any(one.rounds for one in profiled)
    for seen in result.run.observations:
        if seen.arm in ("base", "target"):
            assert seen.census is not None, seen
            assert seen.phases == {"forward": pytest.approx(seen.phases["total"] / 2), **seen.phases}, seen


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"packages": {"torch": "2.13.0"}}, "cupti-python is not installed for base"),
        (
            {"faults": [broken("unrecorded", "*", side="target", verb="records", text="CUPTI does not start: held")]},
            "target: CUPTI does not start: held",
        ),
    ],
)
def test_where_one_side_has_no_cupti_events_read_and_one_note_says_why(
    new_lab: NewLab, more: dict[str, object], why: str
) -> None:
    result = new_lab(replace(MIXED, **more)).abprof("main", "fast")  # type: ignore[arg-type]
    assert result.table() == {"w/case=short": "slower", "w/case=long": "slower"}
    assert read_by(result) == {"w/case=short": {EVENTS}, "w/case=long": {EVENTS}}
    said = [note for note in result.run.notes if "CUPTI" in note]
    install = ": pip install 'abprof[cupti]'" if "cupti-python" in why else ""
    assert said == [f"events read calls under 20 us ({why}); CUPTI's records read them closer{install}"]
    assert not [one for one in result.run.warnings if "CUPTI" in one.text]
    assert {bool(one.unrecorded) for one in blocks(result) if one.cell == "w/case=long"} == {False}


@pytest.mark.parametrize("first", ["cupti", EVENTS])
def test_a_rerun_goes_on_with_the_timer_that_the_cell_had(new_lab: NewLab, first: str) -> None:
    """Whatever an opening would say now: of two timers no interval can be made."""
    lab = new_lab(MIXED if first == "cupti" else replace(MIXED, packages={}))
    before = lab.abprof("main", "fast")
    earlier = blocks(before)
    assert read_by(before)["w/case=short"] == {first}
    long_now = Time(ns=LONG, timer="")  # what an opening reads
    lab.set(replace(MIXED, times=[*MIXED.times, long_now]) if first == "cupti" else MIXED)
    assert before.folder is not None
    after = lab.command("rerun", str(before.folder), "--only", "*case=short", "--repo", str(lab.repo.path))
    more = blocks(after)[len(earlier) :]
    assert {one.timer for one in more if one.rounds and one.judged} == {first}, after.err
    assert after.table() == before.table()


@pytest.mark.slow
def test_shards_go_on_with_the_timer_that_the_cell_had(new_lab: NewLab) -> None:
    lab = new_lab(MIXED)
    before = lab.abprof("main", "fast", *TWO)
    earlier = blocks(before)
    assert read_by(before) == {"w/case=short": {"cupti"}, "w/case=long": {EVENTS}}
    lab.set(replace(MIXED, times=[*MIXED.times, Time(ns=LONG, timer="")]))
    assert before.folder is not None
    after = lab.command("rerun", str(before.folder), "--only", "*case=short", "--repo", str(lab.repo.path))
    more = blocks(after)[len(earlier) :]
    assert {one.timer for one in more if one.rounds and one.judged} == {"cupti"}, after.err
    assert all(one.shard > max(old.shard for old in earlier) for one in more)


def test_what_cupti_read_is_not_gone_on_with_where_it_is_not_installed_any_more(new_lab: NewLab) -> None:
    lab = new_lab(MIXED)
    before = lab.abprof("main", "fast")
    lab.set(replace(MIXED, packages={"torch": "2.13.0"}))
    assert before.folder is not None
    again = ("rerun", str(before.folder), "--repo", str(lab.repo.path), "--only")
    refused = lab.command(*again, "*case=short")
    assert refused.code == 2
    assert "w/case=short, which CUPTI's records read so far: cupti-python is not installed for base" in refused.err
    assert lab.command(*again, "*case=long").code == before.code, "which events read"


def test_a_worker_that_dies_of_the_question_costs_no_verdict(new_lab: NewLab) -> None:
    faults = [broken("kill", "short", side="target", verb="records")]
    result = new_lab(replace(MIXED, faults=faults)).abprof("main", "fast")
    assert result.table() == {"w/case=short": "slower", "w/case=long": "slower"}
    assert read_by(result)["w/case=short"] == {EVENTS}
    assert [note for note in result.run.notes if note.startswith("events read calls under 20 us (target: ")]
    assert {one.outcomes["target"].status for one in blocks(result)} == {"ok"}


@pytest.mark.parametrize(
    ("do", "status"), [("never_launched", "wrong"), ("crash", "ok")], ids=["launches nothing", "died once"]
)
def test_what_the_profiled_pass_finds_counts_as_if_it_had_come_before_the_turns(
    new_lab: NewLab, do: str, status: str
) -> None:
    faults = [broken(do, "short", side="target", verb="phases")]
    result = new_lab(replace(MIXED, faults=faults)).abprof("main", "fast")
    assert result.status("w/case=short", "target")[0] == status, result.err
    assert result.status("w/case=short", "base")[0] == "ok"
    assert result.verdict("w/case=long") == "slower"
