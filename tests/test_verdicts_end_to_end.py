"""Whole runs on simulated workers with planted differences and failures: each verdict, exactly, from the command to run.json."""

import re

import msgspec
import pytest

from abprof.store import read
from abprof.verdict import judge
from tests.simulated.planted import (
    EXPECTED,
    FASTER,
    SLIGHT,
    SLOWER,
    SPEEDS,
    NewLab,
    broken,
    load,
    times,
)
from tests.simulated.scenario import Fault, Noise, Scenario, Time


def test_planted_speeds_without_noise_are_exact(new_lab: NewLab) -> None:
    result = new_lab(SPEEDS).abprof()
    assert result.table() == EXPECTED
    for case, factor in {"slower": SLOWER, "faster": FASTER, "same": 1.0, "slight": SLIGHT, "less": 1 / SLIGHT}.items():
        row = result.row(f"w/case={case}")
        for number in (row.pct, row.low_pct, row.high_pct):
            assert number == pytest.approx((factor - 1) * 100, abs=1e-9)
        assert row.epochs == (24 if row.verdict == "same" else 4)
    assert result.code == 1
    header = result.run.header
    assert header.exit_code == 1
    assert header.trusted
    assert {key: header.counts[key] for key in ("slower", "faster", "slight", "same", "broken", "unclear")} == {
        "slower": 1, "faster": 1, "slight": 2, "same": 1, "broken": 0, "unclear": 0,
    }  # fmt: skip


@pytest.mark.slow
def test_identical_code_is_not_measured_again(new_lab: NewLab) -> None:
    """Package `twin` is the same on both branches: `same (identical code)`, but for a handful kept as controls."""
    values = [f"c{i}" for i in range(12)]
    lab = new_lab(Scenario(workloads={"w": load(["a"]), "v": load(values, kernel="twin")}, times=times()))
    lab.repo.checkout("fast")
    lab.repo.commit("Leave the twin alone", {"kernels/twin/__init__.py": "WHO = 'main'\n"})
    lab.repo.checkout("main")
    result = lab.abprof()
    rows = [row for row in result.run.comparisons if row.cell.startswith("v/")]
    assert len(rows) == 12
    assert {row.verdict for row in rows} == {"same"}
    assert all("identical_code" in row.reasons for row in rows)
    assert sum(row.epochs > 0 for row in rows) == 3
    assert not result.row("w/case=a").reasons
    assert result.code == 0
    everything = lab.abprof("main", "fast", "--all")
    assert all(row.epochs == (4 if row.reasons else 24) for row in everything.run.comparisons)
    assert everything.row("v/case=c0").reasons == ("identical_code",)


@pytest.mark.slow
def test_an_identical_control_that_differs_makes_the_run_untrusted(new_lab: NewLab) -> None:
    lab = new_lab(
        Scenario(workloads={"v": load(["a", "b"], kernel="twin")}, times=times(Time(factor=1.1, side="target")))
    )
    lab.repo.checkout("fast")
    lab.repo.commit("Leave the twin alone", {"kernels/twin/__init__.py": "WHO = 'main'\n", "README.md": "Another\n"})
    lab.repo.checkout("main")
    result = lab.abprof()
    assert set(result.table().values()) == {"same"}, "known from the code, whatever the clock says"
    assert result.code == 4
    assert not result.run.header.trusted


FAILURES = {
    "wrong": ("wrong", "check"), "unsupported": ("unsupported", "open"), "oom": ("oom", "open"),
    "missing": ("missing", "open"), "crash": ("crash_status", "open"),
}  # fmt: skip


def test_outputs_that_timed_calls_spoil_are_wrong(new_lab: NewLab) -> None:
    """The check before the turns passes, the check after them does not."""
    fault = broken("wrong", "late", "target", "check", text="stale", after=2)
    result = new_lab(Scenario(workloads={"w": load(["late", "fine"])}, times=times(), faults=[fault])).abprof(
        "main", "fast", "--epochs", "4"
    )
    assert result.table() == {"w/case=late": "broken", "w/case=fine": "same"}
    (late,) = (seen for seen in result.run.observations if seen.status == "wrong")
    assert re.fullmatch(r"after \d+ timed calls: stale", late.reason)
    assert result.code == 1


