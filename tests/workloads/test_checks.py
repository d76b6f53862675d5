"""The whole contract on a stand-in package: right answers pass, and every planted slip is found and named."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker.api import Check
from tests.workloads import standin
from tests.workloads.conftest import case, cases, load

LOW = pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
CELLS = [
    pytest.param(load(name), one, id=f"{name}-{one.get('mask_type', one.get('sparsity_ratio'))}-{one['direction']}")
    for name in ("dense", "block_sparse")
    for one in cases(load(name), "smoke")
]


def judged(module: ModuleType, one: dict[str, Any], spoil: Callable[[Any], Any] = lambda outputs: outputs) -> Check:
    """One cell on the stand-in: inputs, call, reference, check."""
    inputs = module.inputs(one, "cpu", 7)
    outputs = module.prepare(standin, None, one, inputs).call()
    return module.check(one, spoil(outputs), module.reference(one, inputs))


@pytest.mark.parametrize(("module", "one"), CELLS)
def test_every_smoke_cell_passes(module: ModuleType, one: dict[str, Any]) -> None:
    found = judged(module, one)
    assert found.ok, found.reason
    assert found.max_abs is not None
    assert 0 < found.max_abs < 1e-4
    assert found.max_rel is not None
    assert 0 < found.max_rel < 1e-5


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_dtype_passes_with_room(either: ModuleType, dtype: str, direction: str) -> None:
    """Within half of the tolerance too, so that no correct kernel fails on another seed."""
    one = case(either, dtype=dtype, direction=direction, nhq=4, nhk=2)
    reference = either._reference
    tolerance = reference.TOLERANCE[dtype]
    reference.TOLERANCE[dtype] = tolerance / 2
    try:
        found = judged(either, one)
    finally:
        reference.TOLERANCE[dtype] = tolerance
    assert found.ok, found.reason


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("scale", [8.0, 0.97])
def test_wrong_scale_is_found(either: ModuleType, dtype: str, direction: str, scale: float) -> None:
    """8 is a scale left out at hd 64."""
    with standin.slip(scale=scale):
        assert "rows are wrong" in judged(either, case(either, dtype=dtype, direction=direction)).reason


@LOW
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_one_missing_block_of_one_row_of_one_head_is_found(
    block_sparse: ModuleType, dtype: str, direction: str
) -> None:
    with standin.slip(drop_block=(1, 3)):
        found = judged(block_sparse, case(block_sparse, dtype=dtype, direction=direction, sparsity_ratio=1.0))
    assert "rows are wrong" in found.reason


def one_value(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Put the value at one place."""

    def spoil(out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[33, 1, 2] = value
        return out

    return spoil


SPOILS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], str]] = [
    ("one NaN", one_value(torch.nan), "1 of"),
    ("one infinity", one_value(torch.inf), "1 of"),
    ("one value off", one_value(3.0), "1 of"),
    ("wrong shape", lambda t: t[:-1], "shape"),
    ("heads first", lambda t: t.transpose(0, 1), "shape"),
    ("wrong dtype", lambda t: t.double(), "torch.float64"),
    ("zeros", torch.zeros_like, "rows are wrong"),
    ("last head untouched", lambda t: torch.cat([t[:, :-1], torch.zeros_like(t[:, -1:])], 1), "rows are wrong"),
    ("last row untouched", lambda t: torch.cat([t[:-1], torch.zeros_like(t[-1:])]), "rows are wrong"),
    ("heads swapped", lambda t: t.flip(1), "rows are wrong"),
]


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize(("spoil", "message"), [pytest.param(s, r, id=name) for name, s, r in SPOILS])
def test_spoilt_outputs_are_found(
    either: ModuleType, index: int, spoil: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    def one_of(outputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [spoil(out) if i == index else out for i, out in enumerate(outputs)]

    found = judged(either, case(either, direction="bwd"), one_of)
    assert not found.ok
    assert message in found.reason
    assert found.reason.startswith(("dq", "dk", "dv")[index])
