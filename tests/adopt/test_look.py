"""What is found in a repository by reading it, and what is made of it: no code of it is run."""

from __future__ import annotations

import ast
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from abprof.extras.init import repository as look
from abprof.extras.init import scaffold
from abprof.extras.init.propose import Proposal, propose
from abprof.extras.init.repository import Candidate, Found
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
    toml, workload = scaffold.toml_text(proposal, "workloads"), scaffold.workload_text(proposal)
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


def test_a_single_file_whose_name_no_import_could_spell() -> None:
    toml, workload = made(SINGLE)
    assert tomllib.loads(toml)["kernels"] == {"02-softmax": {"path": "02-softmax.py", "inputs": ["02-softmax.py"]}}
    assert 'KERNEL = "02-softmax"' in workload
    assert "torch.softmax(x, -1)" in workload


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
    assert "# GUESSED: p/_version.py is written by a packaging tool" in scaffold.toml_text(proposal, "workloads")
    parse_file(scaffold.toml_text(proposal, "workloads"), "abprof.toml")


def test_in_our_own_layout_a_function_inside_is_asked_of_the_sides_package() -> None:
    files = {"kernels/rows/__init__.py": "", "kernels/rows/inner.py": ROWS.lstrip()}
    toml, workload = made(files)
    assert toml == ""
    assert 'softmax = import_module(".inner", kernel.__name__).softmax' in workload
    assert 'KERNEL = "rows"' in workload


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


def test_a_submodule_is_checked_out_where_something_is_compiled() -> None:
    modules = '[submodule "cutlass"]\n\tpath = csrc/cutlass\n\turl = ../cutlass\n'
    _, proposal = first({**EXTENSION, ".gitmodules": modules})
    assert proposal.entry
    assert proposal.entry.submodules
    assert "submodules = true" in scaffold.toml_text(proposal, "workloads")
    _, plain = first({**TRITON, ".gitmodules": modules})
    assert plain.entry
    assert not plain.entry.submodules


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
