"""The ladder on a GPU: every rung against float64, exact repeats, gradients, tensors beyond 32-bit offsets."""

import pytest
import torch

from kernels import ladder
from tests.gpus import NEEDS_GPU
from tests.kernels.ladder_cases import Case, every_case, naive, wrong

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240), NEEDS_GPU]
RUNGS = pytest.mark.parametrize("rung", ladder.VARIANTS)
LONG = [
    Case(2048, 128, True, torch.float16),
    Case(1999, 128, False, torch.bfloat16),
    Case(1025, 64, True, torch.bfloat16),
]


@pytest.fixture(autouse=True)
def _only_rungs_that_can_run(request: pytest.FixtureRequest) -> None:
    """Those of cuTile where its package is there."""
    rung = request.node.callspec.params.get("rung", "") if hasattr(request.node, "callspec") else ""
    if rung in ladder.CUTILE_RUNGS:
        q = torch.zeros(1, 1, 64, 64, device="cuda", dtype=torch.float16)
        try:
            ladder.fmha(q, q, q, rung=rung)
        except ladder.UnsupportedOption as reason:
            pytest.skip(str(reason))


@RUNGS
@pytest.mark.parametrize("case", [*every_case(), *LONG], ids=str)
def test_right(case: Case, rung: str) -> None:
    assert wrong(case, rung, "cuda") == ""


@RUNGS
def test_repeats_bit_for_bit(rung: str) -> None:
    q, k, v = (torch.randn(2, 4, 1500, 128, device="cuda", dtype=torch.float16) for _ in range(3))
    first = ladder.fmha(q, k, v, rung=rung)
    assert all(torch.equal(first, ladder.fmha(q, k, v, rung=rung)) for _ in range(20))


@pytest.mark.parametrize("causal", [True, False])
def test_gradients(causal: bool) -> None:
    leaves = [torch.randn(1, 2, 300, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
    dout = torch.randn(1, 2, 300, 64, device="cuda", dtype=torch.float16)
    got = torch.autograd.grad(ladder.fmha(*leaves, causal=causal), leaves, dout)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact = torch.autograd.grad(naive(*wide, 64**-0.5, causal, torch.float64), wide, dout.double())
    for a, b in zip(got, exact, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 5e-3
