"""docs/adopt: the workloads of public projects judge rightly. Plain torch stands in for the projects, which are not installed."""

import importlib.util
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from tests.tinyrepo import ROOT

FOLDER = ROOT / "docs" / "adopt"
FILES = sorted(FOLDER.glob("*.py"))
Kernel = Callable[..., torch.Tensor]


class LigerRMSNormFunction:
    @staticmethod
    def apply(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], weight, eps)


def rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, bias: None) -> torch.Tensor:
    return (rms_norm(x.float(), x.shape[-1:], weight, 1e-6) * silu(gate.float())).to(x.dtype)


def varlen_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    lengths: torch.Tensor,
    context: int,
    table: torch.Tensor,
) -> torch.Tensor:
    assert starts.tolist() == list(range(len(query) + 1))
    assert lengths.tolist() == [context] * len(query)
    out = []
    for one, pages in zip(query, table.long(), strict=True):
        k, v = (cache[pages].flatten(0, 1).transpose(0, 1).float() for cache in (keys, values))
        out.append(scaled_dot_product_attention(one[:, None].float(), k, v, enable_gqa=True)[:, 0])
    return torch.stack(out).to(query.dtype)


STANDS_IN: dict[str, tuple[str, Any]] = {
    "liger_rms_norm": ("liger_kernel.ops.rms_norm", LigerRMSNormFunction),
    "fla_norm_gate": ("fla.modules.fused_norm_gate", rms_norm_gated),
    "conch_decode": ("conch.ops.attention.varlen_attention", varlen_attention),
    "flaggems_rms_norm": ("flag_gems.ops.rms_norm", rms_norm),
}


@pytest.mark.parametrize("name", STANDS_IN)
def test_a_right_answer_passes_and_a_wrong_one_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, function = STANDS_IN[name]
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    setattr(sys.modules[path], function.__name__, function)
    workload = _load(name)
    case = _first(workload.PRESETS["smoke"])
    inputs = workload.inputs(case, torch.device("cpu"), 3)
    assert parts[0] == workload.KERNEL
    out = workload.prepare(sys.modules[parts[0]], None, case, inputs).call()
    expected = workload.reference(case, inputs)
    good = workload.check(case, out, expected)
    assert good.ok, good.reason
    assert not workload.check(case, out * 1.05, expected).ok
    assert not workload.check(case, out.roll(1, -1), expected).ok


def test_the_page_names_each_of_them_and_they_are_short() -> None:
    assert {path.stem for path in FILES} == set(STANDS_IN)
    section = (ROOT / "docs" / "ADOPT.md").read_text().split("### Four projects, two releases each")[1].split("\n##")[0]
    assert re.findall(r"^abprof dist:\S+ dist:\S+ --workloads (\w+)\.py$", section, re.M) == list(STANDS_IN)
    for path in FILES:
        assert len([line for line in path.read_text().splitlines() if line]) <= 25, path.name


def _first(axes: dict[Any, list[Any]]) -> dict[str, int]:
    """The first case of a matrix; a tuple of axes goes in step."""
    named = [(axis if isinstance(axis, tuple) else (axis,), values[0]) for axis, values in axes.items()]
    return {name: value for names, first in named for name, value in zip(names, _row(first), strict=True)}


def _row(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
