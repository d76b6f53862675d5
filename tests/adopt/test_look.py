"""`abprof init` reads a repository, runs none of its code, and proposes files."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from abprof.extras.init import adopted, candidates, look
from abprof.system.config_file import parse_file
from tests.adopt.repositories import EXTENSION, ROWS, SINGLE, TRITON


def made(files: dict[str, str]) -> tuple[dict[str, Any], str]:
    """The only table of abprof.toml, {} without one, and the workload's text, after parsing both."""
    found = look(list(files), files.__getitem__)
    done = adopted(found, candidates(found)[0], None, "workloads")
    (workload,) = (text for path, text in done.files.items() if path != "abprof.toml")
    ast.parse(workload)
    if "abprof.toml" not in done.files:
        return {}, workload
    (entry,) = parse_file(done.files["abprof.toml"], "abprof.toml").kernels.values()
    return {name: getattr(entry, name) for name in entry.__struct_fields__}, workload


def test_a_package_in_src_layout() -> None:
    entry, workload = made(TRITON)
    assert (entry["path"], entry["module"]) == ("src/tiny_kernels", "tiny_kernels")
    assert entry["inputs"] == ("src/tiny_kernels/**",)
    assert '"x": draw("n_rows", "n_cols"),\n' in workload, "the shape stands in a callee of a callee"
    assert '"weight": draw("n_cols"),  # GUESSED' in workload
    assert 'Op(lambda: kernel.rms_norm(inputs["x"], inputs["weight"]))' in workload
    assert "torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-06) * weight" in workload
    assert "# Not given: eps=1e-06" in workload


def test_an_extension_that_setup_builds() -> None:
    entry, workload = made(EXTENSION)
    assert entry["build"] == ("python", "setup.py", "build_ext", "--inplace")
    assert entry["env"] == {"PYTHONPATH": "{worktree}"}
    assert set(entry["inputs"]) == {"scaled/**", "csrc/**", "setup.py", "README.md"}, "setup.py reads README.md"
    assert not entry["submodules"]
    assert '"a": draw("rows", "width"),\n' in workload, "the docstring says so"
    assert made({**EXTENSION, ".gitmodules": ""})[0]["submodules"]


@pytest.mark.parametrize(
    ("files", "path", "imported", "call"),
    [
        (SINGLE, "02-softmax.py", "", 'KERNEL = "02-softmax"'),
        (
            {"kernels/rows/__init__.py": "", "kernels/rows/inner.py": ROWS},
            None,
            None,
            'import_module(".inner", kernel.',
        ),
        (
            {"src/acme/ops/__init__.py": "", "src/acme/ops/rows.py": ROWS},
            "src/acme/ops",
            "acme.ops",
            'import_module(".rows"',
        ),
        ({"p/__init__.py": "", "p/class.py": ROWS}, "p", "p", 'import_module(".class", kernel.__name__).softmax'),
        ({'print("a")""".py': ROWS}, 'print("a")""".py', "", "kernel.softmax("),
    ],
    ids=["single", "conventional", "namespace", "keyword", "odd"],
)
def test_where_a_function_is_imported_from(
    files: dict[str, str], path: str | None, imported: str | None, call: str
) -> None:
    entry, workload = made(files)
    assert (entry.get("path"), entry.get("module")) == (path, imported)
    assert call in workload
    assert "torch.softmax(x, -1)" in workload


@pytest.mark.parametrize(
    ("documented", "axes"),
    [
        ("x: (batch, width)", '"batch", "width"'),
        ("x (torch.Tensor): rows of shape `[B, T, D]`, as they are", '"B", "T", "D"'),
        ("x (Tensor, optional)", '"rows", "width"'),
        ("x: a pair (start, end)", '"rows", "width"'),
    ],
)
def test_docstrings_tell_shapes(documented: str, axes: str) -> None:
    text = f'import torch\n\n\ndef frob(x: torch.Tensor):\n    """Frob.\n\n    Args:\n        {documented}\n    """\n    return x\n'
    assert f'"x": draw({axes}),' in made({"frob.py": text})[1]


def test_scalars_and_defaults_are_marked() -> None:
    text = (
        "import torch\n\n\ndef scan(q, k, chunk_size, reverse=False):\n"
        "    B, T, D = q.shape\n    return torch.cumsum(q * k, 1)\n"
    )
    workload = made({"scan.py": text})[1]
    assert 'scan(inputs["q"], inputs["k"], 64)' in workload
    assert "# GUESSED: the value of chunk_size" in workload
    assert "# Not given: reverse=False" in workload
    assert '"k": draw("B", "T", "D"),  # GUESSED: that it is a tensor, and its shape' in workload


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("rms_norm(inputs, weight, eps=1e-6)", "inputs, weight"),
        ("rms_norm(torch: T.Tensor, case: T.Tensor)", "torch, case"),
        ("rms_norm(x, weight, eps=EPS)", "x, weight"),
        ("rms_norm(x, weight, /, eps=1e-6)", "x, weight"),
        ("rms_norm(x, *, weight)", "x, weight"),
        ("rms_norm(x: T.Tensor = None, weight: T.Tensor = None)", "x, weight"),
    ],
)
def test_a_workload_runs_whatever_its_parameters_are_called(signature: str, body: str) -> None:
    code = f"def {signature}:\n    return norm({body})\n"
    copied = "norm(" + ", ".join(f"{name}.contiguous()" for name in body.split(", ")) + ")"
    text = f"import torch\n\n\n{code.replace('T.Tensor', 'torch.Tensor').replace(f'norm({body})', copied)}"
    workload: dict[str, Any] = {}
    exec(made({"norm.py": text})[1], workload)
    case = {"rows": 4, "width": 8, "dtype": "float32"}
    given = workload["inputs"](case, "cpu", 0)
    norm = lambda x, w: x * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt().float() * w  # noqa: E731
    kernel: dict[str, Any] = {"norm": norm, "EPS": 1e-6, "T": torch}
    exec(code, kernel)
    output = workload["prepare"](SimpleNamespace(rms_norm=kernel["rms_norm"]), None, case, given).call()
    expected = workload["reference"](case, given)
    assert expected.shape == (4, 8)
    assert workload["check"](case, output, expected).ok
