"""What is found in a repository by reading it, and what is made of it: no code of it is run."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from abprof.extras.init import look, scaffold, source, texts
from abprof.extras.init.facts import Candidate, Found
from abprof.extras.init.propose import Proposal, propose
from abprof.records.errors import AbprofError
from abprof.system.config_file import parse_file
from tests.adopt.repositories import EXTENSION, ROWS, SINGLE, TRITON


def found(files: dict[str, str]) -> Found:
    return look.look(list(files), files.__getitem__)


def first(files: dict[str, str]) -> tuple[Candidate, Proposal]:
    seen = found(files)
    one = look.candidates(seen)[0]
    return one, propose(seen, one)


def made(files: dict[str, str]) -> tuple[str, str]:
    """abprof.toml and the workload; both can be read."""
    _, proposal = first(files)
    toml, workload = texts.toml(proposal, "workloads"), texts.workload(proposal)
    ast.parse(workload)
    if toml:
        parse_file(toml, "abprof.toml")
    return toml, workload


def test_a_package_in_src_layout() -> None:
    one, proposal = first(TRITON)
    assert (one.called, one.kind, one.kernels) == ("rms_norm", "triton", ("_rms_norm_fwd",))
    assert proposal.entry
    assert (proposal.kernel, proposal.entry.path, proposal.entry.import_) == (
        "tiny_kernels",
        "src/tiny_kernels",
        "tiny_kernels",
    )
    assert proposal.entry.inputs == ("src/tiny_kernels/**",)
    assert proposal.access == "", "it stands at the package's front"
    _, workload = made(TRITON)
    assert '"x": draw("n_rows", "n_cols"),\n' in workload, "the shape is the code's: of a callee of a callee"
    assert '"weight": draw("n_cols"),  # GUESSED' in workload
    assert "Op(lambda: kernel.rms_norm(**inputs))" in workload
    assert "torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-06) * weight" in workload


def test_an_extension_that_setup_builds() -> None:
    one, proposal = first(EXTENSION)
    assert (one.called, one.kind) == ("add", "extension")
    assert proposal.entry
    assert proposal.entry.build == ("python", "setup.py", "build_ext", "--inplace")
    assert proposal.entry.env == {"PYTHONPATH": "{worktree}"}
    assert {"scaled/**", "csrc/**", "setup.py", "README.md"} == set(proposal.entry.inputs), "setup.py reads README.md"
    assert '"a": draw("rows", "width"),\n' in made(EXTENSION)[1], "the docstring says so"


@pytest.mark.parametrize(
    ("made_by", "cuda"), [("CppExtension", False), ("CUDAExtension", True), ("cpp_extension.CUDAExtension", True)]
)
def test_torchs_extensions_are_found_like_any(made_by: str, cuda: bool) -> None:
    setup = EXTENSION["setup.py"].replace('Extension("scaled_ext", ', f'{made_by}(name="scaled_ext", sources=')
    one, proposal = first({**EXTENSION, "setup.py": setup})
    assert (one.kind, proposal.cuda) == ("extension", cuda)


def test_a_single_file_whose_name_no_import_could_spell() -> None:
    toml, workload = made(SINGLE)
    assert tomllib.loads(toml)["kernels"] == {"02-softmax": {"path": "02-softmax.py", "inputs": ["02-softmax.py"]}}
    assert 'KERNEL = "02-softmax"' in workload
    assert "torch.softmax(x, -1)" in workload


def test_what_no_test_and_no_benchmark_is_measured() -> None:
    assert {one.called for one in look.candidates(found(TRITON))} == {"rms_norm", "rms_norm_forward"}
    only = {name: text for name, text in TRITON.items() if name.startswith(("tests/", "benchmarks/"))}
    assert look.candidates(found(only)) == ()


def test_a_file_that_is_no_python_is_told() -> None:
    seen = found({**TRITON, "src/tiny_kernels/old.py": "print 'hello'\n"})
    assert seen.unread == ("src/tiny_kernels/old.py",)
    assert look.candidates(seen)[0].called == "rms_norm"


def test_a_name_without_a_known_meaning_gets_no_reference() -> None:
    files = {"ops.py": ROWS.lstrip().replace("softmax", "frobnicate")}
    workload = made(files)[1]
    assert "# WRITE: reference(case, inputs)" in workload
    assert "def check" not in workload, "that the sides agree is checked, and every report says that it is all"


def test_scalars_and_what_is_left_at_its_default_are_told() -> None:
    text = (
        "import torch\n\n\ndef scan(q, k, chunk_size, reverse=False):\n"
        "    B, T, D = q.shape\n    return torch.cumsum(q * k, 1)\n"
    )
    workload = made({"scan.py": text})[1]
    assert "scan(**inputs, chunk_size=64)" in workload
    assert "# GUESSED: the value of chunk_size" in workload
    assert "# Not given: reverse=False" in workload
    assert '"k": draw("B", "T", "D"),  # GUESSED: that it is a tensor, and its shape' in workload


def test_dimensions_that_are_asserted_to_be_equal_are_one_axis() -> None:
    text = (
        "import torch\n\n\ndef product(a, b):\n    assert a.shape[1] == b.shape[0]\n    M, K = a.shape\n"
        "    _, N = b.shape\n    return torch.mm(a, b)\n"
    )
    workload = made({"product.py": text})[1]
    assert '"b": draw("K", "N"),\n' in workload


def test_what_writes_to_an_argument_is_given_one() -> None:
    text = "import torch\n\n\ndef twice(x: torch.Tensor, out: torch.Tensor):\n    torch.mul(x, 2, out=out)\n"
    workload = made({"twice.py": text})[1]
    assert 'out = torch.empty_like(inputs["x"])' in workload
    assert "(kernel.twice(**inputs, out=out), out)[1]" in workload


@pytest.mark.parametrize("name", ["src/acme/kernels/__init__.py", "src/acme/kernels/rows/__init__.py"])
def test_a_namespace_package(name: str) -> None:
    files = {"src/acme/kernels/__init__.py": "", name: "", "src/acme/kernels/rows.py": ROWS.lstrip()}
    _, proposal = first(files)
    assert proposal.entry
    assert (proposal.entry.path, proposal.entry.import_) == ("src/acme/kernels", "acme.kernels")
    assert proposal.access == "acme.kernels.rows"


def test_a_version_file_that_git_does_not_have_is_made() -> None:
    scm = '[project]\nname = "p"\n[tool.setuptools_scm]\nversion_file = "p/_version.py"\n'
    files = {
        "pyproject.toml": scm,
        "p/__init__.py": "from ._version import version\nfrom .ops import softmax\n",
        "p/ops.py": ROWS.lstrip(),
    }
    _, proposal = first(files)
    assert proposal.entry
    assert proposal.entry.build[:2] == ("python", "-c")
    assert "# GUESSED: p/_version.py is written by a packaging tool" in texts.toml(proposal, "workloads")
    parse_file(texts.toml(proposal, "workloads"), "abprof.toml")


def test_the_scaffold_of_a_plain_callable_is_short() -> None:
    """Under 25 lines of code, reference and check included."""
    made = scaffold.begun("rows", "", None, "workloads")
    text = made.files["workloads/rows.py"]
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) < 25, text
    assert "compare(outputs, expected" in text
    assert set(made.files) == {"kernels/rows/__init__.py", "workloads/rows.py"}, "abprof's own layout needs no file"


def test_an_autograd_function_that_nobody_wraps_is_applied() -> None:
    text = TRITON["src/tiny_kernels/norm.py"].partition("\n\ndef rms_norm(x")[0]
    one, proposal = first({"norm.py": text, "front.py": "from norm import RMSNormFunction\n"})
    assert (one.called, one.positional, proposal.workload) == ("RMSNormFunction.apply", True, "RMSNormFunction")
    workload = made({"norm.py": text})[1]
    assert 'kernel.RMSNormFunction.apply(inputs["x"], inputs["weight"], 1e-6)' in workload
    package = {"pack/__init__.py": "", "pack/norm.py": text}
    assert "from pack.norm import RMSNormFunction  # this side's own" in made(package)[1]


def test_in_our_own_layout_a_function_inside_is_asked_of_the_sides_package() -> None:
    files = {"kernels/rows/__init__.py": "", "kernels/rows/inner.py": ROWS.lstrip()}
    toml, workload = made(files)
    assert toml == ""
    assert 'softmax = import_module(".inner", kernel.__name__).softmax' in workload
    assert 'KERNEL = "rows"' in workload


def test_a_dimension_of_one_meaning_is_one_axis_whatever_the_code_calls_it() -> None:
    text = (
        "import torch\n\n\ndef cross_entropy(logits, target):\n    BT, V = logits.shape\n"
        "    n_rows = target.shape[0]\n    return logits.sum() / n_rows\n"
    )
    workload = made({"loss.py": text})[1]
    assert '"target": torch.randint(case["V"], draw("BT").shape' in workload
    assert '"V": [32768]' in workload, "a vocabulary is long"


@pytest.mark.parametrize(
    ("told", "axes"),
    [
        ("x: (batch, width)", '"batch", "width"'),
        ("x (torch.Tensor): rows of shape `[B, T, D]`, as they are", '"B", "T", "D"'),
        ("x (Tensor, optional)", '"rows", "width"'),
        ("x: a pair (start, end)", '"rows", "width"'),
        ("x (torch.Tensor):\n        Queries of shape `[B, T]`", '"B", "T"'),
    ],
)
def test_docstrings_tell_shapes(told: str, axes: str) -> None:
    text = f'import torch\n\n\ndef frob(x: torch.Tensor):\n    """Frob.\n\n    Args:\n        {told}\n    """\n    return x\n'
    assert f'"x": draw({axes}),' in made({"frob.py": text})[1]


def test_what_runs_on_import_is_told() -> None:
    files = {"ops.py": ROWS.lstrip() + "\n\nbench.run(print_data=True)\n"}
    _, proposal = first(files)
    assert [note.partition(" ")[0] for note in proposal.notes] == ["ops.py:11"]
    assert "bench.run(print_data=True)" in proposal.notes[0]


def test_a_submodule_is_checked_out_where_something_is_compiled() -> None:
    modules = '[submodule "cutlass"]\n\tpath = csrc/cutlass\n\turl = ../cutlass\n'
    _, proposal = first({**EXTENSION, ".gitmodules": modules})
    assert proposal.entry
    assert proposal.entry.submodules
    assert "submodules = true" in texts.toml(proposal, "workloads")
    _, plain = first({**TRITON, ".gitmodules": modules})
    assert plain.entry
    assert not plain.entry.submodules


def test_a_front_that_brings_another_function_of_the_name_is_not_asked() -> None:
    files = {
        "pack/__init__.py": "from .native import softmax\n",
        "pack/native.py": "def softmax(x):\n    return lib(x)\n",
        "pack/rows.py": ROWS.lstrip(),
    }
    _, proposal = first(files)
    assert proposal.access == "pack.rows"


def test_a_folder_called_kernels_need_not_be_ours() -> None:
    one, proposal = first({"kernels/triton/gemm/rows.py": ROWS.lstrip()})
    assert proposal.entry
    assert (proposal.kernel, proposal.entry.path) == ("rows", "kernels/triton/gemm/rows.py")
    assert one.module == proposal.entry.path


QUEER = [
    "lambda.py",
    "my-ops.py",
    "p q/ops.py",
    "class/in/ops.py",
    'a"""b.py',
    'print("here") or """.py',
    "a\\.py",
    "a\nb.py",
]


