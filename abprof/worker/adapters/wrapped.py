"""What all wrapped benchmarks have in common as workloads."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from abprof.worker.adapters import files
from abprof.worker.adapters.caught import seed
from abprof.worker.api import Op


class Wrapped:
    """A workload (docs/WRITING.md) whose cases and calls are those of a benchmark's file. It has no reference."""

    API = 1

    def __init__(self, where: str, kernel: str, workload: str) -> None:
        """`where`: FILE or FILE:NAME, the file from the repository's root; `kernel`: the package under test, by its name in
        abprof.toml, which is its import name too; `workload`: the workload's own file."""
        self.file, _, self.name = where.partition(":")
        self.KERNEL = kernel
        self.__doc__ = f"{where}, wrapped"
        self._workload = workload
        self._loaded: types.ModuleType | None = None

    @property
    def path(self) -> Path:
        """The benchmark's file. Raises FileNotFoundError."""
        return files.find(self.file, self._workload)

    def module(self) -> types.ModuleType:
        """The benchmark with the package of this worker's side, imported once."""
        if self._loaded is None:
            self._loaded = files.load(self.path)
        return self._loaded

    def described(self) -> types.ModuleType:
        """The benchmark for its declarations alone, where there may be no package."""
        return self._loaded or files.described(self.path, self.KERNEL.partition(".")[0])

    def inputs(self, case: Mapping[str, Any], device: object, number: int) -> dict[str, Any]:
        """What benchmarks make for themselves, when they are called: they are given the seed, some the device."""
        del case
        return {"seed": number, "device": str(device)}

    def prepare(self, kernel: object, variant: str | None, case: Mapping[str, Any], inputs: Mapping[str, Any]) -> Op:
        """The operation that the benchmark would have timed in this case."""
        del kernel, variant
        seed(inputs["seed"])
        return self.operation(case, inputs["device"])

    def operation(self, case: Mapping[str, Any], device: str) -> Op:
        """Of each kind of benchmark its own."""
        raise NotImplementedError


def caller() -> str:
    """The file that calls the function which asks this: the workload's."""
    return str(sys._getframe(2).f_globals["__file__"])


def plain(value: object) -> Any:
    """A value as an axis may have it: a torch.dtype and other objects by what they are called. Raises TypeError for what the
    package under test would have to say."""
    if isinstance(value, files.Anything):
        raise files.valueless(value)
    if isinstance(value, str | int | float | bool):
        return value
    return getattr(value, "__name__", None) or str(value).removeprefix("torch.")
