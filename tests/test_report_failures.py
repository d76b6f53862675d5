"""What did not run: each reason once, with what it cost, cut where lines are short and whole where there is room."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from abprof.records import Advice, Arm, Build, Failure, Run
from abprof.report import terminal
from abprof.report.closing import closing
from abprof.report.failures import Failed, advice_text, all_failures, log_path
from abprof.report.html import html
from abprof.report.markdown import markdown
from abprof.report.view import groups

from . import runs

ERROR = "ffa.cu(12): error: " + "no such member " * 40 + "THE-END"


def built(side: str, failure: Failure | None = None) -> Build:
    return Build(side=side, kernel="ffa", key="k" * 16, log=f"build-{side}-ffa.log", failure=failure)


def failed_builds() -> Run:
    """Neither side's package built: the runner gives every cell the build's reason, and the peer on base too."""
    plain = runs.run()
    cells = tuple(cell for cell in plain.cells if cell.kernel == "ffa")
    failure = Failure(status="build_failed", reason=ERROR)
    log = {"base": "build-base-ffa.log", "target": "build-target-ffa.log", "peer:sdpa": "build-base-ffa.log"}
    return runs.changed(
        plain,
        cells=cells,
        builds=(built("base", failure), built("target", failure)),
        arms=(Arm(id="base", side="base"), Arm(id="target", side="target"), Arm(id="peer:sdpa", side="base", peer="s")),
        observations=tuple(
            runs.observed(cell, arm, None, "build_failed", reason=ERROR, log=log[arm]) for cell in cells for arm in log
        ),
        comparisons=tuple(runs.compared(cell, "broken", reasons=("both",)) for cell in cells),
        controls=(),
        warnings=(
            Advice(
                kind="broken",
                text=f"{len(cells)} cells broken (first: {cells[0].id}, target build_failed: {ERROR})",
                advice="read logs/target-ffa.log in the run folder",
                cells=tuple(cell.id for cell in cells),
            ),
        ),
    )


def crashes(statuses: str) -> Run:
    """Dense cells whose target crashes with one reason (`c`) or another (`d`)."""
    plain = runs.run()
    cells = plain.cells[: len(statuses)]
    reasons = {"c": "RuntimeError: CUDA error: an illegal memory access", "d": "Segmentation fault"}
    seen = [runs.observed(cell, "base", 1.0) for cell in cells]
    seen += [
        runs.observed(cell, "target", None, "crash", reason=reasons[letter], log="worker-target-ffa.log")
        for cell, letter in zip(cells, statuses, strict=True)
    ]
    judged = tuple(runs.compared(cell, "broken", reasons=("crash",)) for cell in cells)
    return runs.changed(plain, cells=cells, observations=tuple(seen), comparisons=judged, warnings=())


def told(run: Run) -> list[Failed]:
    return all_failures(run, groups(run))


def shown(run: Run) -> list[str]:
    out = io.StringIO()
    terminal.show(run, Console(file=out, width=150), runs.Path("runs/x"))
    return out.getvalue().splitlines()


def test_sides_of_one_label_are_told_apart() -> None:
    """`abprof main main`, and neither builds."""
    of = failed_builds()
    twice = runs.changed(of, sides=(of.sides[0], runs.changed(of.sides[1], label=of.sides[0].label)))
    lines = [failed.line() for failed in all_failures(twice, groups(twice))]
    assert [line.split(",")[0] for line in lines] == ["main (base)", "main (target)"]


def test_a_failed_build_is_told_once_per_side_and_package():
    run = failed_builds()
    cells = len(run.cells)
    assert cells == 15
    assert [(one.arm, one.package, len(one.cases), one.log) for one in told(run)] == [
        ("main", "ffa", cells, "logs/build-base-ffa.log"),
        ("feature/optimize ffa", "ffa", cells, "logs/build-target-ffa.log"),
    ]
    assert {one.reason for one in told(run)} == {ERROR}


def test_the_reason_is_told_once_a_side_and_cut_to_a_line():
    run = failed_builds()
    start = re.escape(ERROR[:40])
    for lines in (shown(run), closing(run).splitlines()):
        found = [line for line in lines if re.search(start, line) and "cells broken" not in line]
        assert len(found) == 2, found
        assert re.search(
            r"main, package ffa \(15 cells\): build failed: .{159}… \[logs/build-base-ffa\.log\]$", found[0]
        )
        assert not any("THE-END" in line for line in lines)
        assert max(map(len, lines)) < 300
    assert "not measured: build failed (package ffa; see the end)" in closing(run)
    text = markdown(run, ())
    assert text.count("| `package ffa (15 cells)` |") == 2
    assert "THE-END" not in text.partition("## Can it be trusted")[0]


def test_the_page_has_the_whole_of_it():
    text = html(failed_builds(), ())
    section = text[text.index("What did not run") : text.index("Machine, builds, proofs")]
    assert section.count("THE-END") == 2
    assert section.count('<a href="logs/build-') == 2
    assert section.count("<summary>15 cells</summary>") == 2


def test_equal_reasons_of_crashes_are_told_together():
    run = crashes("ccdc")
    assert [(one.what, one.reason[:12]) for one in told(run)] == [
        ("3 cells (first: dense mask_type=full direction=fwd)", "RuntimeError"),
        ("dense mask_type=causal direction=fwd", "Segmentation"),
    ]
    text = closing(run)
    end = text[text.index("❌ Broken") :]
    assert end.count("illegal memory access") == 1
    assert end.count("- Case: ") == 1
    assert "target: crash: Segmentation fault" in end
    assert text.count("not measured: crash (as in 2 other cases; see the end)") == 3


def test_a_reason_of_one_arm_stays_with_its_case_when_the_others_is_shared():
    plain = crashes("cc")
    odd = runs.observed(plain.cells[0], "base", None, "oom", reason="96 GiB")
    rest = [seen for seen in plain.observations if (seen.cell, seen.arm) != (odd.cell, "base")]
    end = closing(runs.changed(plain, observations=(odd, *rest))).partition("❌ Broken")[2]
    assert "  - feature/optimize ffa, 2 cells (first: dense direction=fwd): crash" in end
    assert end.count("- Case: ") == 1
    assert "    base: out of memory: 96 GiB" in end
    assert "target: crash" not in end


def test_a_peer_that_fails_alone_says_why():
    plain = runs.run()
    peer = runs.observed(plain.cells[-1], "peer:sdpa", None, "crash", reason="no kernel for hd=256")
    rest = [seen for seen in plain.observations if seen.arm != "peer:sdpa"]
    assert (
        told(runs.changed(plain, observations=(*rest, peer)))[-1].line()
        == "peer sdpa, ladder: crash: no kernel for hd=256"
    )


def test_unsupported_is_told_where_the_other_side_ran():
    plain = runs.run()
    cell = plain.cells[0]
    seen = (runs.observed(cell, "base", None, "unsupported", reason="needs sm_90"), runs.observed(cell, "target", 1.0))
    judged = (runs.compared(cell, "unclear", reasons=("base_unsupported",)),)
    run = runs.changed(plain, cells=(cell,), observations=seen, comparisons=judged)
    assert [one.line() for one in told(run)] == ["main, dense: unsupported: needs sm_90"]


def test_what_neither_side_supports_is_told_where_there_is_nothing_else():
    """Else the answer is `Nothing was measured: 1 unsupported`, and nobody says why."""
    plain = runs.run()
    cell, other = plain.cells[:2]
    sides = ("base", "target")
    seen = [runs.observed(cell, side, None, "unsupported", reason="needs sm_90") for side in sides]
    judged = runs.compared(cell, "unclear", reasons=("unsupported",))
    alone = runs.changed(plain, cells=(cell,), observations=tuple(seen), comparisons=(judged,))
    assert [one.line() for one in told(alone)] == [
        "main, dense: unsupported: needs sm_90",
        "feature/optimize ffa, dense: unsupported: needs sm_90",
    ]
    seen += [runs.observed(other, side, 1.0) for side in sides]
    rows = (judged, runs.compared(other, "same"))
    assert told(runs.changed(alone, cells=(cell, other), observations=tuple(seen), comparisons=rows)) == []


def test_a_run_of_one_branch_tells_what_did_not_run():
    both = failed_builds()
    run = runs.changed(both, sides=both.sides[:1], comparisons=(), warnings=(), builds=both.builds[:1],
                       arms=both.arms[:1], observations=tuple(o for o in both.observations if o.arm == "base"))  # fmt: skip
    assert sum("package ffa (15 cells): build failed" in line for line in shown(run)) == 1
    assert "❌ Not measured:\n  - main, package ffa (15 cells): build failed" in closing(run)


@pytest.mark.parametrize(
    ("name", "path"),
    [("build-base-ffa.log", "logs/build-base-ffa.log"), ("logs/x.log", "logs/x.log"), ("", ""), ("../x", "../x")],
)
def test_a_log_lies_in_logs(name, path):
    assert log_path(name) == path


def test_a_warning_names_cells_as_the_tables_do():
    run = failed_builds()
    text = advice_text(run, run.warnings[0])
    assert text.startswith(
        "15 cells broken (first: dense mask_type=full direction=fwd, target build_failed: ffa.cu(12)"
    )
    assert "nhq=" not in text
    assert text.endswith("…)")
    for page in ("\n".join(shown(run)), closing(run), html(run, ())):
        assert "(first: dense mask_type=full direction=fwd, target build_failed" in page
    assert "first: dense mask\\_type=full direction=fwd, target build\\_failed" in markdown(run, ())


def test_a_warning_keeps_apart_cells_whose_ids_begin_alike():
    plain = runs.run()
    first = runs.changed(plain.cells[0], id="dense/n=1", params={"n": 1})
    second = runs.changed(first, id="dense/n=16", params={"n": 16})
    load = runs.changed(runs.DENSE, axes=("n",))
    advice = Advice(kind="x", text="see dense/n=1 and dense/n=16", cells=(first.id, second.id))
    run = runs.changed(plain, cells=(first, second), workloads=(load,), observations=(), comparisons=())
    assert advice_text(run, advice) == "see dense n=1 and dense n=16"