@pytest.mark.parametrize("package", [True, False], ids=["package", "single"])
@pytest.mark.parametrize("name", QUEER)
def test_names_that_no_import_could_spell(name: str, package: bool) -> None:
    """What is written is read back: one docstring, the file's own name in it, and nothing that runs."""
    inside = {f"pkg/{name}": ROWS.lstrip(), "pkg/__init__.py": ""}
    inside |= {f"pkg/{name[:at]}/__init__.py": "" for at in range(len(name)) if name[at] == "/"}
    seen = found(inside if package else {name: ROWS.lstrip()})
    one = look.candidates(seen)[0]
    texts_of = scaffold.adopted(seen, one, None, "workloads").files
    parse_file(texts_of["abprof.toml"], "abprof.toml")
    tree = ast.parse(texts_of["workloads/softmax.py"])
    assert f"softmax of {one.module}, as " in (ast.get_docstring(tree, clean=False) or "")
    assert {type(node) for node in tree.body} <= {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef}
    assert sum(isinstance(node, ast.Expr) for node in tree.body) == 1
    if package:
        module = "pkg." + name.removesuffix(".py").replace("/", ".")
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        named = [ast.literal_eval(call.args[0]) for call in calls if call.func.id == "import_module"]  # type: ignore[attr-defined]
        assert named == [module]


