"""Several targets beside each other, before the parts of each."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from abprof.report import html, markdown, overview, terminal, view
from tests import runs
from tests.runs import changed


def test_every_cell_has_one_row_with_base_and_each_target() -> None:
    run = runs.three_targets()
    groups = view.groups(run)
    for part, workload in zip(overview.parts(groups), run.workloads, strict=True):
        against = [group for group in groups if group.workload.name == workload.name]
        assert part.table.header[part.table.left :] == ("base", *(side.label for side in run.sides[1:]))
        assert len(part.table.rows) == len(against[0].rows)
        assert {row[-1] for row in part.table.rows} == {"not judged"}, "the third was not measured"
    told = {row[0]: row for part in overview.parts(groups) for row in part.table.rows}
    assert len({row[-3:-1] for row in told.values()}) > 1


def test_each_target_says_what_its_own_table_says() -> None:
    run = runs.three_targets()
    every = [text for part in overview.parts(view.groups(run)) for row in part.table.rows for text in row[-3:-1]]
    for group in view.groups(run)[: 2 * len(run.workloads)]:
        for row in group.rows:
            if row.verdict in ("slower", "faster") and row.comparison and row.comparison.pct:
                figure = f"{abs(row.comparison.pct):.1f} % {row.verdict}"
                assert any(f"{figure} (" in text for text in every), figure


def test_one_target_has_no_such_table() -> None:
    assert overview.parts(view.groups(runs.run())) == []
    assert overview.parts(view.groups(runs.single())) == []
    for page in (markdown.markdown(runs.run(), []), html.html(runs.run(), [])):
        assert overview.TITLE not in page


def test_two_targets_of_one_label_are_told_apart() -> None:
    run = runs.three_targets()
    run = changed(run, sides=tuple(changed(side, label="dev") if side.id != "base" else side for side in run.sides))
    assert overview.parts(view.groups(run))[0].table.header[-3:] == ("dev (target)", "dev (target2)", "dev (target3)")


def test_it_stands_before_the_parts_of_each_target() -> None:
    run = runs.three_targets()
    page = html.html(run, runs.blocks(run))
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles.index(overview.TITLE) < min(i for i, title in enumerate(titles) if " against " in title)
    text = markdown.markdown(run, runs.blocks(run))
    assert text.index(f"## {overview.TITLE}") < text.index(" against ")


def test_on_a_terminal_rows_that_need_no_one_are_hidden_and_counted() -> None:
    run = runs.two_targets()
    both = runs.three_targets()
    run = changed(both, sides=run.sides)
    told = {}
    for everything in (False, True):
        console = Console(file=io.StringIO(), width=200, highlight=False)
        terminal.show(run, console, Path("run"), everything=everything)
        told[everything] = console.file.getvalue()  # type: ignore[attr-defined]
    folded = overview.parts(view.groups(run), folded=False)
    assert sum(part.further for part in folded) > 0
    for part in folded:
        assert f"{overview.TITLE}: {part.title}" in told[False]
        assert not part.further or part.left_out in told[False]
    assert "not shown" not in told[True]


def test_a_workload_of_one_cell_has_its_row_named() -> None:
    run = runs.three_targets()
    cell = run.cells[0]
    one = changed(run, cells=(cell,), workloads=tuple(w for w in run.workloads if w.name == cell.workload))
    [part] = overview.parts(view.groups(one))
    assert (part.table.left, part.table.rows[0][0]) == (1, cell.id)
