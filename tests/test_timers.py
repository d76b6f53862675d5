"""Which timer reads a short call under `--timer auto`: chosen once a cell, kept by what goes on with it (abprof/measure/timers.py)."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from abprof.extras import doctor
from abprof.measure import turns
from abprof.measure.timers import KEPT, Timers, never
from abprof.records import Block, Toolchain
from abprof.records import messages as wire
from abprof.store import runfolder
from abprof.system.processes import Worker
from abprof.verdict import aggregate
from tests.blocks import block, cells, head
from tests.fleet.test_pool import TWO
from tests.simulated.client import WORKER
from tests.simulated.lab import Result
from tests.simulated.planted import LONG, NewLab, broken, load, new_lab, planted, times
from tests.simulated.scenario import Fault, Scenario, Time

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


def test_the_profiled_pass_comes_when_nothing_more_is_read_by_cupti(new_lab: NewLab) -> None:
    """In the epoch that profiles CUPTI's cell is the first to have its turns, in whatever order the cells stood."""
    many = {"w": replace(MIXED.workloads["w"], presets={"default": {"case": ["long", "short", "other", "more"]}})}
    result = new_lab(replace(MIXED, workloads=many)).abprof("main", "fast")
    second = [one for one in blocks(result) if one.epoch == 2 and not one.beside]
    told = [(one.cell, bool(one.rounds), one.outcomes["target"].census is not None) for one in second]
    assert (told[0], told[-1]) == (("w/case=short", True, False), ("w/case=short", False, True))
    assert {(turned, profiled) for _, turned, profiled in told[1:-1]} == {(True, True)}
    assert len(told) == 5
    assert told[-1] not in told[:-1]
    for seen in result.run.observations:
        if seen.arm in ("base", "target"):
            assert seen.census is not None, seen
            assert seen.phases == {"forward": pytest.approx(seen.phases["total"] / 2), **seen.phases}, seen
            assert seen.status == "ok"


def test_a_quick_run_profiles_after_all_turns_that_cupti_may_read(new_lab: NewLab) -> None:
    result = new_lab(MIXED).abprof("main", "fast", "--quick")
    assert read_by(result) == {"w/case=short": {"cupti"}, "w/case=long": {EVENTS}}
    turned = [bool(one.rounds) for one in blocks(result)]
    assert turned == [True, True, False, False]
    assert {(one.cell, one.timer) for one in blocks(result)} == {("w/case=short", "cupti"), ("w/case=long", EVENTS)}
    assert all(o.census is not None for o in result.run.observations)


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


def test_events_that_are_asked_for_read_short_calls_too(new_lab: NewLab) -> None:
    result = new_lab(MIXED).abprof("main", "fast", "--timer", "events")
    assert read_by(result) == {"w/case=short": {EVENTS}, "w/case=long": {EVENTS}}
    assert not [note for note in result.run.notes if "CUPTI" in note]


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
def test_a_run_that_was_killed_goes_on_with_the_timers_that_it_had(new_lab: NewLab) -> None:
    faults = [broken("kill_parent", "long", side="target", verb="turn", epoch=3, once=True)]
    lab = new_lab(replace(MIXED, faults=faults))
    killed = lab.abprof("main", "fast")
    assert killed.run.status == "running"
    earlier = blocks(killed)
    assert read_by(killed)["w/case=short"] == {"cupti"}
    lab.set(replace(MIXED, times=[*MIXED.times, Time(ns=LONG, timer="")]))  # what an opening reads
    assert killed.folder is not None
    result = lab.command("run", "--resume", str(killed.folder), "--repo", str(lab.repo.path))
    assert result.run.status == "complete", result.err
    assert len(blocks(result)) > len(earlier)
    assert read_by(result) == {"w/case=short": {"cupti"}, "w/case=long": {EVENTS}}
    assert result.table() == {"w/case=short": "same", "w/case=long": "slower"}


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


def test_of_whom_two_workers_died_is_not_asked_for_every_cell(new_lab: NewLab) -> None:
    """A driver in which CUPTI ends the process ends it each time."""
    many = {"w": replace(MIXED.workloads["w"], presets={"default": {"case": ["a", "b", "c", "d"]}})}
    faults = [broken("kill", "*", side="target", verb="records")]
    all_short = [*MIXED.times, Time(ns=SHORT, timer="")]  # what an opening reads
    result = new_lab(replace(MIXED, workloads=many, faults=faults, times=all_short)).abprof("main", "fast")
    why = {one.cell: one.unrecorded for one in blocks(result) if one.judged and one.rounds}
    assert sorted(text.startswith("target: ") for text in why.values()) == [False, False, True, True]
    assert {text for text in why.values() if not text.startswith("target: ")} == {"2 workers died of the question"}
    assert {outcome.status for one in blocks(result) for outcome in one.outcomes.values()} == {"ok"}


