"""`abprof init BASE TARGET` proposes workloads for what two refs differ in."""

import hashlib
from pathlib import Path

import pytest

from abprof.extras.init import Change, best, changes
from tests.adopt.repositories import EXTENSION, NORM, ROWS, TRITON, repository
from tests.adopt.test_init import init
from tests.tinyrepo import abprof

HEAD = "import torch\nimport triton\n"


def kernel(name: str, body: str = "pass") -> str:
    return f"@triton.jit\ndef {name}(x):\n    {body}\n\n\n"


def function(name: str, *calls: str) -> str:
    body = "".join(f"    {call}(x)\n" if "." in call else f"    {call}[(1,)](x)\n" for call in calls)
    return f"def {name}(x):\n    n, m = x.shape\n{body}    return x\n\n\n"


def changed(before: dict[str, str], after: dict[str, str | None]) -> list[Change]:
    """The changes from files to files with other contents (None: without the file)."""
    whole = {path: text for path, text in {**before, **after}.items() if text is not None}
    trees = [
        ({path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()},
         {path: text for path, text in files.items() if path.endswith(".py")})
        for files in (before, whole)
    ]  # fmt: skip
    return changes(*trees)[1]


def names(some: list[Change]) -> list[str]:
    return [one.function.name for one in some]


def test_a_changed_kernel_is_found_through_callees_imports_and_classes() -> None:
    (first, *rest) = changed(TRITON, {"src/tiny_kernels/norm.py": NORM.replace("other=0.0", "other=1.0")})
    assert (first.function.name, first.parts, first.new) == ("rms_norm", ("_rms_norm_fwd",), False)
    assert {one.function.name for one in rest} == {"RMSNormFunction.apply", "rms_norm_forward"}
    assert names(best([first, *rest])) == ["rms_norm"], "the others reach no more"


@pytest.mark.parametrize(
    "after",
    [
        {"ops.py": "# a comment\n" + ROWS.replace("    shifted", "\n    # another\n    shifted")},
        {"ops.py": ROWS.replace("def softmax(x):", 'def softmax(x):\n    """Softmax of each row."""')},
        {"ops.py": ROWS + "\n\ndef _unused():\n    return 1\n"},
        {"ops.py": "from inner import softmax\n", "inner.py": ROWS},
        {"README.md": "# other\n", "test_ops.py": "import torch\n"},
    ],
    ids=["comments", "docstring", "unused", "moved", "other files"],
)
def test_what_is_no_change_of_code(after: dict[str, str | None]) -> None:
    assert [one for one in changed({"ops.py": ROWS}, after) if not one.new] == []


@pytest.mark.parametrize(
    ("used", "imported"),
    [
        ("TILE", "from pkg.sizes import TILE"), ("T", "from .sizes import TILE as T"),
        ("sizes.TILE", "from . import sizes"), ("pkg.sizes.TILE", "import pkg.sizes"),
        ("s.TILE", "import pkg.sizes as s"), ("TILE", "from .sizes import *\nfrom math import *"),
        ("front.TILE", "from . import front"),
    ],
)  # fmt: skip
def test_names_are_followed_through_every_import(used: str, imported: str) -> None:
    ops = f"import torch\n{imported}\n\n\ndef f(x):\n    n, m = x.shape\n    return x * {used}\n"
    files = {"pkg/__init__.py": "", "pkg/front.py": "from .sizes import TILE\n", "pkg/sizes.py": "TILE = 64\n"}
    (one,) = changed({**files, "pkg/ops.py": ops}, {"pkg/sizes.py": "TILE = 128\n"})
    assert (one.function.name, one.parts, one.kernels) == ("f", ("TILE",), frozenset())
    assert changed({**files, "pkg/ops.py": ops}, {"pkg/sizes.py": "TILE = 64\nOTHER = 1\n"}) == []