def test_outcomes(new_lab: NewLab) -> None:
    """Each outcome once on the target, once on the base, once on both, and one cell that is fine, all in one run."""
    faults = [
        broken(do, f"{status}-{where}", side, verb, text="as planted")
        for status, (do, verb) in FAILURES.items()
        for where, side in (("target", "target"), ("base", "base"), ("both", "*"))
    ]
    cases = [f"{status}-{where}" for status in FAILURES for where in ("target", "base", "both")]
    result = new_lab(Scenario(workloads={"w": load([*cases, "fine"])}, times=times(), faults=faults)).abprof(
        "main", "fast", "--epochs", "4"
    )
    table = result.table()
    assert table.pop("w/case=fine") == "same"
    for status in FAILURES:
        apart = status in {"unsupported", "missing"}  # on both sides: not the target's fault
        verdicts = [table[f"w/case={status}-{where}"] for where in ("target", "base", "both")]
        assert verdicts == ["broken", "unclear", "unclear" if apart else "broken"], status
        assert result.row(f"w/case={status}-base").reasons[0] == f"base_{status}"
        assert result.row(f"w/case={status}-both").reasons[0] == (status if apart else "both")
        assert result.status(f"w/case={status}-target", "target") == (status, "as planted")
        assert result.status(f"w/case={status}-target", "base")[0] == "ok"
        assert result.status(f"w/case={status}-base", "base") == (status, "as planted")
    assert result.code == 1
    assert not any(item.metrics for item in result.run.observations if item.status != "ok")


def test_what_an_undecided_cell_still_needs_counts_the_starts_of_workers_once(new_lab: NewLab) -> None:
    scattered, start = Noise(epoch=0.004), 0.4
    scenario = Scenario(
        workloads={"w": load(["a", "b"])}, times=times(), noise=[scattered], faults=[Fault(f"slow:{start}", "start")]
    )
    result = new_lab(scenario).abprof("main", "fast", "--epochs", "4", "--threshold", "1.5", "--margin", "0.5")
    rows = [result.row(f"w/case={name}") for name in "ab"]
    more = [(row.needed_epochs or 0) - 4 for row in rows]
    assert min(more) > 0, rows
    for row, number in zip(rows, more, strict=True):
        assert row.needed_seconds is not None
        assert row.needed_seconds >= number * start
    assert result.folder
    head, blocks, _ = read(result.folder)
    by_budget = msgspec.structs.replace(head, options=msgspec.structs.replace(head.options, epochs=None))
    (advice,) = (one.advice for one in judge(by_budget, blocks).warnings if one.kind == "undecided")
    assert "`abprof rerun RUN --only unclear`: 2 of them" in advice
    stated = float(re.search(r"about (\d+) s", advice)[1])  # type: ignore[index]
    alone = sum(row.needed_seconds or 0.0 for row in rows)
    assert max(more) * start - 0.5 <= stated <= alone - min(more) * start + 0.5, "the cells share each epoch's start"


def test_variants(new_lab: NewLab) -> None:
    """Each variant is an arm on each side; one that only one side has is missing on the other."""
    scenario = Scenario(
        workloads={"w": load(["a"], variants=["old", "both", "new"])},
        times=times(Time(factor=SLOWER, side="target", arm="both")),
        variants={"base": ["old", "both"], "target": ["both", "new"]},
    )
    result = new_lab(scenario).abprof()
    assert result.verdict("w/case=a", "target:both") == "slower"
    assert result.verdict("w/case=a", "target:old") == "broken"
    assert result.verdict("w/case=a", "target:new") == "unclear"
    assert result.row("w/case=a", "target:new").reasons[0] == "base_missing"
    assert result.status("w/case=a", "target:old")[0] == "missing"
    assert {name: result.run.header.counts[name] for name in ("comparisons", "slower")} == {
        "comparisons": 3,
        "slower": 1,
    }
    assert result.code == 1
