"""Golden values that need no GPU: the seeds' matrices, areas, densities and FLOP counts."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.workloads.conftest import case, cases


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
