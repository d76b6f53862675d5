"""Load the bundled workloads with the worker's own loader, and write out their matrices."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch

from abprof.worker.api import Check
from abprof.worker.workload import load as workload

FOLDER = Path(__file__).parents[2] / "workloads"


def load(name: str) -> ModuleType:
    return workload(name, str(FOLDER / f"{name}.py"))


def cases(module: ModuleType, preset: str, device: str = "cpu") -> list[dict[str, Any]]:
    """The preset's matrix, written out independently of abprof's own expansion."""
    axes = module.PRESETS[preset]
    axes = axes(device) if callable(axes) else axes
    names = [name for key in axes for name in ([key] if isinstance(key, str) else key)]
    points = product(*([(v,) if isinstance(key, str) else v for v in values] for key, values in axes.items()))
    return [dict(zip(names, sum(map(tuple, point), ()), strict=True)) for point in points]


def case(module: ModuleType, preset: str = "smoke", **changes: Any) -> dict[str, Any]:
    """The preset's first case with some axes changed; a smoke case has 256 tokens by default."""
    shorter = {"seqlen": 256} if preset == "smoke" else {}
    return {**cases(module, preset)[0], **shorter, **changes}


def judged(
    module: ModuleType, one: dict[str, Any], package: Any, spoil: Callable[[Any], Any] = lambda outputs: outputs
) -> Check:
    """One cell on this kernel package: inputs, call, reference, check."""
    inputs = module.inputs(one, "cpu", 7)
    op = module.prepare(package, getattr(module, "VARIANTS", [None])[0], one, inputs)
    op.restore()
    return module.check(one, spoil(op.call()), module.reference(one, inputs))


@contextmanager
def half_the_tolerance(reference: Any, dtype: str) -> Iterator[None]:
    """Right answers must pass with room, so that no correct kernel fails on another seed."""
    with mock.patch.dict(reference.TOLERANCE, {dtype: reference.TOLERANCE[dtype] / 2}):
        yield


@pytest.fixture(params=["dense", "block_sparse"])
def either(request: pytest.FixtureRequest) -> ModuleType:
    return load(request.param)


@pytest.fixture
def dense() -> ModuleType:
    return load("dense")


@pytest.fixture
def block_sparse() -> ModuleType:
    return load("block_sparse")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """These tensors are small: a second thread mostly spins, which is dear when tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
