"""The training step: with the bundled kernels on a CPU, against autograd by hand, slips found, weights put back."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from abprof.worker.api import Check
from tests.workloads import standin
from tests.workloads.conftest import cases, load


@pytest.fixture
def step() -> ModuleType:
    return load("model_step")


def small(step: ModuleType, **changes: Any) -> dict[str, Any]:
    return {**cases(step, "smoke")[0], **changes}


def judged(step: ModuleType, one: dict[str, Any], package: Any = standin) -> Check:
    inputs = step.inputs(one, "cpu", 7)
    op = step.prepare(package, None, one, inputs)
    op.reset()
    return step.check(one, op.call(), step.reference(one, inputs))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("seqlen", [256, 100])
def test_right_answers_pass_with_room(step: ModuleType, dtype: str, seqlen: int) -> None:
    found = judged(step, small(step, dtype=dtype, seqlen=seqlen))
    assert found.ok, found.reason
    assert found.max_rel is not None
    assert 0 < found.max_rel < step.TOLERANCE[dtype] / 2


@pytest.mark.parametrize("peer", ["sdpa"])
def test_the_peer_takes_the_same_step(step: ModuleType, peer: str) -> None:
    one = small(step)
    inputs = step.inputs(one, "cpu", 7)
    op = step.PEERS[peer](one, inputs)
    found = step.check(one, op.call(), step.reference(one, inputs))
    assert found.ok, found.reason


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("slip", [{"scale": 1.3}, {"shift": 1}, {"shift": -1}, {"drop_keys": 16}], ids=str)
def test_slips_of_the_attention_are_found(step: ModuleType, dtype: str, slip: dict[str, Any]) -> None:
    with standin.slip(**slip):
        found = judged(step, small(step, dtype=dtype))
    assert not found.ok
    assert "off by" in found.reason
