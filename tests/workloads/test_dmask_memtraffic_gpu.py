"""dynamic_mask and memory_traffic with their kernels on a GPU: every cell is right, quick to judge, and has its phases."""

from __future__ import annotations

import importlib
import time
from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker import workload as declared
from abprof.worker.api import Unsupported
from tests.workloads.conftest import cases, load

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
DEVICE = torch.device("cuda")


def cells() -> list[Any]:
    """All of smoke and default, and of full the largest: every pattern at 32768 tokens, memory_traffic whole."""
    chosen = [
        ("dynamic_mask", one) for name in ("smoke", "default") for one in cases(load("dynamic_mask"), name, "cuda")
    ]
    largest = [one for one in cases(load("dynamic_mask"), "full", "cuda") if one["seqlen"] == 32768]
    chosen += [("dynamic_mask", one) for one in largest if one["sparsity"] in (0.0, 0.9)]
    chosen += [("memory_traffic", one) for one in cases(load("memory_traffic"), "full", "cuda")]
    return [pytest.param(load(name), one, id=f"{name}-" + "-".join(map(str, one.values()))) for name, one in chosen]


def few() -> list[tuple[str, dict[str, Any]]]:
    """For the peers, which compile for each shape."""
    masked = [one for one in cases(load("dynamic_mask"), "original", "cuda") if one["sparsity"] in (0.0, 0.5)]
    return [("dynamic_mask", one) for one in masked] + [
        ("memory_traffic", one) for one in cases(load("memory_traffic"), "default", "cuda")
    ]


CELLS = cells()


def package(module: ModuleType) -> ModuleType:
    return importlib.import_module(f"kernels.{module.KERNEL}")


@pytest.mark.parametrize(("module", "one"), CELLS)
def test_cell_is_right(module: ModuleType, one: dict[str, Any]) -> None:
    inputs = module.inputs(one, DEVICE, 3)
    expected = module.reference(one, inputs)
    for variant in getattr(module, "VARIANTS", (None,)):
        op = module.prepare(package(module), variant, one, inputs)
        found = module.check(one, op.call(), expected)
        assert found.ok, f"{variant}: {found.reason}"
        assert declared.facts(module, one, inputs, op)


@pytest.mark.parametrize(
    ("module", "one"),
    [pytest.param(load(n), one, id=f"{n}-{'-'.join(map(str, one.values()))}") for n, one in few()],
)
def test_peers_are_right_where_they_can_be(module: ModuleType, one: dict[str, Any]) -> None:
    """A library may return NaN in rows that see nothing: those cells are rightly `wrong` in a run."""
    inputs = module.inputs(one, DEVICE, 3)
    if "mask" in inputs and not bool(inputs["mask"].any(-1).all()):
        pytest.skip("rows that see nothing")
    expected = module.reference(one, inputs)
    for peer in module.PEERS.values():
        try:
            outputs = peer(one, inputs).call()
        except Unsupported:
            continue
        found = module.check(one, outputs, expected)
        assert found.ok, found.reason


@pytest.mark.parametrize(("module", "one"), CELLS)
def test_inputs_repeat_and_the_reference_takes_seconds_at_most(module: ModuleType, one: dict[str, Any]) -> None:
    inputs, again = (module.inputs(one, DEVICE, 3) for _ in range(2))
    assert all(torch.equal(inputs[name], again[name]) for name in inputs)
    del again
    module.reference(one, inputs)
    torch.cuda.synchronize()
    began = time.perf_counter()
    module.reference(one, inputs)
    torch.cuda.synchronize()
    assert time.perf_counter() - began < 3.0
