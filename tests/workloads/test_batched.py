"""hopper_ws and fmha_scaling on a stand-in package: matrices, formulas, right answers pass, planted slips are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker.api import Check, Unsupported
from tests.workloads.conftest import cases, load


@dataclass(frozen=True)
class Known:
    """A workload for the tests: a small case by its axes' names, and the kernel's function."""

    name: str
    small: dict[str, Any]
    function: str


KNOWN = [
    Known("fmha_scaling", {"seq_len": 300, "batch": 2, "n_heads": 3, "head_dim": 64, "causal": True}, "fmha"),
    Known("hopper_ws", {"N_CTX": 300, "B": 2, "H": 3, "D": 64, "sm_scale": 0.2}, "ws_attention"),
]


@pytest.fixture(params=KNOWN, ids=lambda known: known.name)
def known(request: pytest.FixtureRequest) -> Known:
    return request.param


@pytest.fixture
def module(known: Known) -> ModuleType:
    return load(known.name)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """Float32 inside, the probabilities in q's dtype."""
    score = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        score = score.masked_fill(~torch.ones_like(score, dtype=torch.bool).tril(), -torch.inf)
    return (score.softmax(-1).to(q.dtype).float() @ v.float()).to(q.dtype)


def package(module: ModuleType, known: Known, one: dict[str, Any], spoil: Callable[..., Any] = attend) -> ModuleType:
    """A kernel package whose function computes `spoil(q, k, v, scale, causal)`, in every variant."""
    made, shape = ModuleType("package"), module.shape(one)
    setattr(made, known.function, lambda q, k, v, *rest, **options: spoil(q, k, v, shape.scale, shape.causal))
    return made


def judged(module: ModuleType, known: Known, one: dict[str, Any], spoil: Callable[..., Any] = attend) -> Check:
    inputs = module.inputs(one, "cpu", 7)
    op = module.prepare(package(module, known, one, spoil), module.VARIANTS[0], one, inputs)
    return module.check(one, op.call(), module.reference(one, inputs))


def small(module: ModuleType, known: Known, **changes: Any) -> dict[str, Any]:
    return {**cases(module, "smoke")[0], **known.small, **changes}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_right_answers_pass_with_room(module: ModuleType, known: Known, dtype: str) -> None:
    tolerance = module._batched._reference.TOLERANCE
    before = tolerance[dtype]
    tolerance[dtype] = before / 2
    try:
        found = judged(module, known, small(module, known, dtype=dtype))
    finally:
        tolerance[dtype] = before
    assert found.ok, found.reason
    assert found.max_abs is not None
    assert 0 < found.max_abs < 0.02


def without_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """The last rows do not see the tile of keys 64..128."""
    kept = torch.cat([torch.arange(64), torch.arange(128, k.shape[2])])
    score = q.float() @ k.float()[:, :, kept].transpose(-1, -2) * scale
    out = attend(q, k, v, scale, causal)
    if causal:
        score = score.masked_fill(kept > torch.arange(q.shape[2])[:, None], -torch.inf)
    out[:, :, 200:] = (score.softmax(-1) @ v.float()[:, :, kept])[:, :, 200:].to(out.dtype)
    return out


def one_nan(*args: Any) -> torch.Tensor:
    out = attend(*args)
    out[1, 2, 33, 5] = torch.nan
    return out


SLIPS: list[tuple[str, Callable[..., Any], str]] = [
    ("scale", lambda q, k, v, s, c: attend(q, k, v, s * 1.05, c), "rows are wrong"),
    ("no mask or another", lambda q, k, v, s, c: attend(q, k, v, s, not c), "rows are wrong"),
    ("a tile of keys left out", without_keys, "rows are wrong"),
    ("heads swapped", lambda *a: attend(*a).flip(1), "rows are wrong"),
    ("batches swapped", lambda *a: attend(*a).flip(0), "rows are wrong"),
    ("one NaN", one_nan, "1 of"),
    ("float32", lambda *a: attend(*a).float(), "torch.float32"),
    ("another layout", lambda *a: attend(*a).transpose(1, 2), "shape"),
    ("two outputs", lambda *a: (attend(*a), None), "one tensor"),
]


@pytest.mark.parametrize(("spoil", "message"), [pytest.param(s, r, id=name) for name, s, r in SLIPS])
def test_slips_are_found(module: ModuleType, known: Known, spoil: Callable[..., Any], message: str) -> None:
    found = judged(module, known, small(module, known), spoil)
    assert not found.ok
    assert message in found.reason


def test_a_missing_option_is_unsupported_and_a_missing_function_an_attribute_error(
    module: ModuleType, known: Known
) -> None:
    one = small(module, known)

    def refuse(*args: Any) -> torch.Tensor:
        raise NotImplementedError("no such thing")

    op = module.prepare(package(module, known, one, refuse), module.VARIANTS[0], one, module.inputs(one, "cpu", 1))
    with pytest.raises(Unsupported, match="no such thing"):
        op.call()
    with pytest.raises(AttributeError, match=known.function):
        module.prepare(ModuleType("empty"), None, one, module.inputs(one, "cpu", 1))
