"""What of --executor ray needs no cluster: its options, and that Ray may be absent. With a cluster: tests/on_ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from abprof.fleet.ray import read_options
from abprof.records.errors import AbprofError
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload


def test_options() -> None:
    assert read_options({}).labels == {}
    read = read_options({"gpu": "H200", "label.zone": "a=b", "cpus": "0.5"})
    assert read.labels == {"ray.io/accelerator-type": "H200", "zone": "a=b"}
    assert read.cpus == 0.5


@pytest.mark.parametrize(
    ("name", "value"), [("gpus", "2"), ("label.", "x"), ("cpus", "many"), ("cpus", "-1"), ("", "x")]
)
def test_an_option_that_there_is_not(name: str, value: str) -> None:
    with pytest.raises(AbprofError, match="unknown option") as caught:
        read_options({name: value})
    assert "gpu=MODEL, label.KEY=VALUE, cpus=N" in caught.value.advice


def test_without_ray_a_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, Scenario(workloads={"w": Workload("k", {"default": {"n": [1]}})}, times=[Time(ns=1e6)]))
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "ray.py").write_text("raise ImportError('No module named ray')\n")
    known = lab.environment()
    path = f"{tmp_path / 'without'}:{known['PYTHONPATH']}"
    monkeypatch.setattr(lab, "environment", lambda: {**known, "PYTHONPATH": path})
    done = lab.finish(lab.start("main", "fast", "--executor", "ray"))
    assert done.code == 2
    assert "--executor ray: Ray is not installed (No module named ray) (pip install 'abprof[ray]')" in done.err
    assert "Traceback" not in done.err
    assert lab.left_behind() == []
