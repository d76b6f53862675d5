"""Devices seen from the parent: the choice of a device, errors, and rejected rounds. NVML is simulated."""

import gc
import os
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abprof import devices
from abprof.devices import cuda
from abprof.devices.cuda import CudaDevice
from abprof.devices.device import CpuDevice
from abprof.records import MachineState
from abprof.records.errors import AbprofError
from tests.nvml import UUIDS, Nvml


@pytest.fixture
def stranger() -> Iterator[int]:
    """A living process of somebody else's."""
    child = subprocess.Popen(["sleep", "3600"])
    while Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n":  # it takes its name a moment after it starts
        time.sleep(0.01)
    yield child.pid
    child.kill()
    child.wait()


def chosen(*requested: str) -> str:
    return devices.choose(requested).lease


def test_a_gpu_where_there_is_one_and_the_cpu_else(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen() == "GPU-aaaa"
    assert chosen("cpu") == "cpu"
    nvml.uuids = []
    assert chosen() == "cpu"
    monkeypatch.setattr(nvml, "nvmlInit", lambda: 1 / 0, raising=False)  # no driver
    assert chosen() == "cpu"
    with pytest.raises(AbprofError, match=r"--device cuda: no CUDA device \(abprof doctor lists"):
        chosen("cuda")


@pytest.mark.parametrize(
    ("requested", "lease"),
    [
        ("cuda", "GPU-aaaa"), ("cuda:0", "GPU-aaaa"), ("cuda:2", "GPU-cccc"), ("GPU-cccc", "GPU-cccc"),
        ("GPU-ab", "GPU-abbb"),
    ],
)  # fmt: skip
def test_a_gpu_by_index_or_uuid(nvml: Nvml, requested: str, lease: str) -> None:
    device = devices.choose((requested,))
    assert (device.lease, device.worker) == (lease, f"cuda:{lease}")
    assert device.machine().uuid == lease


@pytest.mark.parametrize(
    ("visible", "first", "second"),
    [
        ("2,0", "GPU-cccc", "GPU-aaaa"), ("GPU-c,GPU-aaaa", "GPU-cccc", "GPU-aaaa"),
        (" 1 , 0 ", "GPU-abbb", "GPU-aaaa"), ("1,-1,0", "GPU-abbb", None), ("1,7,0", "GPU-abbb", None),
        ("", None, None), ("-1", None, None), ("NoDevFiles", None, None),
    ],
)  # fmt: skip
def test_cuda_visible_devices_is_respected(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, visible: str, first: str | None, second: str | None
) -> None:
    """Its order counts, and as for CUDA itself it ends at the first entry that is no device."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if first is None:
        assert chosen() == "cpu"
        return
    assert chosen() == chosen("cuda:0") == first
    if second is None:
        with pytest.raises(AbprofError, match=f"no GPU 1 .*the GPUs are {first}"):
            chosen("cuda:1")
    else:
        assert chosen("cuda:1") == second
    hidden = next(uuid for uuid in UUIDS if uuid not in (first, second))
    with pytest.raises(AbprofError, match=f"no GPU {hidden}"):
        chosen(hidden)


@pytest.mark.parametrize("requested", [(), ("cuda",)])
def test_a_mig_slice_is_refused_and_not_taken_for_no_gpu(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, requested: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(AbprofError, match="names a MIG slice, which shares clocks and memory"):
        devices.choose(requested)


def device() -> CudaDevice:
    found = cuda.every()[0]
    return found


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"mode": 1}, "compute mode does not let"),
        ({"mode": 3}, "compute mode does not let"),
        ({"mode": 2}, "compute mode does not let"),
        ({"mig": (1, 1)}, "split into MIG slices"),
        ({"mps": [4321]}, "an MPS server is running"),
    ],
)
def test_settings_under_which_nothing_is_measured(nvml: Nvml, setting: dict[str, Any], says: str) -> None:
    vars(nvml).update(setting)
    refusal = device().refusal()
    assert says in refusal[0]
    assert refusal[1], "with what to do about it"


def test_an_ordinary_gpu_is_not_refused_nor_one_that_answers_nothing(nvml: Nvml) -> None:
    assert (device().refusal(), device().busy()) == (None, None)
    nvml.mig = (0, 0)
    assert device().refusal() is None
    nvml.mode = nvml.mig = nvml.use = nvml.pids = None  # a virtual machine's driver
    assert (device().refusal(), device().busy()) == (None, None)


def test_a_gpu_that_somebody_is_using(nvml: Nvml, stranger: int) -> None:
    nvml.pids, nvml.use = [stranger], 97
    busy = device().busy()
    assert busy[0] == f"another process is using the GPU (sleep {stranger}; 97 % busy)"
    nvml.use = 3
    assert device().busy() is None, "a process that only holds memory does not disturb"
    nvml.pids, nvml.use = [], 97
    assert device().busy() is None, "use that has just ended"


@pytest.mark.parametrize(("failure", "says"), [(None, None), (3, None), (15, "the GPU is lost"), (16, "must be reset")])
def test_a_gpu_that_disappears_is_known(nvml: Nvml, failure: int | None, says: str | None) -> None:
    """3: not supported, which says nothing."""
    gpu = device()
    nvml.failure = failure
    message = gpu.gone()
    assert (message is None) == (says is None)
    assert says is None or (message and says in message)


def test_state_names_what_slowed_the_gpu_down_since_the_last_reading(nvml: Nvml) -> None:
    gpu = device()
    for nvml.reasons in (0x4, 0x20):
        gpu._sample()
    assert gpu.state().throttle == ("software power cap", "software thermal slowdown")
    assert gpu.state() == MachineState()
    nvml.reasons = None
    gpu._sample()
    assert gpu.state() == MachineState()


@pytest.mark.parametrize(
    ("reasons", "void"),
    [
        (0x0, ""), (0x1, ""), (0x4, ""), (0x20, ""), (0x8, "hardware slowdown"), (0x40, "hardware thermal slowdown"),
        (0x84, "hardware power brake"),
    ],
)  # fmt: skip
def test_hardware_slowdowns_void_rounds_and_the_power_cap_does_not(nvml: Nvml, reasons: int, void: str) -> None:
    gpu = device()
    nvml.reasons = reasons
    before = time.monotonic_ns()
    gpu._sample()
    bad = gpu.bad_times()
    assert [why for *_, why in bad] == ([void] if void else [])
    for start, end, _ in bad:
        assert start < before < end
    assert gpu.bad_times() == [], "each only once"


def test_a_foreign_process_voids_rounds_and_is_named(nvml: Nvml, stranger: int) -> None:
    gpu = device()
    gpu._own = {os.getpid()}
    nvml.pids = [os.getpid()]
    gpu._sample()
    assert gpu.bad_times() == []
    nvml.pids = [os.getpid(), stranger]
    gpu._sample()
    assert [why for *_, why in gpu.bad_times()] == [f"sleep {stranger}"]
    assert gpu.state().foreign == (f"sleep {stranger}",)


def test_the_thread_that_samples_a_gpu_ends_with_its_device(nvml: Nvml) -> None:
    """A script or a notebook makes many runs in one process."""
    before, gpu = set(threading.enumerate()), device()
    gpu.watch(lambda: [os.getpid()])
    (thread,) = set(threading.enumerate()) - before
    del gpu
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_no_fork_copies_a_lock_that_nvml_holds(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """`abprof.compare` forks while the GPU is sampled, and torch asks NVML in the fork."""
    held = threading.Lock()

    def slow(*_: object) -> int:
        with held:
            time.sleep(0.1)
        return 8

    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", slow, raising=False)
    gpu = device()
    gpu.watch(lambda: [os.getpid()])
    for _ in range(5):
        time.sleep(0.06)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a fork beside threads
            if not (pid := os.fork()):
                os._exit(int(held.locked()))
        assert os.waitpid(pid, 0)[1] == 0
    assert gpu.state().throttle, "the GPU was sampled"


def test_a_cpu_is_never_refused_and_tells_its_load() -> None:
    cpu = CpuDevice()
    assert (cpu.refusal(), cpu.busy(), cpu.bad_times()) == (None, None, [])
    cpu.watch(lambda: [os.getpid()])
    state = cpu.state()
    assert state.load1 is not None
    assert 0 <= state.load1 < 10_000
    machine = cpu.machine()
    assert (machine.kind, machine.cpus) == ("cpu", len(os.sched_getaffinity(0)))
    assert machine.memory_bytes > 1 << 27
    assert machine.device