def test_imports_inside_functions_and_fallbacks_lead_to_the_function_that_they_name() -> None:
    """Each function of a lazy package imports its own `run`; others have a fallback where there is nothing to import."""
    lazy = [f"def {name}(x):\n    from .{name} import run\n\n    return run(x)\n\n\n" for name in ("fast", "slow")]
    either = "try:\n    from .fast import run as fast\nexcept ImportError:\n    fast = None\n\n\n"
    orelse = "import torch\n\nif torch.version.cuda:\n    from .fast import run as fast\nelse:\n    fast = None\n\n\n"
    files = {
        "ops/__init__.py": "".join(lazy),
        "ops/either.py": either + "def both(x):\n    return fast(x)\n",
        "ops/orelse.py": orelse + "def other(x):\n    return fast(x)\n",
        **{f"ops/{name}.py": HEAD + kernel("_k") + function("run", "_k") for name in ("fast", "slow")},
    }
    found = changed(files, {"ops/fast.py": files["ops/fast.py"].replace("pass", "return")})
    assert {(one.function.path, one.function.name) for one in found} == {
        ("ops/__init__.py", "fast"), ("ops/either.py", "both"), ("ops/fast.py", "run"),
        ("ops/orelse.py", "other"),
    }  # fmt: skip


def test_a_kernel_that_a_call_of_jit_makes_is_a_kernel_and_its_backward_comes_last() -> None:
    ops = HEAD + "".join(f"def {name}(x):\n    pass\n\n\n{name} = triton.jit({name})\n" for name in ("_k", "_dk"))
    ops += function("rows_backward", "_dk") + function("rows", "_k", "_dk")
    found = changed({"ops.py": ops}, {"ops.py": ops.replace("pass", "return")})
    assert names(best(found)) == ["rows"]
    assert found[0].kernels == {"_k", "_dk"}


def test_an_import_from_elsewhere_is_a_change() -> None:
    ops = "from {} import cdiv\nimport torch\n\n\ndef f(x):\n    n, m = x.shape\n    return cdiv(n, m)\n"
    (one,) = changed({"ops.py": ops.format("here")}, {"ops.py": ops.format("there")})
    assert one.parts == ("here.cdiv", "there.cdiv")


@pytest.mark.parametrize("sources", ['["csrc/scaled.c"]', 'glob.glob("csrc/*.c")', "found()"])
@pytest.mark.parametrize("file", ["csrc/scaled.c", "csrc/inner/tile.h"])
def test_sources_of_an_extension_count(sources: str, file: str) -> None:
    before = {**EXTENSION, "setup.py": EXTENSION["setup.py"].replace('["csrc/scaled.c"]', sources)}
    before = {**before, "csrc/inner/tile.h": "int tile;", "tests/more.c": "int more;", "plain.py": ROWS}
    (one,) = changed(before, {file: "other"})
    assert (one.function.name, one.parts) == ("add", (file,))


def test_a_function_named_like_the_changed_source_comes_first() -> None:
    setup = 'setup(ext_modules=[CppExtension(f"ops._{name}", sources) for name in ("add", "sum_rows")])\n'
    ops = "import torch\n\n\n" + "".join(function(f, f"torch.ops.mine.{f}") for f in ("add", "sum_all", "sum_rows"))
    files = {"setup.py": setup, "ops.py": ops, "csrc/sum_rows_cpu.cpp": "1", "csrc/add.cpp": "1"}
    found = changed(files, {"csrc/sum_rows_cpu.cpp": "2"})
    assert (names(found), names(best(found))) == (["sum_rows", "add", "sum_all"], ["sum_rows"])


def test_sources_that_are_compiled_at_import_count() -> None:
    ops = 'import torch\nfrom torch.utils.cpp_extension import load\n\next = load("e", sources=["src/one.cu"])\n\n\n'
    files = {"ops.py": ops + function("f", "ext.run") + function("g"), "src/one.cu": "1", "other/two.cu": "2"}
    assert names(changed(files, {"src/one.cu": "3"})) == ["f"]
    assert changed(files, {"other/two.cu": "3"}) == []


def test_functions_with_few_kernels_come_first_and_new_ones_last() -> None:
    kernels = "".join(kernel(f"_k{n}") for n in range(4))
    ops = (
        HEAD + kernels + function("whole", "_k0", "_k1", "_k2") + "".join(function(f"f{n}", f"_k{n}") for n in range(4))
    )
    after = ops.replace("pass", "return") + kernel("_new") + function("added", "_new")
    found = changed(
        {"ops.py": ops, "benchmarks/b.py": HEAD}, {"ops.py": after, "benchmarks/b.py": HEAD + function("b")}
    )
    assert names(found) == ["f3", "f0", "f1", "f2", "whole", "added"], "_k3 is reached by one function alone"
    assert names(best(found)) == ["f3", "f0", "f1"]
    assert names(best(found[-1:])) == ["added"]
    assert found[-1].new


