"""N = warm-up + runs calls: counted launches, errors, and kernels with k*N launches."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from abprof.evidence.ncu.traffic import measured
from abprof.records import ncu
from abprof.records.errors import AbprofError

from .recorded import L, details, moves, put, raw


def taken(
    launches: Sequence[L], warmup: int = 1, runs: int = 2, kernels: Sequence[str] = (), *, grids: bool = True
) -> ncu.Table:
    """The table of a recording of these launches."""
    with tempfile.TemporaryDirectory() as folder:
        file = put(Path(folder) / "a.csv", raw(launches) if grids else details(launches, old=True))
        return measured(file, warmup=warmup, runs=runs, kernels=kernels)


def counts(table: ncu.Table) -> list[tuple[str, int, int]]:
    return [(row.kernel, row.launches, row.a_call) for row in table.rows]


def test_the_warm_ups_are_dropped() -> None:
    table = taken([moves("k", 1e9), moves("k", 100.0), moves("k", 300.0)])
    assert counts(table) == [("k", 3, 1)]
    assert table.rows[0].per_call == {"dram": 200, "l2": 400, "l1": 600} == table.rows[0].per_launch
    assert table.of.notes == ()


def test_k_launches_a_call() -> None:
    """Two launches a call that move different bytes, and two that move the same."""
    call = [moves("k", 100.0), moves("k", 900.0), moves("same", 7.0), moves("same", 7.0)]
    table = taken(call * 3)
    assert counts(table) == [("k", 6, 2), ("same", 6, 2)]
    assert table.rows[0].per_launch["dram"] == 500
    assert table.rows[0].per_call["dram"] == 1000
    assert table.sums[-1].per_call == {"dram": 1014, "l2": 2028, "l1": 3042}
    assert "6 launches are 2 a call in 3 calls" in table.of.notes[0]


@pytest.mark.parametrize("grids", [True, False])
def test_the_240_launch_trap(grids: bool) -> None:
    """10 + 20 calls of 8 lengths under one name, one grid: never 8 launches a call."""
    lengths = [128, 256, 512, 768, 1024, 1536, 2048, 4096]
    launches = [moves("ft_attention", 1000.0 * n) for n in lengths for _ in range(30)]
    with pytest.raises(
        AbprofError, match=r"several shapes .*ft_attention.*: 240 launches \(record each shape in a file"
    ):
        taken(launches, 10, 20, grids=grids)
    assert counts(taken(launches[:30], 10, 20, grids=grids)) == [("ft_attention", 30, 1)]


def test_other_shapes_one_after_another_are_refused_too() -> None:
    """Two launches a call with a set-up before each shape; and a kernel whose grid tells the shapes."""
    each = [[moves("k", 100 * n), moves("k", 900 * n), moves("scale", 5.0)] for n in (1.0, 3.0, 9.0)]
    with pytest.raises(AbprofError, match="several shapes"):
        taken([launch for call in each for launch in (moves("normal_", 1.0), *(call * 4))], 1, 3)
    table = taken([moves("normal_", 1.0), *(each[0] * 4)], 1, 3)
    assert counts(table) == [("k", 8, 2), ("scale", 4, 1)]
    assert dict(table.outside) == {("normal_", "(132, 1, 1)", "(384, 1, 1)"): 1}
    with pytest.raises(AbprofError, match="several shapes"):
        taken([moves("k", 1.0, grid=f"({n}, 1, 1)") for n in (1, 2) for _ in range(3)])


def test_with_the_kernel_under_test_named_others_need_not_be_whole() -> None:
    launches = [moves("k", 1.0), moves("k", 1.0), moves("lazy_init", 1.0), moves("k", 1.0)]
    with pytest.raises(AbprofError, match="lazy_init"):
        taken(launches)
    table = taken(launches, kernels=["k"])
    assert counts(table) == [("k", 3, 1)]
    assert not table.outside
    with pytest.raises(AbprofError, match="lazy_init"):
        taken(launches, kernels=["k", "lazy*"])


def test_a_level_that_some_launches_lack_has_no_number() -> None:
    table = taken([L("k"), L("k", bytes={"dram": 1.0}), L("k")])
    assert table.rows[0].per_call == {"dram": pytest.approx(1500000.5), "l2": None, "l1": None}
    assert table.sums[-1].per_call["l1"] is None


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, T>(int, T2)", "other"),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)>",
            "other",
        ),
        ("void at::<unnamed>::distribution_elementwise_grid_stride_kernel<float, 4>(long)", "other"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", "compute"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<cute::Copy_Atom<cute::SM90_TMA_LOAD>>>(T1)", "compute"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "compute"),
        ("cast_kernel", "other"),
        ("broadcast_add", "compute"),
    ],
)
def test_kernels_that_only_move_data_are_found_by_name(kernel: str, kind: str) -> None:
    assert taken([L(kernel)] * 3).rows[0].kind == kind


@pytest.mark.parametrize("page", [raw, details])
def test_two_files_pair_kernels_whose_grid_changed(tmp_path: Path, page: object) -> None:
    first = [moves("k", 100.0), moves("gone", 1.0)] * 3
    second = [moves("k", 150.0, grid="(64, 1, 1)"), moves("new", 1.0)] * 3
    base, target = (
        measured(put(tmp_path / name, page(of)), warmup=1, runs=2) for name, of in (("a", first), ("b", second))
    )  # type: ignore[operator]
    pairs = {pair.either.kernel: pair for pair in ncu.beside(base, target)}
    assert pairs["k"].pct("dram") == pytest.approx(50)
    assert pairs["gone"].target is None
    assert pairs["new"].base is None
    assert pairs["new"].pct("l2") is None
