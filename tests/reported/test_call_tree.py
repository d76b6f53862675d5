"""The tree of a call: phases and kernels of both sides, from exact records."""

from dataclasses import replace
from typing import Any

from abprof.records import Census, Launch, Metric
from abprof.report.charts import MOST_PARTS, Node, call_tree
from tests import runs, traced
from tests.reports import html
from tests.traced import BASE, TARGET, seen

US = 1e3


def shown(tree: Node | None) -> list[tuple[Any, ...]]:
    return [(depth, node.name, *node.texts) for depth, node in tree.rows()]


def test_every_phase_and_kernel_has_both_times_and_the_difference() -> None:
    assert shown(call_tree(seen("base", BASE), seen("target", TARGET))) == [
        (0, "call", "10.00 ms", "10.20 ms", "+200.0 µs", "+2.0 %"),
        (1, "bwd_prepare", "100.0 µs", "100.0 µs", "0", ""),
        (2, "cast<bf16>", "100.0 µs", "100.0 µs", "0", ""),
        (1, "bwd_run", "9.400 ms", "9.900 ms", "+500.0 µs", "+5.3 %"),
        (2, "bwd_sum", "400.0 µs", "400.0 µs", "0", ""),
        (3, "softmax_d", "400.0 µs", "400.0 µs", "0", ""),
        (2, "dq_kernel", "3.000 ms", "2.900 ms", "-100.0 µs", "-3.3 %"),
        (2, "dkv_kernel", "6.000 ms", "6.600 ms", "+600.0 µs", "+10.0 %"),
        (1, "zero_", "500.0 µs", "–", "-500.0 µs", "base only"),
        (1, "copy_", "–", "200.0 µs", "+200.0 µs", "target only"),
    ]


def test_parts_are_as_wide_as_the_whole_and_coloured_by_their_share_of_the_change() -> None:
    tree = call_tree(seen("base", BASE), seen("target", TARGET))
    for _, node in tree.rows():
        assert not node.parts or sum(sum(part.sides) for part in node.parts) == sum(node.sides)
    shares = {node.name: node.share(tree) for _, node in tree.rows()}
    assert (shares["dkv_kernel"], shares["copy_"], shares["cast<bf16>"]) == (1.0, 200 / 600, 0.0)
    assert shares["zero_"] == -500 / 600


def test_a_call_on_a_cpu_has_time_outside_of_torchs_operations() -> None:
    add = Launch(name="aten::add", count=2, ns=30 * US, phases=("load",))
    base = seen(
        "base", (add,), on_device=False, load=50 * US, run=900 * US, idle=0.0, total=1000 * US, residual=50 * US
    )
    target = seen("target", (replace(add, ns=40 * US),), on_device=False, load=60 * US, run=990 * US, total=1101 * US,
                  residual=51 * US)  # fmt: skip
    assert shown(call_tree(base, target)) == [
        (0, "call", "1.000 ms", "1.101 ms", "+101.0 µs", "+10.1 %"),
        (1, "run", "900.0 µs", "990.0 µs", "+90.00 µs", "+10.0 %"),
        (1, "load", "50.00 µs", "60.00 µs", "+10.00 µs", "+20.0 %"),
        (2, "aten::add", "30.00 µs", "40.00 µs", "+10.00 µs", "+33.3 %"),
        (2, "outside torch's operations", "20.00 µs", "20.00 µs", "0", ""),
        (1, "outside torch's operations", "50.00 µs", "51.00 µs", "+1.000 µs", "+2.0 %"),
    ]


def test_a_call_on_a_cpu_without_phases_is_as_long_as_it_was_timed() -> None:
    add = (Launch(name="aten::add", count=2, ns=30 * US, phases=()),)
    wall = {"wall": Metric(value=1000 * US, unit="ns")}
    sides = [runs.changed(seen(side, add, on_device=False), metrics=wall) for side in ("base", "target")]
    assert shown(call_tree(*sides)) == [
        (0, "call", "1.000 ms", "1.000 ms", "0", ""),
        (1, "aten::add", "30.00 µs", "30.00 µs", "0", ""),
        (1, "outside torch's operations", "970.0 µs", "970.0 µs", "0", ""),
    ]


def test_a_run_without_phases_of_launches_has_kernels_alone() -> None:
    old = (Launch(name="k", count=1, ns=5 * US), Launch(name="tail", count=1, ns=US))
    tree = call_tree(seen("base", old, run=4 * US, total=6 * US), seen("target", TARGET))
    assert [(depth, name) for depth, name, *_ in shown(tree)][:3] == [(0, "call"), (1, "k"), (1, "tail")]
    assert {depth for depth, *_ in shown(tree)} == {0, 1}


def test_without_launches_of_a_side_there_is_no_tree() -> None:
    unknown = runs.changed(seen("base", ()), census=Census(missing="calls differ"))
    assert call_tree(unknown, seen("target", TARGET)) is None
    assert call_tree(None, seen("target", TARGET)) is None
    assert call_tree(seen("base", ()), seen("target", ())) is None


def test_parts_that_changed_least_are_added_up() -> None:
    many = [Launch(name=f"k{n}", count=1, ns=100 * US, phases=()) for n in range(20)]
    slower = [Launch(name=f"k{n}", count=1, ns=(100 + n) * US, phases=()) for n in range(20)]
    tree = call_tree(seen("base", tuple(many)), seen("target", tuple(slower)))
    assert len(tree.parts) == MOST_PARTS
    assert (tree.parts[0].name, tree.parts[-1].name) == ("k9", "9 others")
    assert tree.parts[-1].ns == (900 * US, 936 * US)


def test_the_tree_is_in_the_page_as_text_and_as_a_picture() -> None:
    page = html(traced.run(), runs.blocks(traced.run()))
    assert page.count('class="frames"') == 1, "one row has launches"
    assert "<code>cast&lt;bf16&gt;</code><td>100.0 µs" in page
    assert '<th scope="row" style="padding-left:2.4em"><code>dkv_kernel</code>' in page
    assert "<span>dkv_kernel +10.0 %</span>" in page
    assert 'class="frames"' not in html(runs.run(), runs.blocks(runs.run()))
