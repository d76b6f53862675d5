"""A kernel with everything it is launched with, so that tests can compile it without launching."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """The grid is one-dimensional."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Launch on the current device's current stream."""
        self.kernel[(self.programs,)](*self.args, **self.options)
