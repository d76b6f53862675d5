"""The device of a simulated worker: no machine state, nothing to refuse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from abprof.model import Machine, MachineState


class SimulatedDevice:
    """See abprof.protocols.Device."""

    kind: Literal["simulated"] = "simulated"
    lease = "simulated"
    worker = "simulated"

    def machine(self) -> Machine:
        return Machine(host="simulated", device="simulated", kind="simulated")

    def refusal(self) -> tuple[str, str] | None:
        return None

    def busy(self) -> tuple[str, str] | None:
        return None

    def watch(self, own: Iterable[int]) -> None:
        del own

    def state(self) -> MachineState:
        return MachineState()

    def bad_times(self) -> list[tuple[int, int, str]]:
        return []
