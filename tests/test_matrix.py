"""From declarations to cells: presets, zipped axes, --set, --only."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from abprof.measure import matrix
from abprof.measure.matrix import Axes
from abprof.records import Band, Cell, Side, Sweep, filters
from abprof.records import messages as wire
from abprof.records.errors import AbprofError

AXES: Axes = [(["seqlen"], [[512], [1024]]), (["q", "k"], [[64, 64], [128, 128]]), (["causal"], [[False], [True]])]


def cell(id: str, flops: float = 1.0, **params: matrix.Value) -> Cell:
    return Cell(id=id, workload="w", kernel="k", suite="w", params=params, flops=flops)


def cells() -> list[Cell]:
    return [
        Cell(id=wire.cell_id("w", case), workload="w", kernel="k", suite="w", params=case)
        for case in matrix.cases(AXES)
    ]


def test_declarations_become_the_record_that_travels() -> None:
    described = wire.Described("w", "k", "s", ())
    plain = matrix.workload(described, "", "cpu")
    assert (plain.scaled, plain.ladder, plain.sweep) == ("", (), None)
    sweep = Sweep(("ratio",), (Band((0.0, 0.2), (2.0, 4.0)),), against="base")
    rich = matrix.workload(replace(described, scaled="n", ladder=("a", "b"), sweep=sweep), "", "cpu")
    assert (rich.scaled, rich.ladder) == ("n", ("a", "b"))
    band = Band(density=(0.0, 0.2), speedup=(2.0, 4.0))
    assert rich.sweep == Sweep(axes=("ratio",), density="density", against="base", bands=(band,))


@pytest.mark.parametrize(
    ("asked", "found"),
    [((), ("a",)), (("c",), ("c",)), (("c", "b"), ("b", "c")), (("all",), ("a", "b", "c")), (("z",), ())],
)
def test_peers_are_those_asked_for_or_the_workloads_default(asked: tuple[str, ...], found: tuple[str, ...]) -> None:
    described = wire.Described("w", "k", "s", (), peers=("a", "b", "c"), default_peers=["a"])
    assert matrix.workload(described, "", "cpu", asked).peers == found
    assert matrix.workload(replace(described, default_peers=None), "", "cpu").peers == ("a", "b", "c")
    assert matrix.workload(replace(described, default_peers=[]), "", "cpu").peers == ()
    with pytest.raises(AbprofError, match="no workload has peers"):
        matrix.known_peers([replace(described, peers=())], ("flex",))


def test_zipped_axes_go_in_step_and_set_replaces_values_and_keeps_types() -> None:
    def found(*words: str) -> list[dict[str, matrix.Value]]:
        return matrix.cases(matrix.set_axes({"w": AXES}, words)["w"])

    assert len(found()) == 8
    assert {(c["q"], c["k"]) for c in found()} == {(64, 64), (128, 128)}
    assert {(c["seqlen"], c["causal"]) for c in found("seqlen=2048,4096", "causal=true")} == {
        (2048, True),
        (4096, True),
    }
    assert {(c["q"], c["k"]) for c in found("q=64")} == {(64, 64)}
    both = matrix.set_axes({"w": AXES, "v": [(["n"], [[1]])]}, ["n=7"])
    assert both == {"w": AXES, "v": [(["n"], [[7]])]}, "a workload without the axis keeps its own"


def test_only_narrows_down_by_axes_and_adds_up_patterns() -> None:
    chosen = filters.select(cells(), ["seqlen=512", "causal=true"])
    assert [c.params["q"] for c in chosen] == [64, 128]
    assert len(filters.select(cells(), ["seqlen=512,1024"])) == 8
    assert len(filters.select(cells(), ["w/seqlen=512*", "*q=128,k=128,causal=true"])) == 5


@pytest.mark.parametrize(
    ("option", "words", "says"),
    [
        ("only", "cse=a", "--only: no cell has an axis 'cse' (did you mean causal, "),
        ("only", "nothing*", "--only: the matrix is empty: no cell is left"),
        ("only", " ", "--only: a filter is empty"),
        ("only", "slower", "--only: slower is a verdict, which only a finished run has"),
        ("set", "cusal=1", "--set: no workload has an axis 'cusal' (did you mean causal)"),
        ("set", "seqlen", "--set: 'seqlen' is not AXIS=V1,V2"),
        ("set", "seqlen=long", "--set: seqlen=long: expected int, like 512"),
        ("set", "seqlen=1,2,01", "--set: seqlen has 1 twice"),
        ("set", "seqlen=1 q=64 seqlen=1 seqlen=2,3", "--set: seqlen is given more than once (write seqlen=1,2,3)"),
        ("set", "causal=maybe", "--set: causal=maybe: expected bool, like false"),
        ("cell", "w", "'w': not a cell's id (write it as reports do: WORKLOAD/axis=value"),
        ("cell", "w/causal=true,seqlen=512,q=64,k=64", "--cell: no cell w/causal=true,seqlen=512,q=64,k=64 (an id names"),
        ("cell", "w/seqlen=1,8", "--cell w/seqlen=1,8: seqlen=1,8: expected int"),
        ("cell", "w/seqlen=1,m=1", "--cell w/seqlen=1,m=1: no workload has an axis 'm'"),
    ],
)  # fmt: skip
def test_what_names_no_cell_is_refused(option: str, words: str, says: str) -> None:
    made: dict[str, Callable[[list[str]], object]] = {
        "only": lambda words: filters.select(cells(), words),
        "set": lambda words: matrix.set_axes({"w": AXES}, words),
        "cell": lambda words: matrix.exactly({"w": AXES}, words),
    }
    with pytest.raises(AbprofError) as refused:
        made[option](words.split(None if words.strip() else ","))
    assert refused.value.line.startswith(says)


SIDES = tuple(
    Side(id=id, spec=id, kind="commit", commit="0" * 40, tree="0" * 40, label=id)
    for id in ("base", "target", "target2")
)


def test_only_with_a_whole_id_is_that_cell_alone() -> None:
    cells = tuple(cell(f"w/n={n}", n=n) for n in (4, 40, 400))
    assert [c.id for c in filters.select(cells, ["w/n=4"])] == ["w/n=4"]
    assert [c.id for c in filters.select(cells, ["w/n=4", "400"])] == ["w/n=4", "w/n=400"]
    assert len(filters.select(cells, ["w/n"])) == 3


def test_controls_are_spread_over_the_range_of_work_identical_code_first() -> None:
    many = [cell(f"w/n={n}", flops=float(n)) for n in range(100)]
    chosen = matrix.controls(many, SIDES, {"w/n=50", "w/n=60"})
    assert chosen == {"w/n=50", "w/n=60", "w/n=12", "w/n=36", "w/n=63", "w/n=87"}
    assert len(chosen) == 6
    assert matrix.controls(many[:4], SIDES) == {c.id for c in many[:4]}


def test_cells_by_id_are_exactly_those_also_where_axes_are_zipped_and_no_preset_has_them() -> None:
    matrices = {"w": [(["n"], [[4], [8]]), (["a", "b"], [[1, True], [2, False]])], "other": [(["n"], [[1]])]}
    ids = ["w/n=8,a=2,b=false", "w/n=5,a=7,b=true", "gone/n=1", "w/n=8,a=2,b=false"]
    assert matrix.exactly(matrices, ids) == {
        "w": [{"n": 8, "a": 2, "b": False}, {"n": 5, "a": 7, "b": True}],
        "other": [],
    }
