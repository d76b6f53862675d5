"""The peers without a GPU: masks and layouts through uncompiled or stand-in libraries, and the reasons where one is absent."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker.api import Check
from tests.workloads.conftest import case, load

MASKS = pytest.mark.parametrize("mask_type", ["full", "causal", "varlen_full", "varlen_causal"])


@pytest.fixture
def peers(dense: ModuleType) -> ModuleType:
    return dense._peers


def judged(module: ModuleType, name: str, one: dict[str, Any]) -> Check:
    inputs = module.inputs(one, "cpu", 7)
    return module.check(one, module.PEERS[name](one, inputs).call(), module.reference(one, inputs))


@MASKS
@pytest.mark.parametrize("name", ["flex", "flex_tma"])
def test_flex_has_the_same_mask(
    dense: ModuleType, peers: ModuleType, mask_type: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncompiled flex_attention, which goes by the mask function and has no backward here."""
    from torch.nn.attention.flex_attention import flex_attention

    requested: list[tuple[Any, ...]] = []

    def eager(*args: Any, kernel_options: Any, **rest: Any) -> torch.Tensor:
        requested.append((kernel_options, rest["enable_gqa"]))
        return flex_attention(*args, **rest)

    monkeypatch.setattr(peers, "compiled_flex", lambda device, autotune: eager)
    found = judged(dense, name, case(dense, mask_type=mask_type, nhk=2))
    assert found.ok, found.reason
    assert requested[0] == ({"USE_TMA": True} if name == "flex_tma" else None, True)


@pytest.mark.parametrize("blocks", [(64, 64), (128, 64), (128, 128)])
def test_flex_is_given_the_same_lists_of_blocks(block_sparse: ModuleType, blocks: tuple[int, int]) -> None:
    one = case(block_sparse, seqlen=1024, nhq=4, nhk=2, q_block_size=blocks[0], k_block_size=blocks[1])
    inputs = block_sparse.inputs(one, "cpu", 3)
    mask = block_sparse._peers.block_mask(inputs["kv_num"], inputs["kv_indices"], *blocks, 1024, 2)
    kept = torch.zeros(2, 1024 // blocks[0], 1024 // blocks[1], dtype=torch.int32)
    kept.scatter_(2, inputs["kv_indices"].long(), 1)
    assert torch.equal(mask.to_dense()[0].int(), kept.repeat_interleave(2, 0))
    assert tuple(mask.BLOCK_SIZE) == blocks
    assert int(mask.kv_num_blocks.sum()) == 0, "all blocks are whole: none takes a mask function"


def test_every_run_measures_at_most_the_quick_peer() -> None:
    """The rest compile for many seconds, or need --peer."""
    for name in ("dense", "hopper_ws", "fmha_scaling"):
        assert load(name).DEFAULT_PEERS == ("sdpa",)
        assert {"sdpa", "sdpa_flash", "flex", "flex_tma", "fa4"} <= set(load(name).PEERS)
    assert load("block_sparse").DEFAULT_PEERS == ()
    assert set(load("dense").PEERS) == set(load("dense")._peers.NAMES)
