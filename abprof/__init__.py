"""abprof: did this branch change the speed of these GPU kernels, by how much, and why?

From Python: `run` compares refs like `abprof run`, `load` reads a finished run, `compare` compares two callables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abprof.cli.api import Result, compare, load, run
    from abprof.records.errors import AbprofError

__all__ = ["AbprofError", "Result", "__version__", "compare", "load", "run"]
__version__: str


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because `import abprof` must be quick, also in a worker."""
    from importlib import import_module

    if name == "__version__":
        return import_module("abprof.records.base").VERSION
    if name not in __all__:
        raise AttributeError(f"module 'abprof' has no attribute {name!r}")
    return getattr(import_module("abprof.records.errors" if name == "AbprofError" else "abprof.cli.api"), name)
