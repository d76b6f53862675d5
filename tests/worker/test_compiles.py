"""Triton's compilations are counted, and what was compiled or loaded is on record by its machine code."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from abprof.worker.compiles import Watch


def tell(watch: Watch, name: str, hash: str, *, cache_hit: bool, group: dict[str, str] | None = None) -> None:
    """What Triton tells its listener."""
    watch._compiled(
        src=SimpleNamespace(name=name),
        metadata={"name": name, "hash": hash, "shared": 1024, "num_warps": 4},
        metadata_group=group,
        times=SimpleNamespace(total=1_500_000),
        cache_hit=cache_hit,
    )


def test_compiles_are_counted_and_cache_hits_only_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cubin = tmp_path / "k.cubin"
    cubin.write_bytes(b"machine code")
    watch = Watch()
    tell(watch, "fwd", "a" * 64, cache_hit=False, group={"fwd.json": "x", "fwd.cubin": str(cubin)})
    tell(watch, "fwd", "b" * 64, cache_hit=True)
    assert watch.count == 1
    assert watch.kernels() == {"fwd[aaaaaaaa]": hashlib.sha256(b"machine code").hexdigest(), "fwd[bbbbbbbb]": "b" * 64}
    assert watch.facts() == {"fwd[aaaaaaaa]": "compiled in 1.50 s, 1024 B shared, 4 warps"}
    assert capsys.readouterr().out == "triton: fwd[aaaaaaaa] compiled in 1.50 s, 1024 B shared, 4 warps\n"


def test_it_listens_to_triton_as_triton_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keyword names are those of Triton's own protocol, of whichever version is installed."""
    knobs: Any = pytest.importorskip("triton.knobs")
    monkeypatch.setattr(knobs.compilation, "listener", None, raising=False)
    watch = Watch()
    watch.install()
    watch.install()
    assert knobs.compilation.listener == watch._compiled
    spoken = set(inspect.signature(knobs.CompilationListener.__call__).parameters) - {"self"}
    assert spoken == set(inspect.signature(watch._compiled).parameters)
