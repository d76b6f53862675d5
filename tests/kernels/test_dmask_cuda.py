"""kernels/dmask on a GPU: every mask against float64 with its gradients, exact repeats, large offsets, no waiting."""

from collections.abc import Callable

import pytest
import torch

from kernels.dmask import masked_attention
from tests.gpus import NEEDS_GPU
from tests.kernels import dmask_cases as cases

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240), NEEDS_GPU]
DEVICE = torch.device("cuda")
WIDE = [
    cases.Case("random_2k", 2048, 2048, cases.random(0.5), heads=8, kv_heads=2, dim=128),
    cases.Case("tiles_2k", 2048, 2048, cases.tiles(100), batch=2, heads=4, kv_heads=4, planes=(2, 4), dim=128),
    cases.Case("tiles_2k_dense", 2048, 2048, cases.tiles(1000), heads=4, kv_heads=2, dim=64),
    cases.Case("causal_odd", 1999, 2049, cases.causal, heads=4, dim=128),
    cases.Case("strips_2k", 2048, 2048, cases.strips, heads=4, kv_heads=2, dim=64),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [*cases.CASES, *WIDE], ids=str)
def test_right(case: cases.Case, dtype: torch.dtype) -> None:
    data = cases.draw(case, dtype, DEVICE, seed=1)
    assert cases.wrong(cases.attend(data, case.scale), data, case.scale) == ""


@pytest.mark.parametrize("question", cases.QUESTIONS)
def test_prepass(question: Callable[[str], str]) -> None:
    assert question("cuda") == ""


@pytest.mark.parametrize("case", WIDE, ids=str)
def test_repeats_bit_for_bit(case: cases.Case) -> None:
    data = cases.draw(case, torch.bfloat16, DEVICE, seed=4)
    first = cases.attend(data, None)
    for _ in range(19):
        again = cases.attend(data, None)
        assert all(torch.equal(first[name], again[name]) for name in cases.NAMES)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device() -> None:
    data = cases.draw(WIDE[1], torch.bfloat16, DEVICE, seed=5)
    leaves = [data[name].requires_grad_() for name in ("q", "k", "v")]
    masked_attention(*leaves, data["mask"]).sum().backward()  # compiles
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = masked_attention(*leaves, data["mask"])
        torch.autograd.grad(out, leaves, data["dout"])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_offsets_beyond_32_bits() -> None:
    """A mask of 65600 x 65600 has 4.3 G elements; its last rows and keys against float64."""
    n = 65600
    mask = torch.zeros(1, 1, n, n, dtype=torch.bool, device=DEVICE)
    mask[..., n - 200 :, n - 300 :] = True
    generator = torch.Generator(DEVICE).manual_seed(6)
    q, k, v = (torch.randn(1, n, 1, 64, generator=generator, device=DEVICE, dtype=torch.bfloat16) for _ in "qkv")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = masked_attention(*leaves, mask)
    grads = torch.autograd.grad(out, leaves, q.detach())
    assert not bool(out[0, : n - 200].any())
    part = [
        x.detach()[:, s]
        for x, s in zip((q, k, v), (slice(n - 200, n), slice(n - 300, n), slice(n - 300, n)), strict=True)
    ]
    data = dict(zip(("q", "k", "v"), part, strict=True)) | {"dout": part[0], "mask": mask[..., n - 200 :, n - 300 :]}
    got = {"out": out.detach()[:, n - 200 :], "dq": grads[0][:, n - 200 :]}
    got |= {"dk": grads[1][:, n - 300 :], "dv": grads[2][:, n - 300 :]}
    assert cases.wrong(got, data, None) == ""
