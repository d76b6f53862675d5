"""The peers without a GPU: masks and layouts through uncompiled or stand-in libraries, and what is said where one is absent."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch

from abprof.worker.api import Check, Unsupported
from tests.workloads.conftest import case, cases, load

MASKS = pytest.mark.parametrize("mask_type", ["full", "causal", "varlen_full", "varlen_causal"])
DIRECTIONS = pytest.mark.parametrize("direction", ["fwd", "bwd"])


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

    asked: list[tuple[Any, ...]] = []

    def eager(*args: Any, kernel_options: Any, **rest: Any) -> torch.Tensor:
        asked.append((kernel_options, rest["enable_gqa"]))
        return flex_attention(*args, **rest)

    monkeypatch.setattr(peers, "compiled_flex", lambda device, autotune: eager)
    found = judged(dense, name, case(dense, mask_type=mask_type, nhk=2))
    assert found.ok, found.reason
    assert asked[0] == ({"USE_TMA": True} if name == "flex_tma" else None, True)


@MASKS
def test_flex_visits_the_blocks_that_the_documents_touch(dense: ModuleType, peers: ModuleType, mask_type: str) -> None:
    one = case(dense, mask_type=mask_type, seqlen=1000)
    documents = tuple(dense.lengths(mask_type, 1000))
    problem = peers.Problem(documents, mask_type.endswith("causal"), torch.device("cpu"))
    mask = peers._document_mask(problem)
    if mask_type == "full":
        assert mask is None
        return
    intervals = dense.row_intervals(one, torch.device("cpu"))
    pairs = torch.nn.functional.pad(intervals.allowed(0, torch.arange(1000)), (0, 24, 0, 24))
    touched = pairs.unflatten(0, (8, 128)).unflatten(2, (8, 128)).any(3).any(1)
    assert torch.equal(mask.to_dense()[0, 0].bool(), touched)
    assert peers._document_mask(problem) is mask, "made once, however often inputs move"


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


@DIRECTIONS
@pytest.mark.parametrize("block", [64, 128])
def test_flex_on_small_blocks_is_told_tiles_that_fit(
    block_sparse: ModuleType, direction: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    calls: list[bool] = []

    def fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **rest: Any) -> torch.Tensor:
        asked.append(rest["kernel_options"])
        return q + k + v

    def compiled(device: torch.device, autotune: bool) -> Any:
        calls.append(autotune)
        return fake

    monkeypatch.setattr(block_sparse._peers, "compiled_flex", compiled)
    one = case(block_sparse, seqlen=512, nhk=4, q_block_size=block, k_block_size=block, direction=direction)
    block_sparse.PEERS["flex"](one, block_sparse.inputs(one, "cpu", 3)).call()
    assert asked[0] == ({"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64} if block == 64 else None)
    assert set(calls) == {direction == "bwd" and block == 64}


def test_what_the_compiler_cannot_do_is_unsupported(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import Unsupported as Refused

    def raising(error: Exception) -> Any:
        def compiled(*args: Any, **rest: Any) -> None:
            raise error

        return lambda device, autotune: compiled

    q = torch.zeros(1, 1, 8, 8)
    monkeypatch.setattr(peers, "compiled_flex", raising(Refused("no such\nthing")))
    with pytest.raises(Unsupported, match=r"flex_attention cannot be compiled for this case: no such$"):
        peers.flex(None, torch.device("cpu"), tma=False)(q, q, q)
    monkeypatch.setattr(peers, "compiled_flex", raising(ZeroDivisionError("a slip")))
    with pytest.raises(ZeroDivisionError):
        peers.flex(None, torch.device("cpu"), tma=False)(q, q, q)


def by_documents(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: torch.Tensor, causal: bool, scale: float | None
) -> torch.Tensor:
    """Each document by torch's attention; [N, H, D]."""
    assert ends.dtype == torch.int32
    parts = []
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        some = [x[begin:end].transpose(0, 1)[None] for x in (q, k, v)]
        grouped = q.shape[1] != k.shape[1]
        out = torch.nn.functional.scaled_dot_product_attention(*some, is_causal=causal, scale=scale, enable_gqa=grouped)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def varlen_with_window(
    q: Any,
    k: Any,
    v: Any,
    cu_q: Any,
    cu_k: Any,
    max_q: int,
    max_k: int,
    *,
    scale: Any = None,
    window_size: Any = (-1, -1),
) -> torch.Tensor:
    assert torch.equal(cu_q, cu_k)
    assert max_q == max_k == int(cu_q.diff().max())
    return by_documents(q, k, v, cu_q, {(-1, -1): False, (-1, 0): True}[window_size], scale)


