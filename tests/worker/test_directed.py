"""`kit.directed`: the forward, or the gradients, of one function."""

from typing import Any

import pytest
import torch

from abprof.kit import compare, directed
from abprof.worker.api import Unsupported


def norm(given: Any) -> torch.Tensor:
    x: torch.Tensor = given["x"]
    y: torch.Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * given["weight"]
    return y


def inputs(seed: int = 0) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(4, 8, generator=draw), "weight": torch.rand(8, generator=draw), "rows": torch.arange(4)}


class Eager(torch.autograd.Function):
    """Its backward writes the gradient over the one it was given, as some kernels do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return dy.mul_(2 * x)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("fresh", [False, True])
def test_outputs_and_gradients_are_those_of_the_reference(direction: str, fresh: bool) -> None:
    case, given = {"direction": direction}, inputs()
    op = directed(case, given, norm, fresh=fresh)
    expected = directed(case, inputs(), norm, dtype=torch.float64).call()
    for _ in range(2):
        op.restore()
        assert compare(op.call(), expected, rtol=1e-5, atol=0).ok
    other = directed(case, inputs(1), norm, dtype=torch.float64).call()
    assert not compare(op.call(), other, rtol=1e-5, atol=0).ok
    assert given["x"].equal(inputs()["x"])


def test_the_gradient_above_may_be_given() -> None:
    given = {**inputs(), "dout": torch.full((4, 8), 2.0)}
    (got,) = directed({"direction": "bwd"}, given, lambda t: t["x"] * 3, wrt=["x"]).call()
    assert got.equal(torch.full((4, 8), 6.0))


def test_a_loss_has_the_gradient_one_and_lists_are_inputs_too() -> None:
    given = {"xs": [torch.ones(3), torch.ones(3)]}
    got = directed({"direction": "bwd"}, given, lambda t: (t["xs"][0] * 2 + t["xs"][1] * 5).sum()).call()
    assert [one.tolist() for one in got] == [[2.0] * 3, [5.0] * 3]


def test_fresh_serves_a_kernel_that_writes_over_its_inputs() -> None:
    case = {"direction": "bwd"}
    expected = directed(case, {"x": torch.arange(1.0, 5)}, lambda t: t["x"] ** 2, dtype=torch.float64).call()
    for fresh in (False, True):
        op, right = directed(case, {"x": torch.arange(1.0, 5)}, lambda t: Eager.apply(t["x"]), fresh=fresh), []
        for _ in range(3):
            op.restore()
            right.append(compare([one.clone() for one in op.call()], expected, rtol=1e-5, atol=0).ok)
        assert right == [True, fresh, fresh]


def test_what_is_not_differentiable_is_named() -> None:
    with pytest.raises(ValueError, match=r"name those that have one, wrt=\('x',\)"):
        directed({"direction": "bwd"}, inputs(), lambda t: t["x"] * 2).call()
    with pytest.raises(ValueError, match="no output has a gradient"):
        directed({"direction": "bwd"}, inputs(), lambda t: t["x"].detach())
    with pytest.raises(Unsupported, match="direction=both"):
        directed({"direction": "both"}, inputs(), norm)
