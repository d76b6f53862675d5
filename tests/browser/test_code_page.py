"""The page of both sides' code in a real browser: the mouse, the keyboard alone, and without scripts."""

import gzip
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abprof.records import Cause, Hunk, Listed, Listing, Run, Spent, Stage
from abprof.records.names import short_labels
from abprof.report import write_all
from tests import runs

BEFORE = "import triton\n\n\ndef f(x):\n    a = load(x)\n    return a * 2\n"
AFTER = BEFORE.replace("    a = load(x)\n", "    a = load(x)  # <b>&\n    a = exp(a)\n")
STAGES = {
    "base": ["    LDG.E R1, [R2]", "    FMUL R3, R1, 2", "    STG.E [R4], R3"],
    "target": ["    LDG.E R7, [R2]", "    MUFU.EX2 R8, R7", "    FMUL R3, R8, 2", "    STG.E [R4], R3"],
}
AT = {"base": (0, 1, 1), "target": (0, 1, 2, 2)}


def compared(folder: Path, lead: int = 0, other: str = "NOP") -> Run:
    """A run with a kernel that has a new line in its target, with `lead` `other` instructions before, and more after."""
    made = runs.run()
    [row, *_] = [row for row in made.comparisons if row.verdict == "slower"]
    files = []
    for side, text in (("base", BEFORE), ("target", AFTER)):
        places = [(f"f.py:{line}",) for line in ((5, 6) if side == "base" else (5, 6, 7))]
        stages = (Stage(name="PTX", lines=("ld.global %r1;",), at=(0,)),
                  Stage(name="TTGIR", lines=(f"%x = add %y : tensor<4xf32, #mma{'1' * (side == 'target')}>",), at=(0,)),
                  Stage(name="SASS", lines=(*["    " + other] * lead, *STAGES[side], *["    EXIT"] * 4 * lead),
                        at=(*[0] * lead, *AT[side], *[0] * 4 * lead)))  # fmt: skip
        classes = {places[-1][0]: {"global stores": len(places) - 1, "other": len(places)}}
        listing = Listing(
            name="f", side=side, places=tuple(places), files={"f.py": text}, classes=classes, stages=stages
        )
        files.append(f"code/f.{side}.json.gz")
        (folder / "code").mkdir(exist_ok=True)
        (folder / files[-1]).write_bytes(gzip.compress(msgspec.json.encode(listing)))
    spent = {"f.py:5": Spent(samples=9)}, {"f.py:5": Spent(samples=6), "f.py:6": Spent(samples=4, stall="mio_throttle")}
    listed = Listed(
        cell=row.cell, from_=row.from_, to=row.to, kernel="f", files=(files[0], files[1]), spent=spent, by="ncu"
    )
    cause = Cause(
        kind="kernel",
        text="more special functions: 0 -> 1 in f",
        kernels=("f",),
        at="f.py:6",
        note="changed: lines 5 to 6, was line 5",
    )
    changed = msgspec.structs.replace(row, causes=(cause,))
    removed, added = "    a = load(x)", "    a = load(x)  # <b>&\n    a = exp(a)"
    hunk = Hunk(file="f.py", at=(5, 5), count=(1, 2), removed=removed, added=added)
    return msgspec.structs.replace(
        made, listed=(listed,), hunks={row.to.partition(":")[0]: (hunk,)},
        comparisons=tuple(changed if one is row else one for one in made.comparisons),
    )  # fmt: skip


def page_of(folder: Path, *more: Any) -> str:
    write_all(folder, compared(folder, *more), [])
    [page] = (folder / "code").glob("*.html")
    return page.read_text()


def lit(page) -> list[str]:
    """The lit instructions, left and right."""
    return [text.strip() for text in page.locator("#code .lit .l + span").all_text_contents()]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    return page_of(tmp_path_factory.mktemp("code"))


def opened(visit, text: str):
    page = visit(text)
    page.locator("html[data-ready]").wait_for()
    return page


def test_a_click_on_a_line_lights_up_its_instructions_on_both_sides(visit, text):
    page = opened(visit, text)
    assert lit(page) == ["MUFU.EX2 R8, R7"], "the line of the cause is chosen at first"
    assert page.locator("#said").inner_text() == "line 6: special functions: 0 → 1; 0 → 1 lines of SASS"
    page.locator("#source .has", has_text="return a").click()
    assert lit(page) == ["FMUL R3, R1, 2", "FMUL R3, R8, 2", "STG.E [R4], R3", "STG.E [R4], R3"]
    assert page.locator("#source .has", has_text="load").locator("span").nth(4).inner_text() == "→ 1", (
        "was another line"
    )
    assert (
        page.locator("#source .has", has_text="return a").locator("span").last.inner_text() == "global stores: 1 → 2"
    ), "any line says which classes of instructions differ"
    assert page.locator("#code .k0").count() == 3, "names of registers are no difference"
    page.locator("#code .r", has_text="LDG").click()
    assert lit(page) == ["LDG.E R1, [R2]", "LDG.E R7, [R2]"]
    assert (
        page.locator("#source .has", has_text="exp").locator("span").last.inner_text()
        == "special functions: 0 → 1; 0 % → 40 % mio throttle"
    )


def test_a_line_that_rows_share_says_whose_samples_it_shows(visit, tmp_path):
    run = compared(tmp_path)
    [one] = run.listed
    other = next(row for row in run.comparisons if row.cell != one.cell and row.to == one.to and row.from_ == one.from_)
    spent = {"f.py:6": Spent(samples=9)}, {"f.py:7": Spent(samples=9)}
    more = msgspec.structs.replace(one, cell=other.cell, spent=spent)
    write_all(tmp_path, msgspec.structs.replace(run, listed=(one, more)), [])
    page = opened(visit, next((tmp_path / "code").glob("*.html")).read_text())
    cells = short_labels(run.cells)
    for line, text, cell in (("exp", "0 % → 40 % mio throttle", one.cell), ("return a", "100 % → 100 %", other.cell)):
        shown = page.locator("#source .has", has_text=line).locator("span").last.inner_text()
        assert f"{text} ({cells[cell]})" in re.sub(r"\s+", " ", shown)


