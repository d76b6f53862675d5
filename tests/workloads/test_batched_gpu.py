"""hopper_ws and fmha_scaling on a GPU: every cell of `default` and some of `full` is right, and so is the usual peer."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker.api import Unsupported
from tests.workloads.conftest import cases, load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def cells() -> list[Any]:
    found = []
    for name in ("hopper_ws", "fmha_scaling"):
        module = load(name)
        wanted = [
            *cases(module, "default", "cuda"),
            *cases(module, "full", "cuda")[::3],
            cases(module, "full", "cuda")[-1],
        ]
        unique = {tuple(one.items()): one for one in wanted}.values()
        found += [pytest.param(module, one, id=f"{name}-" + "-".join(map(str, one.values()))) for one in unique]
    return found


@pytest.mark.parametrize(("module", "one"), cells())
def test_cell_is_right(module: ModuleType, one: dict[str, Any]) -> None:
    device = torch.device("cuda")
    reason = module.skip(one, device)
    if reason:
        pytest.skip(reason)
    inputs = module.inputs(one, device, 3)
    expected = module.reference(one, inputs)
    kernel = importlib.import_module(f"kernels.{module.KERNEL}")
    ops = {variant: module.prepare(kernel, variant, one, inputs) for variant in module.VARIANTS}
    ops |= {name: module.PEERS[name](one, inputs) for name in module.DEFAULT_PEERS}
    right = []
    for name, op in ops.items():
        try:
            found = module.check(one, op.call(), expected)
        except Unsupported:
            if not name.startswith("cutile"):  # its package is not everywhere
                raise
            continue
        assert found.ok, f"{name}: {found.reason}"
        right.append(name)
    assert len(right) >= 3
