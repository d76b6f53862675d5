"""Causes name the line of source that was planted, and pages show both sides' code."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from abprof.evidence import explained, hunks, keep_listings, machine_code, stages
from abprof.evidence.causes import changed
from abprof.evidence.causes.lines import located
from abprof.evidence.listing import _is, _of_perf, _Tree
from abprof.records import (
    Artefact,
    Build,
    Cause,
    Checkout,
    Function,
    Hunk,
    Kernel,
    Listing,
    Profile,
    Proof,
    Run,
    Sampled,
    SampledFunction,
    Spent,
)
from abprof.report import sentences, write_all
from tests import blocks
from tests.planted import marked
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
    assert (cause.kind, {cause.at}) == ("memory", marked.right("narrow"))
    assert re.fullmatch(r"\d+ of \d+ more global loads in the changed lines; changed: line 14, was line 11", cause.note)
    assert sentences.cause(cause).startswith("kernels/lined/blur.py:14: more global memory traffic: global loads 4 -> ")


def test_every_form_has_the_line_of_the_load(narrow: Any) -> None:
    """LLVM counts the lines of inline assembly as lines of source, and ptxas believes it: those would be wrong lines."""
    folder, sides = narrow
    run, home = run_of(folder, "narrow", sides)
    made = listing(run, home, 0)
    assert [stage.name for stage in made.stages] == ["TTIR", "TTGIR", "LLVM IR", "PTX", "SASS"]
    text = made.files["kernels/lined/blur.py"].splitlines()
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


def test_no_line_of_a_package_that_the_row_does_not_run_is_named(narrow: Any) -> None:
    folder, sides = narrow
    run, _ = run_of(folder, "narrow", sides)
    kernels = tuple(msgspec.structs.replace(kernel, lines={}) for kernel in run.kernels)
    hunk = Hunk(file="kernels/other/parts.cu", at=(8, 8), count=(1, 1), removed="y = 1;", added="y = 2;")
    for others, at in ((run.builds, "kernels/other/parts.cu:8"), ((Build(side="base", kernel="other", key=""),), "")):
        again = msgspec.structs.replace(run, kernels=kernels, hunks={"target": (hunk,)}, builds=(*run.builds, *others))
        [cause] = cases.explained(again).comparisons[0].causes or ()
        assert cause.at == at


def test_the_page_and_the_reports_link_and_show_it(narrow: Any) -> None:
    folder, sides = narrow
    run, home = run_of(folder, "narrow", sides)
    write_all(home, run, [])
    [page] = (home / "code").glob("*.html")
    text = page.read_text()
    assert "<del>-" in text
    assert len(text) < 1_000_000
    report = (home / "report.html").read_text()
    line = f'<b><a href="code/{page.name}#kernels/lined/blur.py%3A14">kernels/lined/blur.py:14</a></b>'
    assert f"{line}: more global memory traffic: global loads" in report
    assert "in the changed lines" in report.partition("Cell by cell")[2], "evidence stands in the cell's detail"
    assert "in the changed lines" not in report.partition("Cell by cell")[0]
    for one in (report.partition("</header>")[0], text.partition("</header>")[0]):
        assert re.search(r'<pre class="changed"><del>- .*load.*</del><ins>\+ .*load.*</ins></pre>', one)
    assert "Source: main left, optimize_ffa right" in text
    assert f"code of both sides: `code/{page.name}`" in (home / "report.md").read_text()


def test_a_page_is_made_of_any_source_and_a_damaged_listing_makes_none(narrow: Any) -> None:
    folder, sides = narrow
    run, home = run_of(folder, "narrow", sides)
    (file, *_), [one] = listing(run, home, 0).files, run.listed
    random = Random(1)
    large = "".join(f"# {random.getrandbits(256):x} {random.getrandbits(256):x}\n" for _ in range(15_000))
    for side, text in enumerate(("\tx = 1  # </script>\u202e\x1b\u2066`\n", large)):
        made = msgspec.structs.replace(listing(run, home, side), files={file: text})
        (home / one.files[side]).write_bytes(gzip.compress(msgspec.json.encode(made)))
    write_all(home, run, [])
    [page] = (home / "code").glob("*.html")
    text = page.read_text()
    assert len(text) < 1_000_000
    assert not {*text} & {*"\u202e\x1b\u2066"}
    assert "    x = 1  # &lt;/script&gt;\ufffd" in re.sub(r"</?i[^>]*>", "", text)
    page.unlink()
    data = bytearray((home / one.files[0]).read_bytes())
    data[20] ^= 0xFF  # zlib refuses it
    (home / one.files[0]).write_bytes(data)
    write_all(home, run, [])
    assert not page.exists()


def test_samples_of_both_sides_name_the_line_and_what_it_waits_for(narrow: Any) -> None:
    folder, sides = narrow
    run, _ = run_of(folder, "narrow", sides)
    at = "kernels/lined/blur.py:"
    spent = ({f"{at}11": Spent(samples=200), f"{at}10": Spent(samples=800)},
             {f"{at}14": Spent(samples=400, stall="long_scoreboard"), f"{at}13": Spent(samples=600)})  # fmt: skip
    [listed] = run.listed
    run = msgspec.structs.replace(run, listed=(msgspec.structs.replace(listed, spent=spent, by="ncu"),))
    [cause] = cases.explained(run).comparisons[0].causes or ()
    [sides] = changed(run)
    assert [one.at for one in located(run, sides, [])] == [f"{at}14"], "samples alone can name a line of the diff"
    waits = spent[0] | {f"{at}9": Spent(samples=0)}, spent[1] | {f"{at}12": Spent(samples=9000)}
    other = msgspec.structs.replace(run, listed=(msgspec.structs.replace(listed, spent=waits, by="ncu"),))
    assert located(other, sides, []) == [], "another line may only wait for one that changed"
    few = tuple({where: Spent(samples=one.samples // 25) for where, one in of.items()} for of in spent)
    other = msgspec.structs.replace(run, listed=(msgspec.structs.replace(listed, spent=few, by="ncu"),))
    assert located(other, sides, []) == [], "40 samples differ as much by chance"
    assert cause.at == f"{at}14"
    assert cause.note.endswith("; line 14 (tl.load): 20 % -> 40 % of samples, stall: long scoreboard")


def test_a_row_that_did_not_change_has_its_samples_and_names_nothing(narrow: Any) -> None:
    folder, sides = narrow
    (home := folder / "run_narrow").mkdir(exist_ok=True)
    name = sides["base"]["kernels"][0]["name"]
    (home / "a.csv").write_text(f'"Kernel Name","{name}"\n"Address","Source","# Samples"\n"0","LDC","7"\n')
    cell = cases.run(sides["base"], sides["target"], 0.1).cells[0].id
    profiles = tuple(Profile(cell=cell, arm=arm, purpose="profile", warmup=0, runs=1, source="a.csv")
                     for arm in ("base", "target"))  # fmt: skip
    run, home = run_of(folder, "narrow", sides, 0.1, profiles=profiles)
    [row], [listed] = run.comparisons, run.listed
    assert (row.verdict, row.causes or (), listed.by) == ("same", (), "ncu")
    assert [[one.samples for one in of.values()] for of in listed.spent] == [[7], [7]]
    write_all(home, run, [])
    detail = (home / "report.html").read_text().partition("Cell by cell")[2]
    assert 'Code of both sides: <a href="code/' in detail


def test_a_remark_that_has_a_word_of_the_sentence_names_no_hunk(narrow: Any) -> None:
    folder, sides = narrow
    run, _ = run_of(folder, "narrow", sides)
    kernels = tuple(msgspec.structs.replace(kernel, lines={}) for kernel in run.kernels)
    before, after = ["a = 1", "b", "c = 1"], ["a = 2", "b", "c = 2  # fewer loads in all loops"]
    target = tuple(hunks.compared("kernels/lined/blur.py", before, after))
    run = msgspec.structs.replace(run, kernels=kernels, hunks={"target": target})
    [cause] = cases.explained(run).comparisons[0].causes or ()
    assert ("loads 4 -> " in cause.text, cause.at) == (True, "")


def test_instructions_that_moved_are_not_taken_for_new_ones(narrow: Any) -> None:
    folder, sides = narrow
    run, _ = run_of(folder, "narrow", sides)

    def line(before: dict[str, int], after: dict[str, int], *target: Hunk) -> str | None:
        of = {"base": before, "target": after}
        kernels = tuple(
            msgspec.structs.replace(
                one,
                classes={"global loads": sum(of[one.side].values())},
                lines={where: {"global loads": n} for where, n in of[one.side].items()},
            )
            for one in run.kernels
        )
        made = msgspec.structs.replace(run, kernels=kernels, hunks={"target": target})
        [both] = changed(made)
        [cause] = located(made, both, [Cause(kind="memory", text="more", kernels=(run.kernels[0].name,))])
        return cause.at

    assert line({"a.py:40": 4}, {"a.py:41": 10}) == "", "a compiler gave them to another line"
    assert line({"a.py:40": 4}, {"a.py:40": 10}) == "a.py:40"
    renamed = Hunk(file="a.py", at=(1, 1), count=(90, 0)), Hunk(file="b.py", at=(1, 1), count=(0, 90), added="x\n" * 90)
    assert line({"a.py:40": 10}, {"b.py:40": 10, "b.py:50": 4}, *renamed) == "", "line 40 only moved"
    assert line({"a.py:40": 10}, {"b.py:40": 10, "b.py:50": 40}, *renamed) == "b.py:50"


@pytest.mark.slow
def test_every_planted_line_is_named(tmp_path: Path) -> None:
    for branch, sides in compiled(tmp_path, *marked.SETS["triton"]).items():
        run, _ = run_of(tmp_path, branch, sides)
        causes = named(run)
        assert causes[0].kind in marked.BRANCHES[branch].kinds, branch
        assert causes[0].at in marked.right(branch), branch


def test_kernels_beyond_the_fortieth_are_counted_in_a_note(tmp_path: Path) -> None:
    side = cases.recorded()["spill"]["base"]
    run = cases.run(side, side, 30.0)
    objects = tuple(
        Kernel(side=of.id, package="ffa", name=name, kind="object", key=name, code=of.id,
               functions=(Function(name="f", code=of.id, classes={}),))
        for of in run.sides for name in (f"{n}.so" for n in range(43))
    )  # fmt: skip
    run = msgspec.structs.replace(run, kernels=objects, machine=msgspec.structs.replace(run.machine, kind="cpu"))
    checkouts = [Checkout(side=of, path=str(tmp_path)) for of in run.sides]
    made = keep_listings(keep_listings(run, checkouts, tmp_path), checkouts, tmp_path)
    assert made.notes == ("40 of 43 kernels of changed rows have a page of both sides: those with the largest changes",)


@pytest.mark.skipif(not (shutil.which("nvcc") and machine_code.cuda_binary("nvdisasm")), reason="needs CUDA's tools")
def test_a_template_of_cuda_has_ptx_and_sass_and_a_file_without_ptx_says_so(tmp_path: Path) -> None:
    source = (
        "template <typename T, int N> __global__ void scaled(const T* x, T* y) {{\n  y[threadIdx.x] = {} * N;\n}}\n"
    )
    builds, proofs = [], []
    for side, value, code in (("base", "x[0]", "[sm_90,compute_90]"), ("target", "__expf(x[0])", "sm_90")):
        (home := tmp_path / side).mkdir()
        end = "template __global__ void scaled<float, 3>(const float*, float*);\n"
        (home / "a.cu").write_text(source.format(value) + end)
        argv = ["nvcc", "-lineinfo", "-shared", "-Xcompiler", "-fPIC",
                f"-gencode=arch=compute_90,code={code}", "-o", "a.so", "a.cu"]  # fmt: skip
        subprocess.run(argv, check=True, cwd=home)
        builds.append(Build(side=side, kernel="ffa", key="", path=str(home)))
        loaded = Artefact("object", "a.so", str(home / "a.so"), "")
        proofs.append(Proof(epoch=1, side=side, kernel="ffa", ok=True, artefacts=(loaded,)))
    head = msgspec.structs.replace(blocks.head(), builds=tuple(builds), proofs=tuple(proofs))
    read = [one for one in machine_code.read_kernels(head, [], tmp_path / "cache") if one.kind == "cuda"]
    sides = [{"grid": (1, 1, 1), "kernels": [msgspec.to_builtins(one) | {"warps": 1} for one in read if one.side == of]}
             for of in ("base", "target")]  # fmt: skip
    run = msgspec.structs.replace(cases.run(*sides, 30.0), builds=head.builds)
    checkouts = [Checkout(side=side, path=str(tmp_path / side.id)) for side in run.sides]
    run = explained(keep_listings(run, checkouts, tmp_path))
    [cause] = named(run)
    assert (cause.at, run.listed[0].kernel) == ("a.cu:2", "void scaled<float, 3>(float const*, float*)")
    before, after = (listing(run, tmp_path, of) for of in (0, 1))
    assert [[one.name for one in side.stages] for side in (before, after)] == [["PTX", "SASS"], ["SASS"]]
    assert (before.notes, after.notes[0][:18]) == ((), "no PTX in the file")


# ---------------------------------------------------------------- one form


def test_lines_of_cpp_go_to_the_caller_too(tmp_path: Path) -> None:
    source = tmp_path / "a.cpp"
    inner, outer = "static inline float twice(float a) {\n  return a * 3.0f / 7.0f;\n}\n", "  return twice(a) + 1;\n"
    source.write_text(f'{inner}extern "C" float f(float a) {{\n{outer}}}\n')
    subprocess.run(["g++", "-g", "-O2", "-c", "-o", str(tmp_path / "a.o"), str(source)], check=True)
    text = subprocess.run(["objdump", "-d", "-l", "--inlines", "-C", "--no-show-raw-insn", str(tmp_path / "a.o")],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    found = {
        line.split()[0]: [number for _, number in chain] for line, chain, *_ in stages.x86(text.splitlines(), {"f"})
    }
    assert (found["mulss"], found["divss"], found["addss"]) == ([2, 5], [2, 5], [5])


def test_a_hunk_knows_its_lines_and_the_triton_function_that_has_it() -> None:
    before = ["import triton", "@triton.jit", "def f(x):", "    return x", "", "A = 1"]
    after = ["import triton", "@triton.jit", "def f(x):", "    y = x", "    return y", "", "A = 2", "B = 1"]
    found = list(hunks.compared("a.py", before, after))
    assert [(hunk.line, hunk.inside) for hunk in found] == [
        ("lines 4 to 5, was line 4", (3, 5)), ("lines 7 to 8, was line 6", (0, 0)),
    ]  # fmt: skip


def test_a_form_feed_ends_no_line(tmp_path: Path) -> None:
    """GNU's sources have them between functions; compilers count line ends alone."""
    for side, value in (("base", 1), ("target", 2)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a.c").write_text(f"int a;\n\x0c\nint b = {value};\r\n")
    [hunk] = hunks._differing("a.c", tmp_path / "base", tmp_path / "target")
    assert (hunk.line, hunks.first_line(hunk, [])) == ("line 3", "a.c:3")


def test_files_of_the_tree_are_known_by_any_path_and_links_are_not_followed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for file in (tree / "src" / "a.cpp", tmp_path / "secret"):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("secret")
    (tree / "build").mkdir()
    (tmp_path / "k.ttir").symlink_to(tmp_path / "secret")
    maker = _Tree(blocks.head(), tree)
    paths = (
        f"{tree}/build/../src/a.cpp",
        "/of/another/run/build/../src/a.cpp",
        "../src/a.cpp",
        f"{tree}/../secret",
        "C:\\a.cpp",
    )
    assert [maker.own(path) for path in paths] == ["src/a.cpp", "src/a.cpp", "src/a.cpp", "", ""]
    assert (maker.read(str(tmp_path / "secret")), maker.read(str(tmp_path / "k.ttir"))) == (b"secret", b"")


def test_samples_of_another_object_or_of_overloads_are_left_out(tmp_path: Path) -> None:
    functions = tuple(Function(name=name, code="", classes={}) for name in ("f(int)", "g(int)", "g(float)"))
    kernel = Kernel(side="base", package="p", name="a", kind="object", key="a.so", path="/b/a.so", functions=functions)
    sampled = tuple(SampledFunction(name=name, object=file, samples=1, own=True, offsets={"0x4": n})
                    for n, (name, file) in enumerate((("f", "a.so"), ("f", "other.so"), ("g", "a.so")), 1))  # fmt: skip
    run = msgspec.structs.replace(blocks.head(), sampled=(Sampled(cell="c", arm="base", functions=sampled),))
    assert [*_of_perf(run, tmp_path, "c", "base", kernel)] == [(("f(int)", 4), {"": 1})]


def test_a_kernel_is_found_by_its_mangled_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is("void scale<float>(float const*, float*, int)", "_Z5scaleIfEvPKT_PS0_i")
    assert _is("(anonymous namespace)::scale(float*)", "_ZN12_GLOBAL__N_15scaleEPf")
    assert not _is("scale(float*)", "_Z5scalePd")
    assert (_is("scale", "scale"), _is("scale", "upscale")) == (True, False)
    monkeypatch.setattr(
        "abprof.system.processes.output", lambda *_, **__: pytest.fail("a process for each name of a file")
    )
    assert not _is("void scale<float>(float*)", "_Z3addPf")


@pytest.mark.parametrize(
    "caller", [", function_name $L__info, inlined_at 1 7 3 // sum.py:9:1", " // sum.py:9:1 @[ f.py:7:3 ]"]
)
def test_ptx_of_old_and_new_tritons_says_where_a_line_is_inlined(caller: str) -> None:
    text = (
        f'  .file 1 "/a/f.py"\n  .file 2 "/t/sum.py"\n  .loc 1 7 3\n  .loc 2 9 1{caller}\n    add.f32 %f1, %f2, %f3;\n'
    )
    assert list(stages.ptx_lines(text).values()) == [(("/t/sum.py", 9), ("/a/f.py", 7))]