def varlen_with_flag(
    q: Any,
    k: Any,
    v: Any,
    cu_q: Any,
    cu_k: Any,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    return_aux: Any = None,
) -> torch.Tensor:
    return by_documents(q, k, v, cu_q, is_causal, None)


@MASKS
@DIRECTIONS
@pytest.mark.parametrize("library", [varlen_with_window, varlen_with_flag])
def test_varlen_attn_is_given_the_documents(
    dense: ModuleType, peers: ModuleType, library: Any, mask_type: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch 2.11 and later, and as 2.10, call it."""
    monkeypatch.setattr(peers, "_on_gpu", lambda what, device: None)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", library)
    found = judged(dense, "varlen_attn", case(dense, mask_type=mask_type, direction=direction, nhk=2))
    assert found.ok, found.reason


@MASKS
def test_flash_attention_4_is_given_the_documents(
    dense: ModuleType, peers: ModuleType, mask_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(q: Any, k: Any, v: Any, *, softmax_scale: Any, causal: bool) -> tuple[torch.Tensor, None]:
        """[B, N, H, D]."""
        ends = torch.tensor([0, q.shape[1]], dtype=torch.int32)
        return by_documents(q[0], k[0], v[0], ends, causal, softmax_scale)[None], None

    def varlen(q: Any, k: Any, v: Any, *, softmax_scale: Any, causal: bool, **lengths: Any) -> torch.Tensor:
        assert lengths["max_seqlen_q"] == lengths["max_seqlen_k"] == int(lengths["cu_seqlens_k"].diff().max())
        return by_documents(q, k, v, lengths["cu_seqlens_q"], causal, softmax_scale)

    library = ModuleType("flash_attn.cute")
    library.flash_attn_func, library.flash_attn_varlen_func = whole, varlen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", library)
    monkeypatch.setattr(peers, "_on_gpu", lambda what, device: None)
    found = judged(dense, "fa4", case(dense, mask_type=mask_type, nhk=2))
    assert found.ok, found.reason


def test_flash_attention_4_that_is_not_installed_says_so(
    dense: ModuleType, peers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_on_gpu", lambda what, device: None)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    with pytest.raises(Unsupported, match=r"flash-attn-4\) is not installed"):
        judged(dense, "fa4", case(dense))


@pytest.mark.parametrize("name", ["dense", "block_sparse", "hopper_ws", "fmha_scaling"])
def test_on_a_cpu_every_peer_but_sdpa_says_why_not(name: str) -> None:
    module = load(name)
    one = {**cases(module, "smoke")[0]}
    inputs = module.inputs(one, "cpu", 1)
    for peer in set(module.PEERS) - {"sdpa"}:
        with pytest.raises(Unsupported, match="is measured on GPUs, and this is cpu"):
            module.PEERS[peer](one, inputs)


def test_every_run_measures_at_most_the_quick_peer() -> None:
    """The rest compile for many seconds, or are asked for by --peer."""
    for name in ("dense", "hopper_ws", "fmha_scaling"):
        assert load(name).DEFAULT_PEERS == ("sdpa",)
        assert {"sdpa", "sdpa_flash", "flex", "flex_tma", "fa4"} <= set(load(name).PEERS)
    assert load("block_sparse").DEFAULT_PEERS == ()
    assert set(load("dense").PEERS) == set(load("dense")._peers.NAMES)


def test_documents_are_one_sequence(peers: ModuleType) -> None:
    batch = torch.zeros(2, 1, 8, 8)
    with pytest.raises(Unsupported, match="a batch"):
        peers._by_tokens(partial(pytest.fail, "called"))(batch, batch, batch)
