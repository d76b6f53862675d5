"""The device's ceilings from a run's first worker to its pages: measured once, kept, and never in the way of the run."""

import json
from pathlib import Path

import pytest

from tests.simulated.lab import Lab, loose
from tests.simulated.scenario import Fault, Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"n": [1]}}, flops=1e12, bytes=4e9)
PLAIN = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)], ceilings=[200.0, 1000.0], packages={"einops": "0.8.1"})


def measured(lab: Lab, *args: str) -> dict:
    result = lab.abprof("main", "fast", "--quick", *args)
    assert result.code in (0, 4), result
    return json.loads((result.folder / "run.json").read_text())


@pytest.mark.slow
def test_a_run_measures_them_once_and_shows_each_cells_share(tmp_path: Path) -> None:
    lab = Lab(tmp_path, PLAIN)
    run = measured(lab)
    assert run["ceilings"] == {
        "tflops": 200.0, "tflops_by": "simulated products", "gbps": 1000.0, "gbps_by": "simulated copies",
        "why_not": "",
    }  # fmt: skip
    assert run["toolchains"]["target"]["packages"] == {"einops": "0.8.1"}
    folder = lab.newest()
    page, text = ((folder / f"report.{ending}").read_text() for ending in ("html", "md"))
    assert "<th>TFLOP/s of 200.0<td colspan=2>50.00, 25 %" in page
    assert "<th>GB/s of 1000<td colspan=2>200.0, 20 %" in page
    for shown in (page, text):
        assert "200.0: simulated products" in shown
    lab.set(runs_without(PLAIN))
    again = lab.command("rerun", str(folder), "--repo", str(lab.repo.path), "--budget", "1s", "--json")
    assert loose(again)["ceilings"]["tflops"] == 200.0, "a run's own are kept"
    planned = loose(
        lab.command("main", "fast", "--dry-run", "--json", "--repo", str(lab.repo.path), "--device", "simulated")
    )
    assert planned["ceilings"] is None, "nothing is measured in a dry run"


def runs_without(scenario: Scenario) -> Scenario:
    return Scenario(workloads=scenario.workloads, times=scenario.times)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault("crash_status", "reach", text="CUDA error: out of luck"), "CUDA error: out of luck"),
        (Fault("exit:5", "reach"), "ended with exit code 5"),
        (None, "not simulated"),
    ],
)
def test_what_goes_wrong_there_is_a_reason_and_the_run_goes_on(tmp_path: Path, fault: Fault | None, why: str) -> None:
    lab = Lab(tmp_path, Scenario(workloads=PLAIN.workloads, times=PLAIN.times, faults=[fault] if fault else []))
    run = measured(lab)
    assert run["ceilings"]["tflops"] is None
    assert why in run["ceilings"]["why_not"]
    assert run["comparisons"]
    folder = lab.newest()
    page = (folder / "report.html").read_text()
    assert "<th>TFLOP/s<td colspan=2>50.00<" in page
    assert why in page
