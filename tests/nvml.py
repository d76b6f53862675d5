"""A simulated NVML: the test sets the answers of pynvml's functions."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

UUIDS = ["GPU-aaaa", "GPU-abbb", "GPU-cccc"]


class NotSupported(Exception):
    """The driver's error for an unsupported query."""


class Failed(Exception):
    """The driver's error for a lost GPU."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@dataclass
class Nvml:
    """The functions of pynvml that abprof uses. A handle is the GPU's index; an answer of None is not supported."""

    uuids: list[str] = field(default_factory=lambda: list(UUIDS))
    mode: int | None = 0
    mig: tuple[int, int] | None = None
    mps: list[int] = field(default_factory=list)
    pids: list[int] | None = field(default_factory=list)
    use: int | None = 0
    reasons: int | None = 0
    failure: int | None = None  # the code by which every question is answered

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.uuids[handle]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "575.57"

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetName": "NVIDIA Test",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1 << 37),
            "nvmlDeviceGetPowerManagementLimit": 700_000,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetComputeMode": self.mode,
            "nvmlDeviceGetMigMode": self.mig,
            "nvmlDeviceGetMPSComputeRunningProcesses_v3": [SimpleNamespace(pid=pid) for pid in self.mps],
            "nvmlDeviceGetComputeRunningProcesses": None if self.pids is None else [SimpleNamespace(pid=p) for p in self.pids],
            "nvmlDeviceGetUtilizationRates": None if self.use is None else SimpleNamespace(gpu=self.use),
            "nvmlDeviceGetCurrentClocksThrottleReasons": self.reasons,
        }  # fmt: skip
        if name not in answers:
            raise AttributeError(name)

        def ask(*args: Any) -> Any:
            if self.failure is not None:
                raise Failed(self.failure)
            if answers[name] is None:
                raise NotSupported
            return answers[name]

        return ask