def test_what_its_workload_judges_by_the_wall_clock_is_profiled_after_cuptis_turns(new_lab: NewLab) -> None:
    """Two workloads of one package, in one process."""
    both = {**MIXED.workloads, "v": load(["a", "b", "c"], judge="wall")}
    result = new_lab(replace(MIXED, workloads=both)).abprof("main", "fast", "--quick")
    turned = [one.cell for one in blocks(result) if one.rounds]
    assert set(turned[:2]) == {"w/case=short", "w/case=long"}
    assert [one.cell.startswith("v/") for one in blocks(result)] == [False, False, True, True, True, False, False]


@pytest.mark.parametrize(
    ("do", "status"), [("never_launched", "wrong"), ("crash", "ok")], ids=["launches nothing", "died once"]
)
def test_what_the_late_pass_finds_counts_as_if_it_had_come_before_the_turns(
    new_lab: NewLab, do: str, status: str
) -> None:
    faults = [broken(do, "short", side="target", verb="phases")]
    result = new_lab(replace(MIXED, faults=faults)).abprof("main", "fast")
    assert result.status("w/case=short", "target")[0] == status, result.err
    assert result.status("w/case=short", "base")[0] == "ok"
    assert result.verdict("w/case=long") == "slower"


def test_rounds_of_two_timers_are_never_put_together() -> None:
    ratios = {"base": 1.0, "target": 1.1}
    of_two = [block(epoch, ratios, timer=timer) for epoch, timer in ((1, "cupti"), (2, "cuda_event"))]
    with pytest.raises(ValueError, match="mix timers cuda_event and cupti"):
        aggregate(head(), of_two)


def test_processes_that_are_kept_are_not_read_by_cupti() -> None:
    """Those of base under --watch: torch's profiler ran in them."""
    installed = head(toolchains={"base": Toolchain(versions={}, packages={"cupti_python": "13.0.1"})})
    assert never(installed, kept=False) == "" == never(head(), kept=False)
    assert never(installed, kept=True) == KEPT


@pytest.mark.parametrize(
    ("packages", "state", "text"),
    [
        ({"cupti-python": "13.0.1"}, "ok", "its records read calls under 20 us"),
        ({}, "missing", "cupti-python cannot be imported"),
    ],
)
def test_doctor_says_whether_cupti_reads_a_workers_short_calls(
    tmp_path: Path, packages: dict[str, str], state: str, text: str
) -> None:
    scenario = replace(MIXED, packages=packages).write(tmp_path / "scenario.json")
    env = {"PATH": os.environ["PATH"], "ABPROF_SIMULATED": str(scenario)}
    worker = Worker([sys.executable, "-P", str(WORKER)], env=env, cwd=tmp_path, log=tmp_path / "log", name="base")
    try:
        worker.call(wire.Start("simulated", "base"), 60)
        found = doctor.recordable(worker, "CUPTI on cuda")
    finally:
        worker.kill()
    assert (found.name, found.state, found.text) == ("CUPTI on cuda", state, text)
    assert ("pip install 'abprof[cupti]'" in found.advice) == (state == "missing")


def test_what_is_told_is_not_asked_again() -> None:
    cell, other = cells(2)
    asked: list[str] = []
    timers = Timers({cell.id: "cuda_event"})
    assert timers.choose(cell, [1e4, 1e4], lambda: asked.append("cell") or "", "cuda_event") == ("cuda_event", "")
    assert [timers.late(one) for one in (cell, other)] == [False, True]
    for _ in range(2):
        found = timers.choose(other, [1e4, 3e4], lambda: asked.append("other") or "", "cuda_event")
        assert found == ("cupti", "")
    assert asked == ["other"], "once"
    assert timers.late(other)
    held = Timers(never="it is held")
    assert [held.late(cell), held.choose(cell, [1e4], lambda: "", "cuda_event")] == [
        False,
        ("cuda_event", "it is held"),
    ]
    assert held.choose(other, [3e4], lambda: "", "cuda_event") == ("cuda_event", ""), "events are right for it"


def test_short_calls_that_do_not_fit_into_memory_together_are_read_by_cupti_too(new_lab: NewLab) -> None:
    crowded = Fault("oom", "open", side="target", cell="*case=short", epoch=1, times=1, text="out of memory")
    result = new_lab(replace(MIXED, faults=[crowded])).abprof("main", "fast")
    assert read_by(result)["w/case=short"] == {"cupti"}
    assert result.verdict("w/case=short") == "same"
    assert {one.alone for one in blocks(result) if one.cell == "w/case=short" and one.rounds and one.judged} == {True}
    seen = next(o for o in result.run.observations if (o.cell, o.arm) == ("w/case=short", "target"))
    assert seen.census is not None
