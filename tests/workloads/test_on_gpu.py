"""The bundled kernels and the usual peers on a GPU: every cell of `default` and `full`'s ends are right."""

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
FULL = {
    "dense": 1,
    "block_sparse": 1,
    "hopper_ws": 3,
    "fmha_scaling": 3,
    "model_step": 2,
}  # every first, second or third cell of `full`


def cells() -> list[Any]:
    found = []
    for name, step in FULL.items():
        module = load(name)
        full = cases(module, "full", "cuda")
        wanted = [*cases(module, "default", "cuda"), *full[::step], full[-1]]
        unique = {tuple(one.items()): one for one in wanted}.values()
        found += [pytest.param(module, one, id=f"{name}-" + "-".join(map(str, one.values()))) for one in unique]
    return found


@pytest.mark.parametrize(("module", "one"), cells())
def test_cell_is_right(module: ModuleType, one: dict[str, Any]) -> None:
    device = torch.device("cuda")
    reason = module.skip(one, device) if hasattr(module, "skip") else None
    if reason:
        pytest.skip(reason)
    inputs = module.inputs(one, device, 3)
    expected = module.reference(one, inputs)
    kernel = importlib.import_module(f"kernels.{module.KERNEL}")
    if hasattr(kernel, "build"):
        kernel.build(verbose=False)
    variants, peers = getattr(module, "VARIANTS", [None]), getattr(module, "DEFAULT_PEERS", module.PEERS)
    ops = {name: lambda name=name: module.prepare(kernel, name, one, inputs) for name in variants}
    ops |= {name: lambda name=name: module.PEERS[name](one, inputs) for name in peers}
    for name, make in ops.items():
        try:
            op = make()
            if op.reset:
                op.reset()
            found = module.check(one, op.call(), expected)
        except Unsupported:
            if name in variants and not str(name).startswith("cutile"):  # its package is not everywhere
                raise
            continue
        assert found.ok, f"{name}: {found.reason}"