def test_two_refs(tmp_path: Path) -> None:
    two = {**TRITON, "src/tiny_kernels/rows.py": ROWS, "more/rows.py": ROWS}
    repo = repository(tmp_path / "repo", two)
    repo.git("checkout", "-q", "-b", "feature")
    slower = {name: text.replace("numerator = ", "numerator = 1 * ") for name, text in two.items() if "rows" in name}
    repo.commit("other", {"src/tiny_kernels/norm.py": NORM.replace("tl.sum(", "tl.max("), **slower})
    done = init(repo, "main", "feature", home=tmp_path)
    assert done.code == 0, done
    assert (
        "feature changes 1 kernel: _rms_norm_fwd\n  src/tiny_kernels/norm.py:rms_norm reaches _rms_norm_fwd\n"
        in done.out
    )
    assert "also changed, for --function: src/tiny_kernels/norm.py:rms_norm_forward" in done.out
    assert "abprof run main feature --quick" in done.out
    assert {path.name for path in (repo.path / "workloads").iterdir()} == {"rms_norm.py"}, "softmax is plain torch"
    (repo.path / "abprof.toml").unlink()
    done = init(repo, "main", "feature", "--function", "more/rows.py:softmax", home=tmp_path)
    assert "--function more/rows.py:softmax: took more/rows.py:softmax\n" in done.out
    assert "[kernels." in (repo.path / "abprof.toml").read_text()
    (repo.path / "abprof.toml").unlink()
    done = init(repo, "main", "feature", "--function", "rms_norm_bench", home=tmp_path)
    assert "--function rms_norm_bench: took benchmarks/bench_norm.py:rms_norm_bench" in done.out
    assert "\nrms_norm_bench reaches nothing that differs\n" in done.out
    assert 'KERNEL = "bench_norm"' in (repo.path / "workloads" / "rms_norm_bench.py").read_text()
    same = init(repo, "main", "main", home=tmp_path)
    assert (same.code, "differs between main and main (comments and docstrings do not count" in same.err) == (2, True)
    assert "needs two refs" in init(repo, "main", home=tmp_path).err


def test_the_working_tree_is_a_ref_and_packages_get_a_table_each(tmp_path: Path) -> None:
    files = {f"{folder}/rows/__init__.py": ROWS for folder in "ab"}
    repo = repository(tmp_path / "repo", files)
    repo.write(
        {"a/rows/__init__.py": ROWS.replace("exp()", "exp2()"), "b/rows/__init__.py": ROWS.replace("exp()", "expm1()")}
    )
    done = init(repo, "HEAD", ".", home=tmp_path)
    assert done.code == 0, done
    assert ". changes 2 functions: softmax, softmax\n" in done.out
    assert "\n  a/rows/__init__.py:softmax\n" in done.out, "it reaches nothing but itself"
    assert "interpret" not in done.out.lower(), "plain torch"
    text = (repo.path / "abprof.toml").read_text()
    assert (text.count("[kernels.rows]"), text.count("[kernels.b_rows]")) == (1, 1)
    assert {path.name for path in (repo.path / "workloads").iterdir()} == {"softmax.py", "softmax_2.py"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_branch_that_repairs_a_function_is_measured_as_proposed(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {"ops.py": ROWS.replace("numerator / ", "2 * numerator / ")})
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit("right", {"ops.py": ROWS})
    assert init(repo, "main", "feature", home=tmp_path).code == 0
    command = ("main", "feature", "--quick", "--preset", "smoke", "--device", "cpu", "--json")
    done = abprof(*command, cwd=repo.path, home=tmp_path)
    assert (done.code, done.run["header"]["sentence"]) == (0, "1 fixed (1 cell)."), done.err
    assert "✔ fixed" in abprof("report", done.run["run_dir"], cwd=repo.path, home=tmp_path).out


@pytest.mark.parametrize(
    ("wanted", "took"),
    [("_rms_norm_fwd", "src/tiny_kernels/norm.py:rms_norm"), ("_hidden", "src/tiny_kernels/norm.py:_hidden")],
    ids=["kernel", "private"],
)
def test_a_function_is_found_by_its_kernel_and_a_private_one_by_its_name(
    tmp_path: Path, wanted: str, took: str
) -> None:
    hidden = NORM + "\n\ndef _hidden(x):\n    return x.shape\n"
    repo = repository(tmp_path / "repo", {**TRITON, "src/tiny_kernels/norm.py": hidden})
    done = init(repo, "--function", wanted, home=tmp_path)
    assert done.code == 0, done
    assert f"--function {wanted}: took {took}" in done.out
