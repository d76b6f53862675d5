"""wsattn without a GPU: arguments, the choice of a configuration, its kernels in the emulator, their machine code."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import wsattn

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
SCALE = 0.11


def draw(nq: int, nk: int, dtype: torch.dtype = torch.float16, heads: int = 2) -> list[torch.Tensor]:
    """q, k, v of [1, heads, N, 128]; all of the last head is NaN, which the others must not notice."""
    generator = torch.Generator().manual_seed(nq * 1000 + nk)
    made = [torch.randn(1, heads, n, 128, generator=generator).to(dtype) for n in (nq, nk, nk)]
    for tensor in made:
        tensor[:, -1] = torch.nan
    return made


# ---------------------------------------------------------------- the configuration


def test_the_configurations_have_the_seven_parameters() -> None:
    names = [field.name for field in dataclasses.fields(wsattn.Config)]
    assert names == [
        "BLOCK_M", "BLOCK_N", "NUM_BUFFERS", "NUM_MMA_WARPS", "NUM_MMA_GROUPS", "num_warps", "num_stages",
    ]  # fmt: skip
    assert wsattn.Config(128, 128, 2, 8, 2, 4, 0) in wsattn.CONFIGS, "the original's"
    assert len(set(wsattn.CONFIGS)) == len(wsattn.CONFIGS)
    for config in wsattn.CONFIGS:
        assert config.NUM_MMA_WARPS == 4 * config.NUM_MMA_GROUPS == config.num_warps * config.NUM_MMA_GROUPS
        assert config.rows == 64, "a consumer is a warpgroup of 64 rows"


@contextmanager
def timed(monkeypatch: pytest.MonkeyPatch, milliseconds: list[float]) -> Iterator[list[int]]:
    """`choose` on a CPU: the configurations take these times. Gives how often they were timed."""
    from kernels.wsattn import tune

    often: list[int] = []

    def time_all(*args: Any) -> dict[wsattn.Config, float]:
        often.append(1)
        return dict(zip(wsattn.CONFIGS, milliseconds, strict=True))

    with monkeypatch.context() as patch:
        patch.setattr(tune, "_chosen", {})
        patch.setattr(tune, "time_all", time_all)
        patch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
        yield often


def test_the_quickest_is_chosen_once_for_each_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.wsattn import tune

    monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "0")
    with timed(monkeypatch, [3.0, 1.0, 2.0, 4.0]) as often:
        for nk in (64, 64, 128, 64):
            assert tune.choose(*draw(64, nk), SCALE, "ws") == wsattn.CONFIGS[1]
        assert len(often) == 2


# ---------------------------------------------------------------- arguments


def test_on_a_cpu_it_says_what_it_needs() -> None:
    with pytest.raises(wsattn.UnsupportedOption, match=r"needs a Hopper GPU.* this is cpu"):
        wsattn.ws_attention(*draw(64, 64))
    with pytest.raises(wsattn.UnsupportedOption, match="Hopper"):
        wsattn.configuration(*draw(64, 64))


def test_bad_arguments() -> None:
    q, k, v = draw(64, 64)
    for args, options, error, message in [
        ((q, k, v), {"variant": "fast"}, ValueError, "ws, ws_pipelined, not 'fast'"),
        ((q, k, v, 0.0), {}, ValueError, "positive"),
        ((q[0], k, v), {}, ValueError, r"q must be \[B, H, N, D\]"),
        ((q, k[:, :1], v[:, :1]), {}, ValueError, "B, H and D of q"),
        ((q, k, v[:, :, :9]), {}, ValueError, "B, H and D of q"),
        ((q, k[:, :, :0], v[:, :, :0]), {}, ValueError, "no keys"),
        ((q, k.bfloat16(), v), {}, ValueError, "k is torch.bfloat16"),
        ([x.float() for x in (q, k, v)], {}, wsattn.UnsupportedOption, "dtype float32"),
        ([x[..., :64] for x in (q, k, v)], {}, wsattn.UnsupportedOption, "head dimension 64"),
    ]:
        with pytest.raises(error, match=message):
            wsattn.ws_attention(*args, **options)
