"""Read the identity and state of NVIDIA GPUs through NVML, which needs no CUDA context in this process."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abprof.devices.device import Device
from abprof.records import POWER_CAP, Machine, MachineState
from abprof.records.errors import AbprofError
from abprof.system.processes import WorkerDied, guarded

_PERIOD = 0.1  # seconds between samples; a sample costs about a millisecond of a core
# nvml.h, nvmlClocksEventReasons. Hardware slowdowns void rounds; the power cap is normal under load.
_REASONS = {
    0x4: POWER_CAP,
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_VOID = 0x8 | 0x40 | 0x80
# nvml.h, nvmlReturn_t
_GONE = {15: "NVML reports that the GPU is lost", 16: "NVML reports that the GPU must be reset"}
_GRAPHICS, _MEMORY = 0, 2  # nvml.h, nvmlClockType_t
_ALLOW = "ask the GPU's owner to run `nvidia-smi -acp UNRESTRICTED`, or leave the option out"
# Held while a thread asks NVML: forks of this process (abprof.compare) could inherit a lock of NVML that no thread frees.
_asking = threading.Lock()
os.register_at_fork(before=_asking.acquire, after_in_parent=_asking.release, after_in_child=_asking.release)
_RESTORE = "import sys; from abprof.devices import cuda; cuda.restore(*sys.argv[1:])"


@dataclass(frozen=True)
class Sample:
    """What NVML reported of a GPU at one moment."""

    at: int  # time.monotonic_ns()
    reasons: int  # bits of _REASONS
    processes: list[tuple[int, str]]  # processes on the GPU: (id, name)


def every() -> list[CudaDevice]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lists, in the listed order. Raises AbprofError for a MIG slice."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except Exception:  # noqa: BLE001 - no library, no driver, no permission: there is no GPU
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    return [CudaDevice(pynvml, handles[uuids.index(uuid)], uuid) for uuid in _visible(uuids)]


def _visible(uuids: list[str]) -> list[str]:
    """Return the `uuids` that CUDA_VISIBLE_DEVICES lists; as in CUDA, entries after an invalid one are ignored."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return uuids
    chosen: list[str] = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.startswith("MIG-"):
            what = "CUDA_VISIBLE_DEVICES names a MIG slice, which shares clocks and memory with other tenants"
            raise AbprofError(what, where="--device", advice="use a whole GPU, or --device cpu")
        found = uuids[int(entry) :][:1] if entry.isdigit() else [u for u in uuids if entry and u.startswith(entry)]
        if not found:
            break
        chosen += found[:1]
    return chosen


