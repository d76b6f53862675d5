"""wsattn without a GPU: arguments, the choice of a configuration, its kernels in the emulator, their machine code."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from kernels import wsattn

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def draw(nq: int, nk: int, dtype: torch.dtype = torch.float16, heads: int = 2) -> list[torch.Tensor]:
    """q, k, v of [1, heads, N, 128]; all of the last head is NaN, which the others must not notice."""
    generator = torch.Generator().manual_seed(nq * 1000 + nk)
    made = [torch.randn(1, heads, n, 128, generator=generator).to(dtype) for n in (nq, nk, nk)]
    for tensor in made:
        tensor[:, -1] = torch.nan
    return made


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
