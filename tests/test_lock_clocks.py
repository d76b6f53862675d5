"""--lock-clocks: the clock is held during a run, and the former clocks come back however the run ends. NVML is a file."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload

FORMER = {"2": 2619, "0": 1980}
NVML = """
import json, os
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return "GPU-aaaa"
def nvmlSystemGetDriverVersion(): return "575.57"
def nvmlDeviceGetSupportedGraphicsClocks(handle, memory): return [1980, 1590, 1200]
def nvmlDeviceGetApplicationsClock(handle, kind): return json.load(open(os.environ["NVML_FILE"]))[str(kind)]
def nvmlDeviceSetApplicationsClocks(handle, memory, mhz):
    if os.environ.get("NVML_REFUSES"): raise NVMLError("Insufficient Permissions")
    with open(os.environ["NVML_FILE"] + f".{os.getpid()}", "w") as file: json.dump({"2": memory, "0": mhz}, file)
    os.replace(file.name, os.environ["NVML_FILE"])
    with open(os.environ["NVML_FILE"] + ".log", "a") as file: file.write(f"{mhz} ")
"""
HOLD = """
import sys, time
from abprof import devices
with devices.choose(["GPU-aaaa"]).locked(1590):
    print("locked", flush=True)
    time.sleep(60)
"""


def environment(folder: Path) -> dict[str, str]:
    (folder / "pynvml.py").write_text(NVML)
    (folder / "clocks.json").write_text(json.dumps(FORMER))
    paths = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": paths, "NVML_FILE": str(folder / "clocks.json")}


def comes_back(folder: Path) -> bool:
    for _ in range(500):
        if json.loads((folder / "clocks.json").read_text()) == FORMER:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("runs", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_the_clocks_come_back_after_kill_9(tmp_path: Path, runs: int) -> None:
    chance, held = random.Random(1), 0
    for number in range(runs):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = subprocess.Popen([sys.executable, "-c", HOLD], env=environment(folder), stdout=subprocess.PIPE, text=True)
        with run:
            if number % 3:  # else it is killed at any moment
                assert run.stdout.readline() == "locked\n"
                assert json.loads((folder / "clocks.json").read_text())["0"] == 1590
            time.sleep(chance.uniform(0, 0.3))
            run.send_signal(signal.SIGKILL)
        held += (folder / "clocks.json.log").exists()
        assert comes_back(folder), number
    assert held >= runs * 2 // 3


def test_a_run_holds_the_clock_and_gives_it_back(tmp_path: Path) -> None:
    load = Workload(kernel="k", presets={"default": {"case": ["a"]}})
    lab = Lab(tmp_path / "lab", Scenario(workloads={"w": load}, times=[Time(ns=2e7)]))
    own, ours = lab.environment(), environment(tmp_path)
    env = {**own, "NVML_FILE": ours["NVML_FILE"], "PYTHONPATH": f"{ours['PYTHONPATH']}:{own['PYTHONPATH']}"}

    def run(mhz: str, device: str = "cuda", **more: str) -> tuple[int, str]:
        argv = (
            "run",
            "main",
            "fast",
            "--repo",
            str(lab.repo.path),
            "--device",
            device,
            "--lock-clocks",
            mhz,
            "--quick",
        )
        argv = (sys.executable, "-m", "abprof", *argv)
        done = subprocess.run(argv, check=False, env=env | more, capture_output=True, text=True)
        return done.returncode, done.stderr

    code, err = run("1590")
    (folder,) = (lab.repo.path / "runs").glob("2*")
    assert json.loads((folder / "run.json").read_text())["machine"]["facts"]["locked_clock_mhz"] == "1590", err
    assert (tmp_path / "clocks.json.log").read_text() == "1590 1980 "
    none = "abprof: --lock-clocks 1600: GPU-aaaa has no clock of 1600 MHz (the nearest is 1590)\n"
    assert run("1600") == (2, none)
    code, err = run("1590", NVML_REFUSES="1")
    assert err.startswith(
        "abprof: --lock-clocks 1590: the clocks of GPU-aaaa cannot be set: Insufficient Permissions (ask"
    )
    on_cpu = "abprof: --lock-clocks 1590: the clocks of cpu cannot be set (leave the option out)\n"
    assert (code, run("1590", "cpu")) == (2, (2, on_cpu))
    assert json.loads((tmp_path / "clocks.json").read_text()) == FORMER
