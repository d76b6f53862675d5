"""Which devices a run is spread over: all GPUs of the host, those that are named, or one, with a line that says why."""

import dataclasses
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from abprof import devices
from abprof.builds import environment
from abprof.devices import lease
from abprof.measure import run_context as place
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.system.console import View
from tests.fleet.test_pool import TWO, scenario
from tests.nvml import Nvml
from tests.simulated.lab import Lab
from tests.test_lease import hold


def leases(*asked: str, most: int | None = None) -> list[str]:
    return [device.lease for device in devices.several(asked, most)[0]]


def test_all_gpus_of_the_host(nvml: Nvml) -> None:
    assert leases() == ["GPU-aaaa", "GPU-abbb", "GPU-cccc"]
    assert leases(most=2) == ["GPU-aaaa", "GPU-abbb"]
    nvml.uuids = []
    assert leases() == ["cpu"]


@pytest.mark.usefixtures("nvml")
def test_as_many_as_cuda_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert leases() == ["GPU-cccc", "GPU-aaaa"]


@pytest.mark.usefixtures("nvml")
def test_those_that_are_named_each_once_and_pinned_by_uuid() -> None:
    found, _ = devices.several(("cuda:2", "GPU-aaaa", "cuda:0"))
    assert [device.lease for device in found] == ["GPU-cccc", "GPU-aaaa"]
    assert [environment.shared({}, device.worker)["CUDA_VISIBLE_DEVICES"] for device in found] == [
        "GPU-cccc",
        "GPU-aaaa",
    ]


def test_one_that_cannot_be_measured_on_is_left_out_unless_it_is_named(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeMode", lambda handle: 3 * (handle == 1))
    found, notes = devices.several((), None)
    assert [device.lease for device in found] == ["GPU-aaaa", "GPU-cccc"]
    assert [note.partition(": ")[0] for note in notes] == ["GPU-abbb is left out"]
    assert "compute mode" in notes[0]
    with pytest.raises(AbprofError, match="GPU-abbb: the GPU's compute mode does not"):
        devices.several(("cuda:0", "cuda:1"))


def test_a_gpu_that_somebody_uses_is_left_out_unless_it_is_named(
    nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "scrub_secrets", list)  # this process is pytest's
    process = SimpleNamespace(pid=1)
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: [process] * (handle == 1))
    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", lambda _handle: SimpleNamespace(gpu=80))
    here = place.RunContext(
        Options(specs=("a",), devices=None),
        SimpleNamespace(environment=SimpleNamespace(allow=())),  # type: ignore[arg-type]
        SimpleNamespace(path=tmp_path),  # type: ignore[arg-type]
        {},
        devices.several((), None)[0],
        (), (), (), tmp_path, tmp_path, tmp_path, "id",
    )  # fmt: skip
    said, lines = View(quiet=True), list[str]()
    monkeypatch.setattr(said, "say", lambda line, _style="": lines.append(line))
    with here.alone(said, wait=False) as fit:
        assert [device.lease for device in fit.devices] == ["GPU-aaaa", "GPU-cccc"]
        held = lease(tmp_path, "GPU-cccc", wait=False, label="", say=str)
        with pytest.raises(AbprofError, match="GPU-cccc is in use by"), held:
            pass
        with lease(tmp_path, "GPU-abbb", wait=False, label="", say=str):
            pass  # what is left out is not held
    child = hold(tmp_path, "GPU-aaaa")
    try:
        with here.alone(said, wait=True) as fit:
            assert [device.lease for device in fit.devices] == ["GPU-cccc"], "another abprof's is not waited for"
    finally:
        child.communicate("\n")
    assert "GPU-aaaa is left out: GPU-aaaa is in use by abprof main fast in /repo (process" in "\n".join(lines)
    assert [line for line in lines if line.startswith("GPU-abbb is left out: another process is using the GPU")]
    child, warned = hold(tmp_path, "GPU-cccc"), list[str]()
    monkeypatch.setattr(
        said, "warn", lambda line: warned.append(line) or (len(warned) == 1 and child.communicate("\n"))
    )
    alone = dataclasses.replace(here, devices=tuple(one for one in here.devices if one.lease == "GPU-cccc"))
    with alone.alone(said, wait=True):
        assert warned[0].startswith("waiting for GPU-cccc, in use by "), "printed with --quiet, too"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"), scenario())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("main", "fast", "--probe", "torch", *TWO), "--probe torch looks at one device"),
        (("main", "fast", "--devices", "1", *TWO), "--device was given 2 times, and this measures on one device"),
        (("main", "fast", "--devices", "0"), "--devices: '0' is neither a number of devices nor all"),
        (("main", "fast", "--devices", "few"), "--devices: 'few' is neither a number of devices nor all"),
        (("main", ".", "--watch", *TWO), "--device was given 2 times, and this measures on one device"),
        (("main", ".", "--watch", "--devices", "2"), "has no effect with --watch"),
        (("bisect", "main", "fast", *TWO), "--device was given 2 times, and this measures on one device"),
        (("nightly", "--branch", "main", *TWO), "--device was given 2 times, and this measures on one device"),
    ],
)
def test_what_cannot_be_spread_is_one_line(lab: Lab, words: tuple[str, ...], says: str) -> None:
    done = lab.abprof(*words)
    assert done.code == 2, done
    assert says in done.err.splitlines()[-1]


def test_another_abprofs_lease_holds_for_every_device(lab: Lab) -> None:
    child: subprocess.Popen[str] = hold(lab.state, "simulated:1")
    try:
        done = lab.abprof("main", "fast", "--no-wait", *TWO)
    finally:
        child.communicate("\n")
    assert done.code == 2
    assert "simulated:1 is in use by abprof main fast in /repo" in done.err
    assert not list(lab.runs.glob("*")), "nothing is left of a run that was refused"
