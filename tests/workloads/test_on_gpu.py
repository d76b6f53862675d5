"""The bundled kernels and the usual peers on a GPU: every cell of `default` and `full` is right, and quick to judge."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker.api import Unsupported
from tests.workloads.conftest import cases, load

pytestmark = pytest.mark.gpu
CELLS = [
    pytest.param(load(name), one, id=f"{name}-" + "-".join(str(one[axis]) for axis in load(name).SEED_COLUMNS))
    for name in ("dense", "block_sparse")
    for preset in ("default", "full")
    for one in cases(load(name), preset, "cuda")
]


@pytest.fixture(scope="module")
def ffa() -> ModuleType:
    package = importlib.import_module("kernels.ffa")
    package.build(verbose=False)
    return package


@pytest.mark.parametrize(("module", "one"), CELLS)
def test_cell_is_right(ffa: ModuleType, module: ModuleType, one: dict[str, Any]) -> None:
    inputs = module.inputs(one, torch.device("cuda"), 3)
    expected = module.reference(one, inputs)
    found = module.check(one, module.prepare(ffa, None, one, inputs).call(), expected)
    assert found.ok, found.reason
    for name in module.DEFAULT_PEERS:
        try:
            op = module.PEERS[name](one, inputs)
        except Unsupported:
            continue
        found = module.check(one, op.call(), expected)
        assert found.ok, found.reason
