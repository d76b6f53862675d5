"""Every peer of every workload on a GPU: right by the workload's own check, forward and backward, or Unsupported by its kind."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker.api import Unsupported
from tests.workloads.conftest import cases, load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
MAY_BE_ABSENT = {"fa4"}


def cells() -> list[Any]:
    found = []
    for name in ("dense", "block_sparse", "hopper_ws", "fmha_scaling"):
        module = load(name)
        for one in cases(module, "default", "cuda"):
            if one.get("N_CTX") != 128:
                found += [pytest.param(module, one, peer, id=f"{name}-{label(one)}-{peer}") for peer in module.PEERS]
    return found


def label(one: dict[str, Any]) -> str:
    axes = ("mask_type", "sparsity_ratio", "q_block_size", "direction", "N_CTX", "seq_len")
    return "-".join(str(one[axis]) for axis in axes if axis in one)


def documents_are_beyond(peer: str, one: dict[str, Any]) -> bool:
    return peer in ("sdpa", "sdpa_flash") and str(one.get("mask_type")).startswith("varlen")


@pytest.mark.parametrize(("module", "one", "peer"), cells())
def test_peer_is_right(module: ModuleType, one: dict[str, Any], peer: str) -> None:
    inputs = module.inputs(one, torch.device("cuda"), 3)
    try:
        op = module.PEERS[peer](one, inputs)
        first = op.call()
    except Unsupported as reason:
        if peer in MAY_BE_ABSENT or documents_are_beyond(peer, one):
            pytest.skip(str(reason))
        raise
    found = module.check(one, first, module.reference(one, inputs))
    assert found.ok, found.reason
    found = module.check(one, op.call(), module.reference(one, inputs))
    assert found.ok, f"when it is called again: {found.reason}"


def test_inputs_that_move_compile_nothing_new() -> None:
    """A run makes inputs and masks again at other addresses; a compilation then would void its epoch."""
    module = load("dense")
    one = next(c for c in cases(module, "default", "cuda") if c["mask_type"] == "varlen_causal")
    made = [module.PEERS["flex"](one, module.inputs(one, torch.device("cuda"), 3)) for _ in range(2)]
    made[0].call()
    torch.compiler.set_stance("fail_on_recompile")
    try:
        made[1].call()
    finally:
        torch.compiler.set_stance("default")
