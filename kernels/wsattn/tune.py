"""Which configuration runs: each of `CONFIGS` is timed at the first call of a shape, and the quickest is kept.

Kept in the process; and where Triton keeps its own autotuner's choices (TRITON_CACHE_AUTOTUNING=1, as abprof sets it for
a build), in Triton's cache too, by the sources, the toolchain and the GPU, so that later processes read it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .configs import CONFIGS, Config

_ROUNDS = 3
_FILE = "wsattn.autotune.json"
_chosen: dict[tuple[Any, ...], Config] = {}


def configuration(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float = 1.0, variant: str = "ws_pipelined"
) -> Config:
    """The configuration that `ws_attention` uses for these tensors, timed now if it has not been before.

    Shapes, dtypes and errors as there.
    """
    from .api import check

    check(q, k, v, scale, variant)
    return choose(q.contiguous(), k.contiguous(), v.contiguous(), scale, variant)


def choose(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, variant: str) -> Config:
    """As `configuration`, of tensors that are contiguous and have been checked."""
    key = (variant, tuple(q.shape), k.shape[2], str(q.dtype), str(q.device))
    if key not in _chosen:
        _chosen[key] = _read_or_time(q, k, v, scale, variant)
    return _chosen[key]


def _read_or_time(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, variant: str) -> Config:
    import triton

    kept = None
    if triton.knobs.autotuning.cache:
        from triton.runtime.cache import get_cache_manager

        kept = get_cache_manager(_digest((variant, tuple(q.shape), k.shape[2], str(q.dtype)), q.device))
        known = kept.get_file(_FILE)
        if known:
            return Config(**json.loads(Path(known).read_text(encoding="utf-8"))["config"])
    milliseconds = time_all(q, k, v, scale, variant)
    config = min(milliseconds, key=lambda c: milliseconds[c])
    if kept is not None:
        rows = [dataclasses.asdict(c) | {"ms": ms} for c, ms in milliseconds.items()]
        kept.put(json.dumps({"config": dataclasses.asdict(config), "timed": rows}), _FILE, binary=False)
    return config


def time_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, variant: str, configs: Sequence[Config] = CONFIGS
) -> dict[Config, float]:
    """Milliseconds of each configuration that fits this GPU. Raises RuntimeError when none does."""
    from triton.runtime.errors import OutOfResources

    from . import launch

    out = torch.empty_like(q)
    calls: dict[Config, Callable[[], None]] = {}
    for config in configs:
        made = launch.prepare(q, k, v, out, scale, variant, config)
        try:
            launch.run(made, q.device)
        except OutOfResources:
            continue
        calls[config] = lambda made=made: launch.run(made, q.device)  # type: ignore[misc]
    if not calls:
        raise RuntimeError(f"no configuration of wsattn fits {torch.cuda.get_device_name(q.device)}")
    with torch.cuda.device(q.device):
        rounds = [{config: elapsed(call) for config, call in calls.items()} for _ in range(_ROUNDS)]
    return {config: min(one[config] for one in rounds) for config in calls}


def elapsed(call: Callable[[], None]) -> float:
    """Milliseconds of one call on the current device: the mean of as many as take about 5 ms, 20 at most."""
    single = _events(call, 1)
    return _events(call, max(1, min(20, int(5 / max(single, 1e-3)))))


def _events(call: Callable[[], None], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def _digest(case: tuple[Any, ...], device: torch.device) -> str:
    import triton

    parts = [triton.__version__, torch.version.cuda, torch.cuda.get_device_name(device), case, CONFIGS]
    sources = sorted(Path(__file__).parent.glob("*.py"))
    text = "\n".join([*map(repr, parts), *(path.read_text(encoding="utf-8") for path in sources)])
    return hashlib.sha256(text.encode()).hexdigest()
