"""Watches Triton compile and load kernels: a compile during timing voids the epoch, and a kernel's hash is proof."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any


class Watch:
    """Counts compilations, and keeps hash and resources of each compiled kernel that was loaded.

    Uses triton.knobs (3.4 and later); without Triton it counts nothing.
    """

    def __init__(self) -> None:
        self.count = 0
        self._kernels: dict[str, str] = {}
        self._facts: dict[str, str] = {}
        self._installed = False

    def install(self) -> None:
        """Hook into Triton, once."""
        if self._installed:
            return
        self._installed = True
        with contextlib.suppress(ImportError, AttributeError):
            from triton import knobs

            knobs.compilation.listener = self._compiled

    def _compiled(self, *, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        """Triton's compilation listener. Called for cache hits too."""
        name = str(metadata.get("name") or getattr(src, "name", "kernel"))
        binary = next((Path(p) for f, p in (metadata_group or {}).items() if f.endswith(".cubin")), None)
        digest = (
            hashlib.sha256(binary.read_bytes()).hexdigest()
            if binary and binary.exists()
            else str(metadata.get("hash", ""))
        )
        key = f"{name}[{str(metadata.get('hash', ''))[:8]}]"
        self._kernels[key] = digest
        if not cache_hit:
            self.count += 1
            seconds = (
                sum(v for v in vars(times).values() if isinstance(v, int | float)) / 1e6
                if hasattr(times, "__dict__")
                else 0.0
            )
            self._facts[key] = (
                f"compiled in {seconds:.2f} s, {metadata.get('shared', '?')} B shared, {metadata.get('num_warps', '?')} warps"
            )
            print(f"triton: {key} {self._facts[key]}", flush=True)

    def kernels(self) -> dict[str, str]:
        """Name with compile hash -> SHA-256 of the machine code."""
        return dict(self._kernels)

    def facts(self) -> dict[str, str]:
        """What was compiled here, in words."""
        return dict(self._facts)
