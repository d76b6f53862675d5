"""Failures in reports: each reason once, with its cost, cut in short lines and whole elsewhere."""

import re

from abprof.records import Advice, Arm, Build, Failure, Run
from abprof.report.rows import Failed, all_failures, groups
from tests.reports import footer, markdown, shown

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
    arms = (Arm(id="base", side="base"), Arm(id="target", side="target"), Arm(id="peer:sdpa", side="base", peer="s"))
    seen = (runs.observed(cell, arm, None, "build_failed", reason=ERROR, log=log[arm]) for cell in cells for arm in log)
    broken = Advice(
        kind="broken", text=f"{len(cells)} cells broken (first: {cells[0].id}, target build_failed: {ERROR})",
        advice="read logs/target-ffa.log in the run folder", cells=tuple(cell.id for cell in cells),
    )  # fmt: skip
    return runs.changed(
        plain, cells=cells, builds=(built("base", failure), built("target", failure)), arms=arms, observations=tuple(seen),
        comparisons=tuple(runs.compared(cell, "broken", reasons=("both",)) for cell in cells), controls=(), warnings=(broken,),
    )  # fmt: skip


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


def listed(run: Run) -> list[Failed]:
    return all_failures(run, groups(run))


def test_sides_of_one_label_are_distinguished() -> None:
    """`abprof main main`, and neither builds."""
    of = failed_builds()
    twice = runs.changed(of, sides=(of.sides[0], runs.changed(of.sides[1], label=of.sides[0].label)))
    lines = [failed.line() for failed in all_failures(twice, groups(twice))]
    assert [line.split(",")[0] for line in lines] == ["main (base)", "main (target)"]


def test_a_failed_build_is_shown_once_per_side_and_package():
    run = failed_builds()
    cells = len(run.cells)
    assert cells == 15
    assert [(one.arm, len(one.cases), one.log) for one in listed(run)] == [
        ("main", cells, "logs/build-base-ffa.log"),
        ("feature/optimize ffa", cells, "logs/build-target-ffa.log"),
    ]
    assert {one.reason for one in listed(run)} == {ERROR}


def test_the_reason_is_shown_once_a_side_and_cut_to_a_line():
    run = failed_builds()
    start = re.escape(ERROR[:40])
    for lines in (shown(run).splitlines(), footer(run).splitlines()):
        found = [line for line in lines if re.search(start, line) and "15 cells (first" in line]
        assert len(found) == 2, found
        assert re.search(
            r"main, 15 cells \(first: dense mask_type=full direction=fwd\): build failed: .{159}… \[logs/build-base-ffa\.log\]$",
            found[0],
        )
        assert not any("THE-END" in line for line in lines)
        assert max(map(len, lines)) < 500
    text = markdown(run, ())
    assert text.count("| `15 cells (first: dense mask_type=full direction=fwd)` |") == 2
    assert "THE-END" not in text.partition("## Can it be trusted")[0]


def test_equal_reasons_of_crashes_are_shown_together():
    run = crashes("ccdc")
    assert [(one.what, one.reason[:12]) for one in listed(run)] == [
        ("3 cells (first: dense mask_type=full direction=fwd)", "RuntimeError"),
        ("dense mask_type=causal direction=fwd", "Segmentation"),
    ]
    text = footer(run)
    end = text[text.index("❌ No speed") :]
    assert end.count("illegal memory access") == 1
    assert "dense mask_type=causal direction=fwd: crash: Segmentation fault" in end


def test_a_peer_that_fails_alone_says_why():
    plain = runs.run()
    peer = runs.observed(plain.cells[-1], "peer:sdpa", None, "crash", reason="no kernel for hd=256")
    rest = [seen for seen in plain.observations if seen.arm != "peer:sdpa"]
    assert (
        listed(runs.changed(plain, observations=(*rest, peer)))[-1].line()
        == "peer sdpa, ladder: crash: no kernel for hd=256"
    )
