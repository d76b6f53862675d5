"""Causes name the line of source that was planted, and pages show both sides' code."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abprof.evidence import hunks, stages
from abprof.evidence.causes import changed
from abprof.evidence.causes.lines import located
from abprof.records import Cause, Listing, Run, Spent
from abprof.report import sentences, write_all
from tests.planted import lined
from tests.why import cases
from tests.why.listed import compiled, run_of

pytestmark = pytest.mark.skipif(shutil.which("objdump") is None, reason="reads machine code")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("lines")
    return folder, compiled(folder, "narrow")["narrow"]


def named(run: Run) -> list[Cause]:
    [row] = run.comparisons
    return list(row.causes or ())


def listing(run: Run, home: Path, side: int) -> Listing:
    [one] = run.listed
    return msgspec.json.decode(gzip.decompress((home / one.files[side]).read_bytes()), type=Listing)


def test_a_cause_names_its_line_and_the_hunk_that_changed_it(narrow: Any) -> None:
    folder, sides = narrow
    run, _ = run_of(folder, "narrow", sides)
    [cause] = named(run)
    assert (cause.kind, {cause.at}) == ("memory", lined.lines_of("narrow"))
    assert re.fullmatch(r"\d+ of \d+ more global loads in the hunk; changed by hunk -48 \+50", cause.note)
    assert sentences.cause(cause).startswith(
        "kernels/lined/kernels.py:50: more global memory traffic: global loads 4 -> "
    )


def test_every_form_has_the_line_of_the_load(narrow: Any) -> None:
    """LLVM counts the lines of inline assembly as lines of source, and ptxas believes it: those would be wrong lines."""
    folder, sides = narrow
    run, home = run_of(folder, "narrow", sides)
    made = listing(run, home, 0)
    assert [stage.name for stage in made.stages] == ["TTIR", "TTGIR", "LLVM IR", "PTX", "SASS"]
    text = made.files["kernels/lined/kernels.py"].splitlines()
    for stage in made.stages:
        loads = {made.places[at][0] for line, at in zip(stage.lines, stage.at, strict=True)
                 if re.search(r"tt\.load|ld\.global|\bLDG", line)}  # fmt: skip
        assert {text[int(where.rpartition(":")[2]) - 1].split("(")[0].strip() for where in loads} == {
            "first = tl.load", "second = tl.load",
        }, stage.name  # fmt: skip


def test_no_line_is_named_where_the_code_is_the_same(narrow: Any) -> None:
    folder, sides = narrow
    run, _ = run_of(folder, "narrow", {"base": sides["base"], "target": sides["base"]})
    [cause] = named(run)
    assert (cause.kind, cause.at, run.listed) == ("same_code", None, ())


def test_no_line_is_found_where_the_instructions_and_the_diff_do_not_show_one(narrow: Any) -> None:
    folder, sides = narrow
    run, _ = run_of(folder, "narrow", sides)
    kernels = tuple(msgspec.structs.replace(kernel, lines={}) for kernel in run.kernels)
    target = [hunk for hunk in run.hunks["target"] if any(hunk.inside)]
    again = [msgspec.structs.replace(hunk, inside=(0, 0)) for hunk in target]
    run = msgspec.structs.replace(run, kernels=kernels, hunks={"target": tuple(again)})
    [cause] = cases.explained(run).comparisons[0].causes or ()
    assert (cause.at, sentences.cause(cause)[-16:]) == ("", " (no line found)")


def test_the_page_and_the_reports_link_and_show_it(narrow: Any) -> None:
    folder, sides = narrow
    run, home = run_of(folder, "narrow", sides)
    write_all(home, run, [])
    [page] = (home / "code").glob("*.html")
    text = page.read_text()
    assert "<del>-" in text
    assert len(text) < 1_000_000
    assert f'href="code/{page.name}"' in (home / "report.html").read_text()
    assert f"code of both sides: `code/{page.name}`" in (home / "report.md").read_text()


def test_samples_of_both_sides_name_the_line_and_what_it_waits_for(narrow: Any) -> None:
    folder, sides = narrow
    run, _ = run_of(folder, "narrow", sides)
    at = "kernels/lined/kernels.py:"
    spent = ({f"{at}48": Spent(samples=20), f"{at}47": Spent(samples=80)},
             {f"{at}50": Spent(samples=40, stall="long_scoreboard"), f"{at}49": Spent(samples=60)})  # fmt: skip
    [listed] = run.listed
    run = msgspec.structs.replace(run, listed=(msgspec.structs.replace(listed, spent=spent, by="ncu"),))
    [cause] = cases.explained(run).comparisons[0].causes or ()
    [sides] = changed(run)
    assert [one.at for one in located(run, sides, [])] == [f"{at}50"], "samples alone can name a line of the diff"
    waits = spent[0] | {f"{at}46": Spent(samples=0)}, spent[1] | {f"{at}48": Spent(samples=900)}
    other = msgspec.structs.replace(run, listed=(msgspec.structs.replace(listed, spent=waits, by="ncu"),))
    assert located(other, sides, []) == [], "another line may only wait for one that changed"
    assert cause.at == f"{at}50"
    assert cause.note.endswith("; line 50: 20 % -> 40 % of samples, stall: long scoreboard")


@pytest.mark.slow
def test_every_planted_line_is_named(tmp_path: Path) -> None:
    for branch, sides in compiled(tmp_path).items():
        run, _ = run_of(tmp_path, branch, sides)
        causes = named(run)
        assert causes[0].kind in lined.BRANCHES[branch].kinds, branch
        assert {causes[0].at} == lined.lines_of(branch), branch


# ---------------------------------------------------------------- one form


def test_lines_of_cpp_go_to_the_caller_too(tmp_path: Path) -> None:
    source = tmp_path / "a.cpp"
    inner, outer = "static inline float twice(float a) {\n  return a * 3.0f;\n}\n", "  return twice(a) + 1;\n"
    source.write_text(f'{inner}extern "C" float f(float a) {{\n{outer}}}\n')
    subprocess.run(["g++", "-g", "-O2", "-c", "-o", str(tmp_path / "a.o"), str(source)], check=True)
    text = subprocess.run(["objdump", "-d", "-l", "--inlines", "-C", "--no-show-raw-insn", str(tmp_path / "a.o")],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    found = {line.split()[0]: [number for _, number in chain] for line, chain, *_ in stages.x86(text, {"f"})}
    assert (found["mulss"], found["addss"]) == ([2, 5], [5])


def test_a_hunk_knows_its_lines_and_the_triton_function_that_has_it() -> None:
    before = ["import triton", "@triton.jit", "def f(x):", "    return x", "", "A = 1"]
    after = ["import triton", "@triton.jit", "def f(x):", "    y = x", "    return y", "", "A = 2", "B = 1"]
    found = list(hunks.compared("a.py", before, after))
    assert [(hunk.line, hunk.inside) for hunk in found] == [("-4 +4,2", (3, 5)), ("-6 +7,2", (0, 0))]
