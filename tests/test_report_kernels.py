"""The reports say why a row changed, and show both sides' kernels with what differs marked."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from abprof.records import Census, Launch, Run
from abprof.report import kernels, terminal, view
from abprof.report.html import html
from abprof.report.markdown import markdown
from tests import runs
from tests.why import cases

SIDES = cases.recorded()


def run_of(branch: str, pct: float = 30.0) -> Run:
    return cases.run(SIDES[branch]["base"], SIDES[branch]["target"], pct)


def detail(run: Run) -> dict[str, tuple[str, ...]]:
    [group] = view.groups(run)
    [row] = group.rows
    return {label: told for label, *told in kernels.rows(run, row)}


def test_every_report_has_the_sentence() -> None:
    run = run_of("spill")
    said = "registers 73 -> 32, 106 spill stores appeared, 110 spill loads appeared in polynomial"
    page = html(run, []).replace("&gt;", ">")
    assert page.count(said) == 2  # in the row, and in its detail
    text = markdown(run, [])
    assert "What most likely changed:" in text
    assert f"{said.replace('->', '-&gt;')}; time +30.0 %" in text
    out = io.StringIO()
    terminal.show(run, Console(file=out, width=300), Path("runs/x"))
    assert f"{said}; time +30.0 % [30.0, 30.0]" in out.getvalue()


def test_what_differs_is_marked_and_what_does_not_stands_once() -> None:
    rows = detail(run_of("spill"))
    assert rows["≠ – registers"] == ["73", "32"]
    assert rows["– warps, stages"] == ["4, 3"]
    assert rows["– constants"] == ["BLOCK=4096"]
    assert rows["kernel"] == ["polynomial, 1× grid 4096 block 128"]
    assert "local stores 106" in rows["≠ – instructions"][1]
    assert len(rows["≠ – machine code"]) == 2


def test_launches_of_one_side_are_named() -> None:
    rows = detail(run_of("added_launch"))
    assert rows["≠ only target launches"] == ["clamp (1×, 650 µs)"]
    assert rows["– machine code"][0]


def test_a_row_that_did_not_change_says_so_in_a_line() -> None:
    run = cases.run(SIDES["spill"]["base"], SIDES["spill"]["base"], 0.0)
    assert detail(run) == {"kernels": ["1 kernel, the same code and launches on both sides"]}
    assert "What most likely changed" not in markdown(run, [])


def launched(*counts: int) -> Census:
    names = ("preprocess", "ffa_bwd", "join", "cast", "fill", "copy")
    return Census(
        on_device=True,
        launches=tuple(
            Launch(name=name, count=1, ns=ns, grid=(4220, 1, 1), block=(384, 1, 1), registers=168, shared_bytes=182256)
            for name, ns in zip(names, counts, strict=False)
        ),
    )


def test_a_row_that_did_not_change_names_what_its_longest_kernel_takes() -> None:
    [mine] = cases.census(SIDES["spill"]["base"], 9e6).launches
    seen = msgspec.structs.replace(mine, registers=73, shared_bytes=2048)
    one = Census(launches=(seen, *launched(72_000).launches), on_device=True)
    run = cases.run(SIDES["spill"]["base"], SIDES["spill"]["base"], 0.0, censuses=(one, one))
    [told] = detail(run)["kernels"]
    assert told == "2 kernels, the same code and launches on both sides; polynomial, 73 registers, 2.0 KiB shared"


def test_nothing_is_said_to_be_the_same_that_was_not_read() -> None:
    """Launches alike of which no kernel's code is known; and a CPU's operations, which are no kernels."""
    one = launched(72_000)
    unknown = cases.run(SIDES["spill"]["base"], SIDES["spill"]["base"], 0.0, censuses=(one, one))
    assert "kernels" not in detail(unknown)
    run = cases.run(SIDES["spill"]["base"], SIDES["spill"]["base"], 0.0)
    on_cpu = msgspec.structs.replace(run, machine=msgspec.structs.replace(run.machine, kind="cpu"))
    assert "kernels" in detail(run)
    assert "kernels" not in detail(on_cpu)


def test_one_branch_shows_the_kernels_it_launched_the_longest_first() -> None:
    whole = runs.single()
    [group, *_] = view.groups(whole)
    seen = next(row for row in group.rows if row.base)
    observed = msgspec.structs.replace(seen.base, census=launched(72_000, 9_534_000, 18_000, 97_000, 57_000, 1_000))
    told = list(kernels.rows(whole, dataclasses.replace(seen, base=observed)))
    assert told[0] == ("kernel", "ffa_bwd, 1× grid 4220 block 384, 9.53 ms, 168 registers, 178.0 KiB shared")
    assert [text.partition(",")[0] for _, text in told] == ["ffa_bwd", "cast", "preprocess", "fill", "2"]


def test_no_cause_is_said() -> None:
    unread = {side: part | {"kernels": [one | {"classes": None, "registers": None, "missing": "no cuobjdump here"}
                                        for one in part["kernels"]]} for side, part in SIDES["spill"].items()}  # fmt: skip
    alike = cases.census(unread["base"], 1e6), cases.census(unread["target"], 1e6)  # the profiled call shows no kernel
    run = cases.run(unread["base"], unread["target"], 30.0, censuses=alike)
    assert kernels.because(run.comparisons[0]) == "no cause found"
    assert detail(run)["– instructions"] == ["not recorded: no cuobjdump here"]


def test_a_census_that_is_missing_says_why() -> None:
    missing = Census(missing="the profiler saw no kernel")
    run = cases.run(SIDES["spill"]["base"], SIDES["spill"]["target"], 30.0, censuses=(missing, missing))
    row = msgspec.structs.replace(run.comparisons[0], causes=())
    rows = detail(msgspec.structs.replace(run, comparisons=(row,)))
    assert rows["launches"] == ["not recorded: the profiler saw no kernel"] * 2


@pytest.mark.parametrize("render", [html, markdown])
def test_names_of_kernels_are_text(render: object) -> None:
    sides = {side: part | {"kernels": [one | {"name": runs.HOSTILE} for one in part["kernels"]]}
             for side, part in SIDES["added_launch"].items()}  # fmt: skip
    text = render(cases.run(sides["base"], sides["target"], 30.0), [])  # type: ignore[operator]
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_runs_without_kernels_have_no_rows_of_them() -> None:
    for group in view.groups(runs.run()):
        assert [list(kernels.rows(runs.run(), row)) for row in group.rows] == [[] for _ in group.rows]
