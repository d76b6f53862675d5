"""The device of a simulated worker: no machine state, nothing to refuse. There may be several, of several models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from abprof.records import Machine, MachineState


class SimulatedDevice:
    """See abprof.devices.protocols.Device."""

    kind: Literal["simulated"] = "simulated"

    def __init__(self, name: str = "simulated") -> None:
        """`name`: simulated, simulated:N or simulated:N:MODEL."""
        self.lease = self.worker = name
        self._model = name.partition(":")[2].partition(":")[2]

    def machine(self) -> Machine:
        uuid = self.lease if self.lease != "simulated" else ""
        return Machine(host="simulated", device=self._model or "simulated", kind="simulated", uuid=uuid)

    def refusal(self) -> tuple[str, str] | None:
        return None

    def busy(self) -> tuple[str, str] | None:
        return None

    def gone(self) -> str | None:
        """A simulated worker leaves a mark beside its scenario when its device disappears."""
        mark = Path(f"{os.environ.get('ABPROF_SIMULATED', '')}.gone.{self.lease}")
        return "the simulated device has disappeared" if mark.exists() else None

    def watch(self, own: Callable[[], Iterable[int]]) -> None:
        del own

    def state(self) -> MachineState:
        return MachineState()

    def bad_times(self) -> list[tuple[int, int, str]]:
        return []
