"""What other programs read: `--json=summary`, `report --format bmf|action`, and the summary of a job on GitHub."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from abprof.cli import run_command_line
from abprof.extras.bot import job_summary
from abprof.records import Run
from abprof.report import rendered
from tests.simulated.lab import Lab, Result
from tests.simulated.scenario import Scenario, Time, Workload

from . import large, runs

# https://bencher.dev/bmf.json
METRIC = {"required": ["value"], "additionalProperties": {"type": "number"}}
BMF = {"additionalProperties": {"type": "object", "additionalProperties": METRIC}}
RUNS: dict[str, Callable[[], Run]] = {
    "one": runs.run, "hostile": runs.hostile, "single": runs.single, "three targets": runs.three_targets,
    "20 cells": lambda: large.run(20), "100 cells": lambda: large.run(100, changed=0.5),
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_a_summary_has_a_row_for_each_verdict_and_at_most_4_kb_for_20(kind, tmp_path, capsys):
    folder = runs.write(tmp_path, RUNS[kind]())
    assert run_command_line(["report", str(folder), "--json=summary"]) == 0
    out = capsys.readouterr().out
    shown, run = json.loads(out), json.loads((folder / "run.json").read_text())
    rows = shown["rows"]
    assert (out.count("\n"), len(out.encode()) <= max(4096, 210 * len(rows))) == (1, True)
    assert "rows_left_out" not in shown
    assert (shown["run_dir"], shown["result"]) == (str(folder), run["header"]["sentence"])
    assert shown["exit_code"] == (130 if run["status"] == "interrupted" else run["header"]["exit_code"])
    judged = [one["verdict"] for one in run["comparisons"] if one["from"].startswith("base")]
    assert [one.get("verdict") for one in rows].count("slower") == judged.count("slower")
    assert judged or any("ms" in one for one in rows), "in the place of a verdict"


def test_changed_rows_have_interval_and_cause_and_stand_first(tmp_path):
    load = Workload(kernel="ffa", presets={"default": {"n": [1, 2, 3], "direction": ["bwd"]}})
    times = [Time(ns=20e6), Time(factor=1.2, cell="*n=2*", side="target")]
    lab = Lab(tmp_path, Scenario(workloads={"dense": load}, times=times))
    done = lab.abprof("main", "fast", "--json=summary")
    shown = json.loads(done.out)
    assert (done.code, shown["exit_code"], shown["trusted"], shown["weaker"]) == (1, 1, True, False)
    first, *rest = shown["rows"]
    assert (first["cell"], first["verdict"], first["cause"]) == ("dense/n=2,direction=bwd", "slower", "no cause found")
    assert 19 < first["interval"][0] <= first["pct"] <= first["interval"][1] < 21
    assert [one["verdict"] for one in rest] == ["same", "same"]
    planned = lab.abprof("main", "fast", "--dry-run", "--json=summary")
    assert (planned.code, json.loads(planned.out)["error"]["where"]) == (2, "--json=summary")
    assert lab.command("report", str(done.folder), str(done.folder), "--json=summary").code == 2
    assert "--json: 'brief' is not one of full, summary" in lab.abprof("main", "fast", "--json=brief").err
    assert lab.left_behind() == []


@pytest.mark.parametrize("kind", ["one", "hostile", "single", "three targets"])
def test_services_get_each_right_time_once_with_its_interval(kind):
    run = RUNS[kind]()
    bmf, action = (json.loads(rendered(run, [], format)) for format in ("bmf", "action"))
    jsonschema.validate(bmf, BMF)
    assert [one["name"] for one in action] == list(bmf)
    newest = "base" if kind == "single" else "target"
    timed = [o for o in run.observations if o.arm.split(":")[0].startswith(newest) and o.status == "ok" and o.metrics]
    assert len(bmf) == len(timed) > 4
    for one in action:
        known = bmf[one["name"]]["latency"]  # ns, as Bencher's built-in measure; the other is in ms
        assert (one["unit"], one["value"]) == ("ms", pytest.approx(known["value"] / 1e6))
        half = (known["upper_value"] - known["lower_value"]) / 2e6
        assert float(one["range"].removeprefix("± ")) == pytest.approx(half, rel=1e-3)
    judged = [o for o in run.comparisons if o.pct is not None and o.to.startswith("target") and not o.with_peer]
    assert sum("abprof-change" in one for one in bmf.values()) == len(judged)


@pytest.mark.slow
def test_a_plain_run_adds_itself_to_the_job_summary_and_a_report_does_not(tmp_path):
    lab = Lab(tmp_path, Scenario(workloads={"dense": Workload(kernel="ffa", presets={"default": {"n": [1]}})}))
    page = tmp_path / "summary"
    page.write_text("# The job's own\n\n")

    def run(*words: str, summary: Path = page) -> Result:
        places = ["--device", "simulated", "--repo", str(lab.repo.path), "--runs-dir", str(lab.runs), "--quick"]
        process = lab.start(
            *words, *(places if words[0] != "report" else ()), env={"GITHUB_STEP_SUMMARY": str(summary)}
        )
        return lab.finish(process)

    first = run("main", "fast")
    text = page.read_text()
    assert text.startswith("# The job's own\n\n## abprof: ")
    assert first.run.id in text
    run("report", str(first.folder))
    assert page.read_text() == text
    alone = run("run", "main")
    assert page.read_text().removeprefix(text) == (alone.folder / "report.md").read_text() + "\n\n"
    refused = run("main", "fast", summary=tmp_path)
    assert refused.code == 0
    assert f"warning: no job summary: Is a directory (GITHUB_STEP_SUMMARY {tmp_path})" in refused.err


def test_the_largest_run_fits_into_what_is_left_of_a_job_summary(tmp_path):
    big = large.run(3000, changed=1.0)
    assert 1000 < len(job_summary(big, tmp_path, room=1 << 20)) <= 60_002
    assert b"too long" in job_summary(big, tmp_path, room=1000)
    assert job_summary(big, tmp_path, room=10) == b""