def test_a_name_that_is_no_text_is_refused_in_one_line() -> None:
    seen = found({"caf\udce9.py": ROWS.lstrip()})
    with pytest.raises(AbprofError, match="no workload can be made") as caught:
        scaffold.adopted(seen, look.candidates(seen)[0], None, "workloads")
    assert caught.value.line.isascii()


def loaded(files: dict[str, str]) -> dict[str, Any]:
    """The workload's names, as a worker has them."""
    space: dict[str, Any] = {}
    exec(made(files)[1], space)
    return space


@pytest.mark.parametrize(
    ("signature", "body", "said"),
    [
        ("rms_norm(inputs, weight, eps=1e-6)", "inputs, weight", ""),
        ("rms_norm(torch: T.Tensor, case: T.Tensor)", "torch, case", ""),
        ("rms_norm(x, weight, eps=EPS)", "x, weight", "# GUESSED: eps=EPS is taken for 1e-6"),
        ("rms_norm(x, weight, eps=1 / 8)", "x, weight", "+ (1 / 8)"),
        ("rms_norm(x, weight, /, eps=1e-6)", "x, weight", 'kernel.rms_norm(inputs["x"], inputs["weight"])'),
        ("rms_norm(x, /, weight)", "x, weight", 'kernel.rms_norm(inputs["x"], weight=inputs["weight"])'),
        ("rms_norm(x, mode=MODE, weight=None, /)", "x, weight", "# GUESSED: the value of mode"),
        ("rms_norm(x: T.Tensor = None, weight: T.Tensor = None)", "x, weight", "(**inputs)"),
    ],
)
def test_a_workload_runs_whatever_its_parameters_are_called(signature: str, body: str, said: str) -> None:
    code = f"def {signature}:\n    return norm({body})\n"
    told = "norm(" + ", ".join(f"{name}.contiguous()" for name in body.split(", ")) + ")"
    file = f"import torch\n\n\n{code.replace('T.Tensor', 'torch.Tensor').replace(f'norm({body})', told)}"
    workload = loaded({"norm.py": file})
    assert said in made({"norm.py": file})[1]
    case = {"rows": 4, "width": 8, "dtype": "float32"}
    given = workload["inputs"](case, "cpu", 0)
    norm = lambda x, w: x * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt().float() * w  # noqa: E731
    kernel: dict[str, Any] = {"norm": norm, "EPS": 1e-6, "MODE": "", "T": torch}
    exec(code, kernel)
    output = workload["prepare"](SimpleNamespace(rms_norm=kernel["rms_norm"]), None, case, given).call()
    expected = workload["reference"](case, given)
    assert expected.shape == (4, 8)
    if "1 / 8" not in signature:
        assert workload["check"](case, output, expected).ok


