"""What is timed: the call alone, repeatable, and typed when the package cannot do it."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from abprof.worker.api import Op, Unsupported
from tests.workloads import standin
from tests.workloads.conftest import case


def test_forward_records_no_gradients(either: ModuleType) -> None:
    one = case(either)
    assert not either.prepare(standin, None, one, either.inputs(one, "cpu", 1)).call().requires_grad


def test_backward_can_be_called_again_and_gives_the_same(either: ModuleType) -> None:
    one = case(either, direction="bwd")
    inputs = either.inputs(one, "cpu", 1)
    op: Op = either.prepare(standin, None, one, inputs)
    first, second = op.call(), op.call()
    assert len(first) == 3
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(inputs[name].grad is None for name in ("q", "k", "v"))


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_an_option_the_kernel_lacks_is_unsupported(block_sparse: ModuleType, direction: str) -> None:
    one = case(block_sparse, swap_ab=True, direction=direction)
    with pytest.raises(Unsupported, match="swap_ab is not here"):
        block_sparse.prepare(standin, None, one, block_sparse.inputs(one, "cpu", 1)).call()


def test_a_package_without_the_function_raises_attribute_error(either: ModuleType) -> None:
    one = case(either)
    with pytest.raises(AttributeError, match="ffa_"):
        either.prepare(ModuleType("empty"), None, one, either.inputs(one, "cpu", 1))


def test_a_variant_is_an_attribute_with_the_same_functions(either: ModuleType) -> None:
    package = ModuleType("package")
    package.fast = standin  # type: ignore[attr-defined]
    one = case(either)
    inputs = either.inputs(one, "cpu", 1)
    found = either.prepare(package, "fast", one, inputs).call()
    assert torch.equal(found, either.prepare(standin, None, one, inputs).call())
    with pytest.raises(AttributeError, match="slow"):
        either.prepare(package, "slow", one, inputs)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("mask_type", ["full", "causal"])
@pytest.mark.parametrize("nhk", [2, 4])
def test_sdpa_passes_the_same_check(dense: ModuleType, direction: str, mask_type: str, nhk: int) -> None:
    one = case(dense, direction=direction, mask_type=mask_type, nhk=nhk)
    inputs = dense.inputs(one, "cpu", 7)
    found = dense.check(one, dense.PEERS["sdpa"](one, inputs).call(), dense.reference(one, inputs))
    assert found.ok, found.reason


def test_sdpa_has_no_documents(dense: ModuleType) -> None:
    one = case(dense, mask_type="varlen_full")
    with pytest.raises(Unsupported, match="documents"):
        dense.PEERS["sdpa"](one, dense.inputs(one, "cpu", 7))
