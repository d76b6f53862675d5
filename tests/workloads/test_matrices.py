"""Golden values that need no GPU: the seeds' matrices, areas, densities and FLOP counts."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.workloads.conftest import case, cases, load


def test_full_is_28_cells_and_product_48(dense: ModuleType, block_sparse: ModuleType) -> None:
    assert [len(cases(module, "full")) for module in (dense, block_sparse)] == [8, 20]
    assert [len(cases(module, "product")) for module in (dense, block_sparse)] == [8, 40]


def test_smoke_has_6_to_10_cells(dense: ModuleType, block_sparse: ModuleType) -> None:
    assert 6 <= len(cases(dense, "smoke")) + len(cases(block_sparse, "smoke")) <= 10


def test_smoke_is_of_a_type_that_the_devices_kernels_take() -> None:
    """ffa has float32 on a CPU alone: on a GPU every smoke cell was `unsupported`."""
    for name in ("dense", "block_sparse", "model_step"):
        for device, dtype in (("cpu", "fp32"), ("cuda", "bf16")):
            assert {one["dtype"] for one in cases(load(name), "smoke", device)} == {dtype}


def test_smoke_calls_are_small(dense: ModuleType, block_sparse: ModuleType) -> None:
    """At some 70 GFLOP/s, two cores' worth, 10 ms at the most."""
    for module in (dense, block_sparse):
        assert all(0.01e9 < module.work(one).flops < 0.7e9 for one in cases(module, "smoke"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("preset", ["smoke", "default", "full", "product"])
def test_cells_are_unique_and_each_has_work(either: ModuleType, preset: str, device: str) -> None:
    made = cases(either, preset, device)
    assert len({tuple(sorted(c.items())) for c in made}) == len(made)
    for one in made:
        work = either.work(one)
        assert work.flops > 0
        assert work.bytes > 0
        assert work.convention.startswith(one["direction"])
        assert either.skip(one, device) is None
        assert set(either.SEED_COLUMNS) <= set(one)


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
    ("mask_type", "expected"),
    [
        ("full", 67_108_864),
        ("causal", 33_558_528),
        ("varlen_full", 16_299_902),
        ("varlen_causal", 8_523_401),
    ],
)
def test_areas_at_8192(dense: ModuleType, mask_type: str, expected: int) -> None:
    assert dense.total_area(case(dense, "full", mask_type=mask_type)) == expected


@pytest.mark.parametrize(
    ("queries", "keys", "expected"), [(4, 4, 10), (2, 4, 7), (4, 2, 3), (1, 1, 1), (3, 5, 12), (5, 3, 6)]
)
def test_area_of_a_causal_slice_counts_its_pairs(dense: ModuleType, queries: int, keys: int, expected: int) -> None:
    counted = sum(j - i <= keys - queries for i in range(queries) for j in range(keys))
    assert dense.area(queries, keys, dense.CAUSAL) == expected == counted
    assert dense.area(queries, keys, dense.FULL) == queries * keys


def test_lengths_at_8192_are_the_written_ones(dense: ModuleType) -> None:
    full = [2150, 3051, 419, 356, 130, 895, 54, 1116, 14, 2, 2, 1, 1, 1]
    causal = [1408, 177, 2559, 2823, 600, 370, 35, 58, 20, 25, 58, 23, 22, 4, 10]
    assert dense.lengths("varlen_full", 8192) == full
    assert dense.lengths("varlen_causal", 8192) == causal


@pytest.mark.parametrize("mask_type", ["varlen_full", "varlen_causal", "full", "causal"])
@pytest.mark.parametrize("seqlen", [1, 2, 3, 7, 64, 500, 512, 1000, 4096, 8191, 16384, 49152, 131072])
def test_lengths_add_up_at_every_seqlen(dense: ModuleType, mask_type: str, seqlen: int) -> None:
    lengths = dense.lengths(mask_type, seqlen)
    assert sum(lengths) == seqlen
    assert all(n > 0 for n in lengths)


def test_lengths_keep_their_proportions(dense: ModuleType) -> None:
    doubled = [2 * n for n in dense.VARLEN["varlen_full"]]
    assert dense.lengths("varlen_full", 16384) == doubled
    # Halved: six halves round up, so the first, 2150 / 2 = 1075, gives back three.
    assert dense.lengths("varlen_full", 4096) == [1072, 1526, 210, 178, 65, 448, 27, 558, 7, 1, 1, 1, 1, 1]


def test_tflops_of_the_published_times(dense: ModuleType) -> None:
    """4 x 8192^2 x 64 x 128 in 3.5861 ms, and 2.5 times that in 10.0102 ms."""
    forward = dense.work(case(dense, "full", mask_type="full", direction="fwd"))
    backward = dense.work(case(dense, "full", mask_type="full", direction="bwd"))
    assert round(forward.flops / 3.5861e-3 / 1e12, 3) == 613.207
    assert round(backward.flops / 10.0102e-3 / 1e12, 3) == 549.196
    assert (forward.convention, backward.convention) == ("fwd-area-exact", "bwd-2.5x-area-exact")


def test_ideal_bytes(dense: ModuleType) -> None:
    row = 8192 * 128 * 2
    forward = dense.work(case(dense, "full", direction="fwd", nhk=8))
    backward = dense.work(case(dense, "full", direction="bwd", nhk=8))
    assert forward.bytes == (2 * 64 + 2 * 8) * row
    assert backward.bytes == (4 * 64 + 4 * 8) * row + 64 * 8192 * 4


@pytest.mark.parametrize(
    ("ratio", "block", "gap_percent"),
    [
        (0.05, 64, 1.04),
        (0.05, 128, 1.04),
        (0.1, 64, 1.04),
        (0.1, 128, 1.04),
        (0.2, 64, 0.39),
        (0.2, 128, 1.04),
        (0.5, 64, 0.0),
        (0.5, 128, 0.0),
        (1.0, 64, 0.0),
        (1.0, 128, 0.0),
    ],
)
def test_nominal_flops_overstate_the_real_ones(
    block_sparse: ModuleType, ratio: float, block: int, gap_percent: float
) -> None:
    one = case(block_sparse, "full", sparsity_ratio=ratio, q_block_size=block, k_block_size=block)
    work = block_sparse.work(one)
    assert work.flops == 4 * 64 * 49152**2 * 128 * ratio
    assert work.convention == "fwd-block-nominal"
    assert round(100 * (1 - block_sparse.real_density(one) / ratio), 2) == gap_percent


def test_backward_of_block_sparse_is_nominal_times_two_and_a_half(block_sparse: ModuleType) -> None:
    work = block_sparse.work(case(block_sparse, "full", direction="bwd", sparsity_ratio=0.2))
    assert work.flops == 2.5 * 4 * 64 * 49152**2 * 128 * 0.2
    assert work.convention == "bwd-2.5x-block-nominal"


def test_phases_are_the_seeds_columns_and_two_more(either: ModuleType) -> None:
    forward = ["range_merge", "sparse_load_preprocess", "prepare", "run", "cast"]
    backward = ["range_merge", "prepare", "preprocess", "run", "cast"]
    seeds = [f"fwd_{name}" for name in forward] + [f"bwd_{name}" for name in backward]
    assert set(either.PHASES) == {*seeds, "fwd_postprocess", "bwd_postprocess"}
    assert [name for name in either.PHASES if not name.endswith("postprocess")] == seeds
    for name, (label, text) in either.PHASES.items():
        assert label == f"ffa_{name}"
        assert text


def test_profilers_find_a_call_by_the_originals_names(either: ModuleType) -> None:
    assert either.nvtx(case(either, direction="fwd"), None) == ("forward_pass",)
    assert either.nvtx(case(either, direction="bwd"), "sdpa") == ("backward_pass",)
    analysis = load("hopper_ws")
    plain = case(analysis, "smoke", B=1, H=32, N_CTX=8192)
    assert analysis.nvtx(plain, "ws") == ("bench_triton-ws-fp16_B1_H32_N8192_D128",)
    assert (
        analysis.nvtx(plain, None)
        == analysis.nvtx(plain, "ws_pipelined")
        == ("bench_triton-ws-pp-fp16_B1_H32_N8192_D128",)
    )
    assert analysis.nvtx(plain, "sdpa") == ("bench_sdpa_B1_H32_N8192_D128",)


def test_seed_columns_are_the_originals(dense: ModuleType, block_sparse: ModuleType) -> None:
    assert ",".join(dense.SEED_COLUMNS) == "seqlen,mask_type,direction"
    assert ",".join(block_sparse.SEED_COLUMNS) == (
        "seqlen,sparsity_ratio,q_block_size,k_block_size,swap_ab,pack_gqa,sparse_load,kblockm,kblockn,direction"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nhq": 6, "nhk": 4}, "no multiple"),
        ({"direction": "sideways"}, "sideways"),
        ({"dtype": "fp4"}, "fp4"),
    ],
)
def test_impossible_cases_are_skipped_with_a_reason(either: ModuleType, changes: dict[str, object], said: str) -> None:
    assert said in either.skip(case(either, **changes), "cpu")


def test_impossible_masks_are_skipped_with_a_reason(dense: ModuleType, block_sparse: ModuleType) -> None:
    assert "banded" in dense.skip(case(dense, mask_type="banded"), "cpu")
    assert "k_block_size=96" in block_sparse.skip(case(block_sparse, k_block_size=96), "cpu")
    assert "1.5" in block_sparse.skip(case(block_sparse, sparsity_ratio=1.5), "cpu")