@pytest.mark.parametrize("name", ["inputs", "torch", "Op", "kernel"])
def test_a_function_of_a_workloads_own_names_hides_none(name: str) -> None:
    text = f"import torch\n\n\ndef {name}(x, out):\n    out.copy_(x.contiguous())\n"
    files = {"pack/__init__.py": "", "pack/ops.py": text}
    workload = made(files)[1]
    assert f"from pack.ops import {name} as {name}_  # this side's own" in workload
    assert f"lambda: ({name}_(**inputs, out=out), out)[1]" in workload


def test_a_function_called_like_its_output() -> None:
    files = {
        "pack/__init__.py": "",
        "pack/ops.py": "import torch\n\n\ndef out(x, out):\n    out.copy_(x.contiguous())\n",
    }
    assert "lambda: (out_(**inputs, out=out), out)[1]" in made(files)[1]


def test_sources_are_read_in_the_encoding_that_they_name(tmp_path: Path) -> None:
    """Others say nothing, and are told; a project's own files that are no text say nothing either."""
    rows = ROWS.lstrip().replace("def softmax", "# für Zeilen\ndef softmax")
    named = {
        "latin.py": b"# -*- coding: latin-1 -*-\n" + rows.encode("latin-1"),
        "mark.py": b"\xef\xbb\xbf" + rows.replace("softmax", "relu").encode(),
        "unnamed.py": rows.encode("latin-1"),
        "unknown.py": b"# coding: martian\n" + rows.encode(),
        "no_text.py": b"# coding: rot13\n" + rows.encode(),
        "setup.py": b"# coding: latin-1\nsetup(name='f\xfcr')\n",
        "setup.cfg": b"[metadata]\nname = f\xfcr\n",
        "pyproject.toml": b"# \xfc\n",
        ".gitmodules": b"# \xfc\n",
    }
    for name, data in named.items():
        (tmp_path / name).write_bytes(data)
    seen = look.look(list(named), lambda name: source.content(tmp_path / name))
    assert {one.called for one in look.candidates(seen)} == {"softmax", "relu"}
    assert seen.unread == ("unnamed.py", "unknown.py", "no_text.py")
    assert (seen.project.name, seen.project.submodules) == ("für", ())


@pytest.mark.parametrize(
    "pyproject",
    [
        "tool.setuptools.packages.find.where = 3",
        "tool.setuptools.packages.find.where = 'lib'",
        "tool.setuptools.package-dir = ['lib']",
        "tool.setuptools.package-dir = {'' = 3}\ntool.setuptools.packages.find.where = ['lib', 3]",
        "tool.hatch.build.targets.wheel.packages = 3",
        "tool.hatch.build.targets.wheel.packages = 'lib/pack'",
        "tool.maturin.python-source = []\ntool.setuptools_scm.version_file = 3\nproject.name = {}",
        "tool = 3\nproject = []",
    ],
)
def test_a_project_table_of_the_wrong_type_says_nothing(pyproject: str) -> None:
    seen = found({"pyproject.toml": f"{pyproject}\n", "ops.py": ROWS.lstrip()})
    assert (seen.project.name, seen.project.generated) == ("", ())
    assert set(seen.project.roots) == ({"lib", ""} if "lib" in pyproject else {""})