class CudaDevice(Device):
    """An NVIDIA GPU. `nvml`: the pynvml module, or a substitute in tests; `handle`: NVML's handle of the GPU."""

    kind = "cuda"

    def __init__(self, nvml: Any, handle: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = handle
        self.lease = uuid
        self.worker = f"cuda:{uuid}"
        self._locked = ""  # MHz at which `locked` holds the clock
        self._own_now: Callable[[], Iterable[int]] = frozenset
        self._own: set[int] = set()
        self._samples: list[Sample] = []  # since `state`
        self._bad: list[Sample] = []  # since `bad_times`
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def _ask(self, function: str, *args: Any) -> Any:
        """Return the result of an NVML function; None if the GPU, driver or virtual machine does not support it."""
        try:
            return getattr(self._nvml, function)(self._handle, *args)
        except Exception:  # noqa: BLE001 - "not supported" has many classes
            return None

    def machine(self) -> Machine:
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        limit = self._ask("nvmlDeviceGetPowerManagementLimit")
        facts = {
            "driver": self._nvml.nvmlSystemGetDriverVersion(),
            "power_limit_w": f"{limit / 1000:.0f}" if limit else "",
            "max_sm_clock_mhz": str(self._ask("nvmlDeviceGetMaxClockInfo", 1) or ""),
            "locked_clock_mhz": self._locked,
            "system": f"{platform.system()} {platform.release()}",
        }
        return Machine(
            host=platform.node(),
            device=self._ask("nvmlDeviceGetName") or "NVIDIA GPU",
            kind="cuda",
            uuid=self.lease,
            cpus=len(os.sched_getaffinity(0)),
            memory_bytes=int(memory.total) if memory else 0,
            facts={key: value for key, value in facts.items() if value},
        )

    def refusal(self) -> tuple[str, str] | None:
        """Return (reason, advice) for an exclusive compute mode, MIG or MPS; None if the settings allow timing."""
        mode, mig = self._ask("nvmlDeviceGetComputeMode"), self._ask("nvmlDeviceGetMigMode")
        mps = self._ask("nvmlDeviceGetMPSComputeRunningProcesses_v3")
        if mode:
            what = "does not let two processes compute at once (exclusive or prohibited)"
            return f"the GPU's compute mode {what}", "ask an administrator for nvidia-smi -c DEFAULT"
        if mig and mig[0] == 1:
            what = "the GPU is split into MIG slices, which share clocks and memory with other tenants"
            return what, "use a whole GPU"
        if mps or any(name == "nvidia-cuda-mps" for _, name in self._processes()):
            advice = "stop the server: echo quit | nvidia-cuda-mps-control"
            return "an MPS server is running, under which kernels of two sides overlap", advice
        return None

    @contextlib.contextmanager
    def locked(self, mhz: int) -> Iterator[None]:
        """Hold the GPU's graphics clock at `mhz` during the block. Raises AbprofError if the GPU refuses. A second
        process restores the former clocks, also when this process is killed."""
        nvml, handle, uuid, where = self._nvml, self._handle, self.lease, f"--lock-clocks {mhz}"
        try:
            memory, graphics = (nvml.nvmlDeviceGetApplicationsClock(handle, kind) for kind in (_MEMORY, _GRAPHICS))
            known = sorted(nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory))
        except Exception as error:
            raise AbprofError(f"{uuid} does not report its clocks: {error}", where=where, advice=_ALLOW) from error
        if mhz not in known:
            nearest = min(known, key=lambda each: abs(each - mhz))
            raise AbprofError(f"{uuid} has no clock of {mhz} MHz", where=where, advice=f"the nearest is {nearest}")
        argv = [sys.executable, "-P", "-c", _RESTORE, uuid, str(memory), str(graphics)]
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(guarded(argv, os.environ))
            except WorkerDied as died:
                raise AbprofError(f"the process that restores the clocks failed: {died.reason}", where=where) from died
            try:
                nvml.nvmlDeviceSetApplicationsClocks(handle, memory, mhz)
            except Exception as error:
                raise AbprofError(f"the clocks of {uuid} cannot be set: {error}", where=where, advice=_ALLOW) from error
            if (now := nvml.nvmlDeviceGetApplicationsClock(handle, _GRAPHICS)) != mhz:
                raise AbprofError(f"{uuid} is set to {mhz} MHz, but reports {now}", where=where, advice=_ALLOW)
            self._locked = str(mhz)
            yield
        if nvml.nvmlDeviceGetApplicationsClock(handle, _GRAPHICS) != graphics:  # after the run's report: no error
            print(f"warning: the clocks of {uuid} are not restored: run `nvidia-smi -rac`", file=sys.stderr)

    def busy(self) -> tuple[str, str] | None:
        own, use = self._own_ids(), self._ask("nvmlDeviceGetUtilizationRates")
        others = [f"{name or 'process'} {pid}" for pid, name in self._processes() if pid not in own]
        if others and use is not None and use.gpu >= 10:
            what = f"another process is using the GPU ({', '.join(others[:3])}; {use.gpu} % busy)"
            return what, "wait for that process to end, or choose another GPU with --device"
        return None

    def gone(self) -> str | None:
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except Exception as error:  # noqa: BLE001 - "not supported" has many classes
            return _GONE.get(getattr(error, "value", 0))
        return None

    def _processes(self) -> list[tuple[int, str]]:
        return [(p.pid, _process_name(p.pid)) for p in self._ask("nvmlDeviceGetComputeRunningProcesses") or []]

    def watch(self, own: Callable[[], Iterable[int]]) -> None:
        """Start a thread that samples the GPU's state as long as this object exists. `own` returns ids of abprof's
        processes."""
        self._own_ids()
        self._own_now, me = own, weakref.ref(self)

        def sample() -> None:
            while (device := me()) is not None:
                with contextlib.suppress(Exception), _asking:
                    device._sample()
                del device
                time.sleep(_PERIOD)

        if self._thread is None:
            self._thread = threading.Thread(target=sample, daemon=True)
            self._thread.start()

    def _sample(self) -> None:
        reasons = int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0)
        sample = Sample(time.monotonic_ns(), reasons, self._processes())
        with self._lock:
            self._samples.append(sample)
            self._bad.append(sample)

    def _own_ids(self) -> set[int]:
        """Return the ids of all processes that abprof has started, ended processes included."""
        self._own |= set(self._own_now())
        return self._own

    def _foreign(self, sample: Sample) -> set[str]:
        own = self._own_ids()
        others = {f"{name or 'process'} {pid}" for pid, name in sample.processes if pid not in own}
        # In a container NVML may report process ids of the host. If all ids are foreign, ignore them.
        return others if len(others) < len(sample.processes) else set()

    def state(self) -> MachineState:
        """Return what slowed the GPU down, and who used it, in all samples since the last call."""
        with self._lock:
            seen, self._samples = self._samples, []
        return MachineState(
            throttle=tuple(name for bit, name in _REASONS.items() if any(one.reasons & bit for one in seen)),
            foreign=tuple(sorted(set[str]().union(*map(self._foreign, seen)))),
        )

    def bad_times(self) -> list[tuple[int, int, str]]:
        """Return the spans of time since the last call in which the GPU was slowed down or used by another process."""
        with self._lock:
            seen, self._bad = self._bad, []
        half = int(_PERIOD * 1e9)
        slowdowns = [[name for bit, name in _REASONS.items() if one.reasons & _VOID & bit] for one in seen]
        why = [", ".join([*of, *sorted(self._foreign(one))]) for of, one in zip(slowdowns, seen, strict=True)]
        return [(one.at - half, one.at + half, text) for one, text in zip(seen, why, strict=True) if text]


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def restore(uuid: str, memory: str, graphics: str) -> None:
    """Restore the clocks (MHz) when the standard input ends."""
    import pynvml

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    pynvml.nvmlInit()
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    handle = next(one for one in handles if pynvml.nvmlDeviceGetUUID(one) == uuid)
    print("ready", flush=True)
    sys.stdin.read()
    pynvml.nvmlDeviceSetApplicationsClocks(handle, int(memory), int(graphics))
