"""Golden values that need no GPU: the seeds' matrices, areas, densities, FLOP counts, least traffic, facts; reasons of skips."""

import importlib
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.workloads.conftest import case, cases, load

TRAFFIC, MASKS = load("memory_traffic"), load("dynamic_mask")
FLASH2 = {"subject": "flash2", "seqlen": 256, "batch": 2, "nhq": 2, "hd": 64, "dtype": "fp16"}


def test_full_is_the_original_benchmarks_matrix(dense: ModuleType, block_sparse: ModuleType) -> None:
    for one in cases(dense, "full") + cases(block_sparse, "full"):
        assert (one["nhq"], one["nhk"], one["hd"], one["dtype"]) == (64, 64, 128, "bf16")
    assert {c["seqlen"] for c in cases(dense, "full")} == {8192}
    assert {c["mask_type"] for c in cases(dense, "full")} == {"full", "causal", "varlen_full", "varlen_causal"}
    sparse = cases(block_sparse, "full")
    assert {c["seqlen"] for c in sparse} == {49152}
    assert sorted({c["sparsity_ratio"] for c in sparse}) == [0.05, 0.1, 0.2, 0.5, 1.0]
    blocks = {tuple(c[a] for a in ("q_block_size", "k_block_size", "kblockm", "kblockn")) for c in sparse}
    assert blocks == {(64, 64, 64, 64), (128, 128, 128, 128)}
    assert not any(c["pack_gqa"] or c["swap_ab"] or c["sparse_load"] for c in sparse)


@pytest.mark.parametrize(
    ("ratio", "block", "gap_percent"),
    [
        (0.05, 64, 1.04), (0.05, 128, 1.04), (0.1, 64, 1.04), (0.1, 128, 1.04), (0.2, 64, 0.39), (0.2, 128, 1.04),
        (0.5, 64, 0.0), (0.5, 128, 0.0), (1.0, 64, 0.0), (1.0, 128, 0.0),
    ],
)  # fmt: skip
def test_nominal_flops_overstate_the_real_ones(
    block_sparse: ModuleType, ratio: float, block: int, gap_percent: float
) -> None:
    one = case(block_sparse, "full", sparsity_ratio=ratio, q_block_size=block, k_block_size=block)
    work = block_sparse.work(one)
    assert work.flops == 4 * 64 * 49152**2 * 128 * ratio
    assert work.convention == "fwd-block-nominal"
    assert round(100 * (1 - block_sparse.real_density(one) / ratio), 2) == gap_percent


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"nhq": 6, "nhk": 4}, "no multiple"), ({"direction": "sideways"}, "sideways"), ({"dtype": "fp4"}, "fp4")],
)
def test_impossible_cases_are_skipped_with_a_reason(
    either: ModuleType, changes: dict[str, object], message: str
) -> None:
    assert message in either.skip(case(either, **changes), "cpu")


# ---------------------------------------------------------------- memory_traffic


def test_full_has_the_originals_shapes() -> None:
    full = cases(TRAFFIC, "full", "cuda")
    flash2 = {(c["seqlen"], c["hd"]) for c in full if c["subject"] == "flash2"}
    assert flash2 == {(n, d) for n in (128, 256, 512, 768, 1024, 1536, 2048, 4096) for d in (128, 256)}
    assert {(c["batch"], c["nhq"], c["dtype"]) for c in full if c["subject"] == "flash2"} == {(32, 8, "fp16")}
    bigbird = [tuple(c.values()) for c in full if c["subject"] == "bigbird"]
    assert bigbird == [("bigbird", n, 32, 1, 512, "fp32") for n in (4096, 8192)]
    assert len(full) == 18


def test_impossible_cases_of_memory_traffic_have_a_reason() -> None:
    assert "longformer" in TRAFFIC.skip({**FLASH2, "subject": "longformer"}, "cpu")
    assert "no multiple of the block, 64" in TRAFFIC.skip({**FLASH2, "seqlen": 100}, "cpu")
    assert "fp4" in TRAFFIC.skip({**FLASH2, "dtype": "fp4"}, "cpu")


def test_least_traffic_of_flash2_by_hand() -> None:
    """Batch 32, 8 heads of 128, 4096 tokens, float16: tensors of 256 MiB; 32 programs a head read all of K and V."""
    one = {"subject": "flash2", "seqlen": 4096, "batch": 32, "nhq": 8, "hd": 128, "dtype": "fp16"}
    (fused,) = TRAFFIC.least(one, "fused").values()
    assert (fused.dram, fused.l2, fused.l1) == (4 * 2**28, 2 * 2**28 + 32 * 2 * 2**28, fused.l2)
    qk, softmax, pv = TRAFFIC.least(one, "unfused").values()
    scores = 256 * 4096 * 4096 * 2
    assert (qk.dram, softmax.dram, pv.dram) == (2 * 2**28 + scores, 2 * scores, scores + 2 * 2**28)
    assert (qk.l2, softmax.l2, pv.l2) == (2 * 64 * 2**28 + scores, 2 * scores, scores + 64 * 2**28 + 2**28)
    assert (qk.l1, softmax.l1, pv.l1) == (qk.l2, 3 * scores, pv.l2)


# ---------------------------------------------------------------- dynamic_mask


def patterns() -> ModuleType:
    load("dynamic_mask")
    return importlib.import_module("abprof_workloads._patterns")


def masked(**changes: Any) -> dict[str, Any]:
    one = cases(MASKS, "smoke", "cuda")[0]
    return {**one, "seqlen": 256, "nhq": 2, "nhk": 2, "mask_heads": 2, **changes}


@pytest.mark.parametrize(
    ("pattern", "size"),
    [*product(["random", "block", "diagonal", "structured", "dense"], [130, 512]), ("tiles", 512), ("tiles", 1024)],
)
def test_expected_pairs_are_those_that_are_kept(pattern: str, size: int) -> None:
    for s in (0.1, 0.5, 0.9):
        made = patterns().make(pattern, s, size, 8, "cpu", torch.Generator().manual_seed(2))
        found, expected = float(made.sum()) / 8, patterns().expected_pairs(pattern, s, size)
        if pattern in ("random", "structured"):
            assert found == pytest.approx(expected, rel=0.03)
        else:
            assert found == expected


def test_a_cpu_is_unsupported_with_the_reason() -> None:
    assert "need an NVIDIA GPU" in MASKS.skip(masked(), torch.device("cpu"))
    assert MASKS.skip(masked(), "cuda") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": "banded"}, "banded"),
        ({"sparsity": 1.0}, "sparsity=1.0"),
        ({"pattern": "dense", "sparsity": 0.5}, "not 0 for pattern=dense"),
        ({"nhq": 4}, "mask_heads=2 is neither 1"),
        ({"seqlen": 64}, "no more than a tile"),
        ({"nhq": 3, "mask_heads": 1}, "no multiple"),
    ],
)
def test_impossible_masks_have_a_reason(changes: dict[str, Any], message: str) -> None:
    assert message in MASKS.skip(masked(**changes), "cuda")


def test_facts_are_measured() -> None:
    one = masked(pattern="tiles", sparsity=0.9, seqlen=512)
    reported = MASKS.facts(one, MASKS.inputs(one, "cpu", 1))
    assert reported == {
        "density": 0.125,
        "tiles": 256,
        "masked_tiles": 224,
        "full_tiles": 32,
        "masked_rows": reported["masked_rows"],
        "tier": "High",
    }
    assert reported["masked_rows"] >= 4 * 256, "two squares reach half of the rows at most"
