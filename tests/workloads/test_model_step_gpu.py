"""The training step on a GPU: with ffa and with torch's attention, at the sizes of `default` and of `full`'s ends."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from tests.workloads.conftest import cases, load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
STEP = load("model_step")
CELLS = [*cases(STEP, "default", "cuda"), *cases(STEP, "full", "cuda")[::2]]


@pytest.mark.parametrize("one", CELLS, ids=lambda one: f"{one['seqlen']}-{one['width']}")
def test_cell_is_right(one: dict[str, Any]) -> None:
    inputs = STEP.inputs(one, torch.device("cuda"), 3)
    expected = STEP.reference(one, inputs)
    ffa = importlib.import_module("kernels.ffa")
    for name, op in {"ffa": STEP.prepare(ffa, None, one, inputs), "sdpa": STEP.PEERS["sdpa"](one, inputs)}.items():
        op.reset()
        found = STEP.check(one, op.call(), expected)
        assert found.ok, f"{name}: {found.reason}"
