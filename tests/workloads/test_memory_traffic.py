"""workloads/memory_traffic.py without its kernels: matrices, BigBird's lists, formulas, and its check."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workloads.conftest import cases, load


@pytest.fixture
def traffic() -> ModuleType:
    return load("memory_traffic")


FLASH2 = {"subject": "flash2", "seqlen": 256, "batch": 2, "nhq": 2, "hd": 64, "dtype": "fp16"}
BIGBIRD = {"subject": "bigbird", "seqlen": 768, "batch": 2, "nhq": 1, "hd": 128, "dtype": "fp32"}
Attend = Callable[..., torch.Tensor]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    score = q.float() @ k.float().mT / q.shape[3] ** 0.5
    score = score if mask is None else score.masked_fill(~mask, -torch.inf)
    return (score.softmax(-1).to(q.dtype).float() @ v.float()).to(q.dtype)


def package(function: Attend) -> Any:
    """A kernel package whose variants both compute `function(q, k, v, mask)`."""

    def blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: tuple[torch.Tensor, ...]) -> torch.Tensor:
        n = q.shape[2] // 64
        seen = torch.zeros(n, n, dtype=torch.bool)
        for i in range(n):
            seen[i, lists[2][int(lists[0][i]) : int(lists[0][i + 1])].long()] = True
        return function(q, k, v, seen.repeat_interleave(64, 0).repeat_interleave(64, 1))

    both = SimpleNamespace(full_attention=function, block_attention=blocks)
    return SimpleNamespace(fused=both, unfused=both, BlockLists=lambda *parts: parts)


def judged(module: ModuleType, one: dict[str, Any], function: Attend = attend) -> Any:
    inputs = module.inputs(one, "cpu", 7)
    out = module.prepare(package(function), "fused", one, inputs).call()
    return module.check(one, out, module.reference(one, inputs))


def test_full_has_the_originals_shapes(traffic: ModuleType) -> None:
    full = cases(traffic, "full", "cuda")
    flash2 = {(c["seqlen"], c["hd"]) for c in full if c["subject"] == "flash2"}
    assert flash2 == {(n, d) for n in (128, 256, 512, 768, 1024, 1536, 2048, 4096) for d in (128, 256)}
    assert {(c["batch"], c["nhq"], c["dtype"]) for c in full if c["subject"] == "flash2"} == {(32, 8, "fp16")}
    bigbird = [tuple(c.values()) for c in full if c["subject"] == "bigbird"]
    assert bigbird == [("bigbird", n, 32, 1, 512, "fp32") for n in (4096, 8192)]
    assert len(full) == 18


def test_impossible_cases_have_a_reason(traffic: ModuleType) -> None:
    assert "longformer" in traffic.skip({**FLASH2, "subject": "longformer"}, "cpu")
    assert "no multiple of the block, 64" in traffic.skip({**FLASH2, "seqlen": 100}, "cpu")
    assert "fp4" in traffic.skip({**FLASH2, "dtype": "fp4"}, "cpu")


def test_least_traffic_of_flash2_by_hand(traffic: ModuleType) -> None:
    """Batch 32, 8 heads of 128, 4096 tokens, float16: tensors of 256 MiB; 32 programs a head read all of K and V."""
    one = {"subject": "flash2", "seqlen": 4096, "batch": 32, "nhq": 8, "hd": 128, "dtype": "fp16"}
    (fused,) = traffic.least(one, "fused").values()
    assert (fused.dram, fused.l2, fused.l1) == (4 * 2**28, 2 * 2**28 + 32 * 2 * 2**28, fused.l2)
    qk, softmax, pv = traffic.least(one, "unfused").values()
    scores = 256 * 4096 * 4096 * 2
    assert (qk.dram, softmax.dram, pv.dram) == (2 * 2**28 + scores, 2 * scores, scores + 2 * 2**28)
    assert (qk.l2, softmax.l2, pv.l2) == (2 * 64 * 2**28 + scores, 2 * scores, scores + 64 * 2**28 + 2**28)
    assert (qk.l1, softmax.l1, pv.l1) == (qk.l2, 3 * scores, pv.l2)


@pytest.mark.parametrize("one", [FLASH2, BIGBIRD], ids=lambda one: one["subject"])
def test_right_outputs_pass_and_spoilt_ones_do_not(traffic: ModuleType, one: dict[str, Any]) -> None:
    assert judged(traffic, one).ok
    assert "rows are wrong" in judged(traffic, one, lambda q, k, v, *m: attend(q * 8, k, v, *m)).reason
    assert "rows are wrong" in judged(traffic, one, lambda q, *rest: torch.zeros_like(q)).reason
    assert "rows are wrong" in judged(traffic, one, lambda q, k, v, *m: attend(q, k, v.roll(1, 2), *m)).reason
    assert "shape" in judged(traffic, one, lambda *a: attend(*a).transpose(1, 2)).reason
