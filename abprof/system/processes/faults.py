"""How a child fails."""

from __future__ import annotations


class WorkerDied(Exception):
    """The child ended, or its answer could not be read. `reason` is one line for a person."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerHung(WorkerDied):
    """The child did not answer in time."""


class WorkerFault(Exception):
    """The child answered that it could not do it, and lives on."""

    def __init__(self, status: str, reason: str, at: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.at = at  # the workload's own function that raised it, and its file; "": not the workload's doing