def test_an_address_with_a_line_opens_this_line_and_its_first_instruction(visit, tmp_path, text):
    page = visit(text, "#f.py%3A7")
    page.locator("html[data-ready]").wait_for()
    assert page.locator("#said").inner_text().startswith("line 7: ")
    assert page.evaluate("scrollY") == 0
    page.keyboard.press("ArrowUp")
    assert page.locator("#said").inner_text().startswith("line 6: "), "the keyboard goes on from the line"
    page = visit(page_of(tmp_path, 15), "#f.py%3A6")
    page.locator("html[data-ready]").wait_for()
    code, line = page.locator("#code").bounding_box(), page.locator("#code .lit").first.bounding_box()
    assert 0 <= line["y"] - code["y"] < 60


def test_long_lines_do_not_move_the_first_instruction_out_of_sight(visit, tmp_path):
    page = opened(visit, page_of(tmp_path, 40, "IMAD R1, R2, R3, R4 " * 40))
    page.wait_for_function("""() => {
        const [pane, line] = ["#code", "#code .lit"].map((at) => document.querySelector(at).getBoundingClientRect());
        return pane.top <= line.top && line.bottom <= pane.bottom;
    }""")


def test_a_line_without_instructions_is_chosen_and_says_so(visit, text):
    page = visit(text, "#f.py%3A4")
    page.locator("html[data-ready]").wait_for()
    assert "def f(x):" in page.locator("#source [aria-selected=true]").inner_text()
    assert page.locator("#said").inner_text() == "line 4: 0 → 0 lines of SASS"


def test_a_row_links_its_line_and_the_other_kernels_by_name(tmp_path):
    run = compared(tmp_path)
    [one] = run.listed
    other = msgspec.structs.replace(one, kernel="g", files=(one.files[0], one.files[0]))
    write_all(tmp_path, msgspec.structs.replace(run, listed=(other, one)), [])
    headline = (tmp_path / "report.html").read_text().partition("</header>")[0]
    assert re.findall(r'<a href="code/([a-z]).*?">(.*?)</a>', headline) == [("f", "f.py:6"), ("g", "Code of g")]
    assert "<del>- a = load(x)</del>" not in headline, "the line is new"
    assert "<ins>+ a = exp(a)</ins>" in headline


def test_the_keyboard_alone_reaches_everything(visit, text):
    page = opened(visit, text)
    press = page.keyboard.press
    press("Tab")  # the link to the report
    press("Tab")
    assert page.evaluate("document.activeElement.id") == "source"
    press("ArrowDown")
    assert page.locator("#said").inner_text().startswith("line 7")
    press("ArrowUp")
    press("ArrowUp")
    assert lit(page) == ["LDG.E R1, [R2]", "LDG.E R7, [R2]"]
    press("Enter")
    assert "LDG" in page.locator("#code [aria-selected=true]").text_content()
    press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "SASS"
    press("ArrowLeft")
    press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == "PTX"
    assert page.locator("#code .r").count() == 1
    press("ArrowRight")
    press("ArrowRight")
    press("Tab")
    press("Enter")  # the next difference
    assert "MUFU" in page.locator("#code [aria-selected=true]").text_content()
    press("Tab")
    assert page.evaluate("document.activeElement.id") == "code"
    press("Enter")
    assert lit(page) == ["MUFU.EX2 R8, R7"]


def page_with(folder: Path, stages: dict[int, Stage]) -> Path:
    """The page with another last form, by side."""
    run = compared(folder)
    for side, stage in stages.items():
        file = folder / run.listed[0].files[side]
        made = msgspec.json.decode(gzip.decompress(file.read_bytes()), type=Listing)
        changed = msgspec.structs.replace(made, stages=(*made.stages[:2], stage))
        file.write_bytes(gzip.compress(msgspec.json.encode(changed)))
    write_all(folder, run, [])
    [page] = (folder / "code").glob("*.html")
    return page


def test_a_diff_has_the_room_that_others_leave(tmp_path):
    page = page_with(tmp_path, {1: Stage(name="SASS", lines=("    MUFU.EX2 R8, R7",) * 1500, at=(1,) * 1500)})
    assert "<summary>SASS</summary>" in page.read_text()
    assert page.stat().st_size > 62_500, "more than a fourth"


def test_jumps_in_templates_that_moved_are_no_difference(tmp_path):
    jumps = [f"    jne    11{n} <void all<float>(A<int>&)+0x{n}>" for n in (38, 40)]
    page = page_with(tmp_path, {n: Stage(name="assembly", lines=(one,), at=(0,)) for n, one in enumerate(jumps)})
    assert re.findall("<summary>(.*?)</summary>", page.read_text()) == ["f.py"]


def test_without_scripts_it_is_a_unified_diff(visit, text):
    page = visit(text, java_script_enabled=False)
    assert not page.locator("#view").is_visible()
    assert page.locator("#plain pre").first.inner_text().splitlines()[-4:] == [
        "    5 -    a = load(x)", "    5 +    a = load(x)  # <b>&", "    6 +    a = exp(a) ← the line of the cause",
        "    7      return a * 2",
    ]  # fmt: skip
    assert page.locator("[id='f.py:6']").inner_text() == "    6", "the report links this line"
    assert page.locator("summary").all_inner_texts() == ["f.py", "SASS"], "the others do not differ"
