"""Record what Triton compiles and launches, with a hash of each compiled kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from abprof.records import messages as wire

_LONGEST = 80  # characters of a constant


class Watch:
    """Counts Triton's compilations, and describes each compiled kernel (Triton 3.6 or later)."""

    def __init__(self) -> None:
        self.count = 0
        self.kernels: dict[str, wire.Compiled] = {}
        self._functions: dict[Any, str] = {}  # the driver's handle of a loaded kernel -> key
        self._knobs: Any = None
        with contextlib.suppress(ImportError):
            from triton import knobs

            self._knobs = knobs

    def install(self) -> None:
        """Install Triton's hooks for compilations and loads of kernels."""
        if self._knobs:
            self._knobs.compilation.listener = self._compiled
            self._knobs.runtime.kernel_load_end_hook.add(self._loaded)

    def _compiled(self, *, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        name, code_hash = str(metadata.get("name") or getattr(src, "name", "kernel")), str(metadata.get("hash", ""))
        binary = next((path for file, path in (metadata_group or {}).items() if file.endswith(".cubin")), "")
        path, digest = "", code_hash
        if binary and Path(binary).exists():
            path, digest = str(binary), hashlib.sha256(Path(binary).read_bytes()).hexdigest()
        key = _key(name, code_hash)
        seconds = self.kernels[key].seconds if key in self.kernels else None
        if not cache_hit:
            seconds = float(getattr(times, "total", 0) or 0) / 1e6
        warps, stages, ctas, shared = (
            value if isinstance(value := metadata.get(field), int) else None
            for field in ("num_warps", "num_stages", "num_ctas", "shared")
        )
        constants = _constants(src)
        self.kernels[key] = wire.Compiled(key, name, path, digest, seconds, warps, stages, ctas, shared, constants)
        if not cache_hit:
            self.count += 1
            print(f"triton: {key} {self.kernels[key].summary()}", flush=True)

    def _loaded(self, _module: Any, function: Any, name: str, _metadata_group: Any, code_hash: str) -> None:
        with contextlib.suppress(TypeError):  # a handle that is not hashable
            self._functions[function] = _key(name, str(code_hash))

    @contextlib.contextmanager
    def launches(self) -> Iterator[list[tuple[str, str]]]:
        """Yield a list that gets a pair for each launch in the `with` block: kernel name, key in `kernels` or ""."""
        seen: list[tuple[str, str]] = []

        def launched(metadata: Any) -> None:
            data = getattr(metadata, "data", None) or {}
            seen.append((str(data.get("name", "")), self._functions.get(data.get("function"), "")))

        with contextlib.ExitStack() as undo:
            if self._knobs:
                self._knobs.runtime.launch_enter_hook.add(launched)
                undo.callback(self._knobs.runtime.launch_enter_hook.remove, launched)
            yield seen


def chosen(launches: Iterable[wire.Launch], package: str) -> tuple[wire.Launch, ...]:
    """Return the launches, each with the configuration that the kernel's autotuner chose last. Only autotuners in the
    modules of `package` are found."""
    known: dict[str, str] = {}
    modules = [module for name, module in sys.modules.items() if f"{name}.".startswith(f"{package}.")]
    for tuner in (_autotuner(value) for module in modules for value in list(vars(module).values())):
        if getattr(tuner, "best_config", None) is not None:
            known[tuner.base_fn.__name__] = str(tuner.best_config)
    return tuple(dataclasses.replace(launch, choice=known.get(launch.name, "")) for launch in launches)


def _autotuner(value: Any) -> Any:
    """Return the autotuner that decorates a kernel; None without one, or if it has a single configuration."""
    for _ in range(4):
        if type(value).__module__.partition(".")[0] != "triton":
            return None
        if hasattr(value, "configs") and hasattr(value, "base_fn"):
            return value if len(value.configs) > 1 else None
        value = getattr(value, "fn", None)
    return None


def _key(name: str, code_hash: str) -> str:
    return f"{name}[{code_hash[:8]}]"


def _constants(src: Any) -> dict[str, wire.Value]:
    names, params = (list(getattr(getattr(src, "fn", None), name, ())) for name in ("arg_names", "params"))
    found: dict[str, wire.Value] = {}
    for place, value in (getattr(src, "constants", None) or {}).items():
        index = place[0] if isinstance(place, tuple) and len(place) == 1 else place
        if not isinstance(index, int) or index >= len(names):
            continue
        if index < len(params) and not getattr(params[index], "is_constexpr", True):
            continue  # an ordinary argument that Triton specialised as 1 or None
        plain = isinstance(value, bool | int | str) or (isinstance(value, float) and abs(value) < float("inf"))
        found[names[index]] = value if plain and not isinstance(value, str) else str(value)[:_LONGEST]
    return found
