"""workloads/dynamic_mask.py without its kernel: the patterns' densities, inputs, facts, bands, and its check."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workloads.conftest import cases, load


@pytest.fixture
def masks() -> ModuleType:
    return load("dynamic_mask")


def patterns() -> ModuleType:
    load("dynamic_mask")
    return importlib.import_module("abprof_workloads._patterns")


def small(module: ModuleType, **changes: Any) -> dict[str, Any]:
    one = cases(module, "smoke", "cuda")[0]
    return {**one, "seqlen": 256, "nhq": 2, "nhk": 2, "mask_heads": 2, **changes}


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """A kernel package's function in plain torch, with the probabilities in q's dtype."""
    group = q.shape[2] // k.shape[2]
    wide = [x.float().transpose(1, 2).repeat_interleave(g, 1) for x, g in ((q, 1), (k, group), (v, group))]
    score = wide[0] @ wide[1].transpose(2, 3) * (scale / q.shape[3] ** 0.5)
    p = score.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0) * mask.any(-1, keepdim=True)
    return (p.to(q.dtype).float() @ wide[2]).transpose(1, 2).to(q.dtype)


def judged(module: ModuleType, one: dict[str, Any], attention: Callable[..., Any] = attend) -> Any:
    inputs = module.inputs(one, "cpu", 7)
    outputs = module.prepare(SimpleNamespace(masked_attention=attention), None, one, inputs).call()
    return module.check(one, outputs, module.reference(one, inputs))


@pytest.mark.parametrize(
    ("pattern", "size"),
    [*product(["random", "block", "diagonal", "structured", "dense"], [130, 512]), ("tiles", 512), ("tiles", 1024)],
)
def test_expected_pairs_are_those_that_are_kept(pattern: str, size: int) -> None:
    for s in (0.1, 0.5, 0.9):
        made = patterns().make(pattern, s, size, 8, "cpu", torch.Generator().manual_seed(2))
        found, expected = float(made.sum()) / 8, patterns().expected_pairs(pattern, s, size)
        if pattern in ("random", "structured"):
            assert found == pytest.approx(expected, rel=0.03)
        else:
            assert found == expected


def test_a_cpu_is_unsupported_with_the_reason(masks: ModuleType) -> None:
    assert "need an NVIDIA GPU" in masks.skip(small(masks), torch.device("cpu"))
    assert masks.skip(small(masks), "cuda") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "banded"}, "banded"),
        ({"sparsity": 1.0}, "sparsity=1.0"),
        ({"pattern": "dense", "sparsity": 0.5}, "not 0 for pattern=dense"),
        ({"nhq": 4}, "mask_heads=2 is neither 1"),
        ({"seqlen": 64}, "no more than a tile"),
        ({"nhq": 3, "mask_heads": 1}, "no multiple"),
    ],
)
def test_impossible_cases_have_a_reason(masks: ModuleType, changes: dict[str, Any], message: str) -> None:
    assert message in masks.skip(small(masks, **changes), "cuda")


def test_facts_are_measured(masks: ModuleType) -> None:
    one = small(masks, pattern="tiles", sparsity=0.9, seqlen=512)
    reported = masks.facts(one, masks.inputs(one, "cpu", 1))
    assert reported == {
        "density": 0.125,
        "tiles": 256,
        "masked_tiles": 224,
        "full_tiles": 32,
        "masked_rows": reported["masked_rows"],
        "tier": "High",
    }
    assert reported["masked_rows"] >= 4 * 256, "two squares reach half of the rows at most"


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("pattern", ["random", "block", "diagonal", "structured", "tiles", "dense"])
def test_right_outputs_pass(masks: ModuleType, pattern: str, direction: str) -> None:
    sparsity = 0.0 if pattern == "dense" else 0.7
    for dtype in ("fp16", "bf16"):
        found = judged(masks, small(masks, pattern=pattern, sparsity=sparsity, direction=direction, dtype=dtype))
        assert found.ok, found.reason


def one_tile(mask: torch.Tensor) -> torch.Tensor:
    """Head 1 of the last batch entry loses one 64 x 64 tile."""
    mask = mask.clone()
    mask[-1, -1, 64:128, 128:192] = False
    return mask


def one_row_more(mask: torch.Tensor) -> torch.Tensor:
    """A row of head 0 that should see nothing sees all."""
    mask = mask.clone()
    mask[0, 0, int((~mask[0, 0].any(1)).nonzero()[0])] = True
    return mask


SLIPS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "a tile is left out": ("dense", lambda q, k, v, m: attend(q, k, v, one_tile(m))),
    "the mask is off by a row": ("random", lambda q, k, v, m: attend(q, k, v, m.roll(1, 2))),
    "the mask is transposed": ("random", lambda q, k, v, m: attend(q, k, v, m.mT)),
    "the mask is the other way round": ("random", lambda q, k, v, m: attend(q, k, v, ~m)),
    "another head's mask": ("random", lambda q, k, v, m: attend(q, k, v, m.flip(1))),
    "another batch entry's mask": ("random", lambda q, k, v, m: attend(q, k, v, m.flip(0))),
    "no mask": ("tiles", lambda q, k, v, m: attend(q, k, v, torch.ones_like(m))),
    "no scale": ("block", lambda q, k, v, m: attend(q, k, v, m, 8.0)),
    "a masked row that is not zero": ("block", lambda q, k, v, m: attend(q, k, v, one_row_more(m))),
}


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_found(masks: ModuleType, slip: str, direction: str) -> None:
    pattern, attention = SLIPS[slip]
    one = small(masks, pattern=pattern, sparsity=0.0 if pattern == "dense" else 0.5, direction=direction)
    assert "rows are wrong" in judged(masks, one, attention).reason
