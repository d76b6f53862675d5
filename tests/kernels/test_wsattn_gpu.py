"""wsattn on a Hopper GPU: both variants in every configuration against float64, exact repeats, gradients, tuning, build."""

import pytest
import torch

from kernels import wsattn
from tests.gpus import NEEDS_GPU
from tests.kernels.ffa_cases import judge, poisoned

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240), NEEDS_GPU]
VARIANTS = pytest.mark.parametrize("variant", wsattn.VARIANTS)
CONFIGS = pytest.mark.parametrize("config", wsattn.CONFIGS, ids=lambda c: f"{c.BLOCK_M}x{c.BLOCK_N}")


def draw(nq: int, nk: int, dtype: torch.dtype, heads: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(nq + nk)
    sizes = [(2, heads, n, 128) for n in (nq, nk, nk)]
    return [torch.randn(size, generator=generator, device="cuda").to(dtype) for size in sizes]


def naive(data: list[torch.Tensor], scale: float, dtype: torch.dtype) -> torch.Tensor:
    q, k, v = (x.to(dtype) for x in data)
    return (q @ k.transpose(-1, -2) * scale).softmax(-1) @ v


@VARIANTS
@CONFIGS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("nq", "nk"), [(128, 128), (1024, 1024), (1, 1), (70, 1000), (1000, 70), (333, 2047)])
def test_right(variant: str, config: wsattn.Config, dtype: torch.dtype, nq: int, nk: int) -> None:
    """With the last head of each batch full of NaN, and NaN where the output is not written."""
    data = draw(nq, nk, dtype)
    for tensor in data:
        tensor[:, -1] = torch.nan
    with poisoned():
        got = wsattn.ws_attention(*data, 0.1, variant=variant, config=config)
    torch.cuda.synchronize()
    seen = [x[:, :-1] for x in data]
    assert judge("out", got[:, :-1], naive(seen, 0.1, torch.float64), naive(seen, 0.1, dtype)) == ""


@VARIANTS
@CONFIGS
def test_repeats_bit_for_bit(variant: str, config: wsattn.Config) -> None:
    """Any difference is a race."""
    data = draw(2048, 2048, torch.bfloat16, heads=16)
    first = wsattn.ws_attention(*data, variant=variant, config=config)
    assert all(torch.equal(first, wsattn.ws_attention(*data, variant=variant, config=config)) for _ in range(20))


@VARIANTS
def test_gradients(variant: str) -> None:
    leaves = [x.requires_grad_() for x in draw(300, 300, torch.float16)]
    dout = torch.randn_like(leaves[0])
    got = torch.autograd.grad(wsattn.ws_attention(*leaves, 0.1, variant=variant), leaves, dout)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact = torch.autograd.grad(naive(wide, 0.1, torch.float64), wide, dout.double())
    for a, b in zip(got, exact, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 5e-3


@VARIANTS
def test_offsets_beyond_32_bits(variant: str) -> None:
    """2.4 G elements each: the last head against float64."""
    q, k, v = (torch.randn(1, 9200, 2048, 128, device="cuda", dtype=torch.float16) for _ in range(3))
    out = wsattn.ws_attention(q, k, v, 0.1, variant=variant, config=wsattn.CONFIGS[0])
    last = [x[:, -1:] for x in (q, k, v)]
    exact = naive(last, 0.1, torch.float64)
    assert float((out[:, -1:].double() - exact).norm() / exact.norm()) < 2e-3
