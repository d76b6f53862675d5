"""kernels/memtraffic on a GPU: every case against float64, the original's shapes, exact repeats, phases."""

import pytest
import torch

from kernels import memtraffic
from tests.gpus import NEEDS_GPU
from tests.kernels import memtraffic_cases as cases

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240), NEEDS_GPU]
DEVICE = torch.device("cuda")
WIDE = [
    cases.Case("fused", 1536, 128, torch.float16, heads=8),
    cases.Case("fused", 1000, 256, torch.float16, heads=8),
    cases.Case("fused", 2048, 512, torch.float32, 0.2),
    cases.Case("unfused", 1536, 128, torch.float16, heads=8),
    cases.Case("unfused", 1000, 256, torch.bfloat16, heads=8),
    cases.Case("unfused", 2048, 512, torch.float32, 0.2),
]


@pytest.mark.parametrize("case", [*cases.CASES, *WIDE], ids=str)
def test_right_and_repeats_bit_for_bit(case: cases.Case) -> None:
    tensors, visited = cases.draw(case, DEVICE, seed=3), cases.lists(case, DEVICE)
    first = cases.attend(case, tensors, visited)
    assert cases.wrong(case, first, tensors, visited) == ""
    for _ in range(9):
        assert torch.equal(first, cases.attend(case, tensors, visited))


@pytest.mark.parametrize("variant", memtraffic.VARIANTS)
def test_gradients(variant: str) -> None:
    leaves = [t.requires_grad_() for t in cases.draw(WIDE[0], DEVICE, seed=4)]
    dout = torch.randn_like(leaves[0])
    mine = torch.autograd.grad(getattr(memtraffic, variant).full_attention(*leaves), leaves, dout)
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves)
    for one, exact in zip(mine, torch.autograd.grad(expected, leaves, dout), strict=True):
        torch.testing.assert_close(one, exact)
