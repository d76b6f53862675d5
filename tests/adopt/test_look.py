"""`abprof init` reads a repository, runs none of its code, and proposes files."""

import ast
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from abprof.extras.init import candidates, look, proposed
from abprof.system.config_file import parse_file
from tests.adopt.repositories import EXTENSION, ROWS, SINGLE, TRITON


def made(files: dict[str, str], name: str = "") -> tuple[dict[str, Any], str]:
    """The only table of abprof.toml, {} without one, and the workload's text, after parsing both."""
    found = look(list(files), files.__getitem__)
    one = next(one for one in candidates(found) if name in ("", one.name))
    done = proposed(found, [one], None, "workloads")
    (workload,) = (text for path, text in done.files.items() if path != "abprof.toml")
    ast.parse(workload)
    if "abprof.toml" not in done.files:
        return {}, workload
    (entry,) = parse_file(done.files["abprof.toml"], "abprof.toml").kernels.values()
    return {name: getattr(entry, name) for name in entry.__struct_fields__}, workload


def test_a_package_in_src_layout() -> None:
    _, workload = made(TRITON)
    assert '"x": draw("n_rows", "n_cols"),\n' in workload, "the shape stands in a callee of a callee"
    assert '"direction": ["fwd", "bwd"]' in workload
    assert "return directed(case, inputs, plain, dtype=torch.float64).call()" in workload
    assert "torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-06) * weight" in workload
    assert "# Not given: eps=1e-06" in workload


def test_an_extension_that_setup_builds() -> None:
    entry, workload = made(EXTENSION)
    assert not entry["submodules"]
    assert '"a": draw("rows", "width"),\n' in workload, "the docstring says so"
    assert made({**EXTENSION, ".gitmodules": ""})[0]["submodules"]


@pytest.mark.parametrize(
    ("files", "path", "imported", "call"),
    [
        (SINGLE, "02-softmax.py", "", 'KERNEL = "02-softmax"'),
        ({"kernels/rows/__init__.py": "", "kernels/rows/inner.py": ROWS}, None, None, 'import_module(".inner", kernel.'),
        ({"src/acme/ops/__init__.py": "", "src/acme/ops/rows.py": ROWS}, "src/acme/ops", "acme.ops", 'import_module(".rows"'),
        ({"acme/ops/rows.py": "from acme.base.sizes import N\n" + ROWS, "acme/base/sizes.py": ""}, "acme", "acme",
         'import_module(".ops.rows"'),
        ({"torch/rows.py": "import torch.nn\n" + ROWS}, "torch/rows.py", "", "kernel.softmax("),
        ({"p/__init__.py": "", "p/class.py": ROWS}, "p", "p", 'import_module(".class", kernel.__name__).softmax'),
        ({'print("a")""".py': ROWS}, 'print("a")""".py', "", "kernel.softmax("),
    ],
    ids=["single", "conventional", "namespace", "absolute", "alike", "keyword", "odd"],
)  # fmt: skip
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
        ("x (Tensor): weights of shape [D]", '"D"'),
        ("x (Tensor):\n            queries of shape `[B, T, D]`.\n        y (Tensor): of shape [N]", '"B", "T", "D"'),
        ("y: of shape [N]\n        x (Tensor): rows", '"rows", "width"'),
        ("x (:class:`Tensor`): nodes of shape\n            (nodes x in_channels).", '"nodes", "in_channels"'),
        ("x: a pair (start, end)", '"rows", "width"'),
        ("Adds one to x. x: (N, D)", '"N", "D"'),
    ],
)
def test_docstrings_tell_shapes(documented: str, axes: str) -> None:
    text = f'import torch\n\n\ndef frob(x: torch.Tensor):\n    """Frob.\n\n    Args:\n        {documented}\n    """\n    return x\n'
    assert f'"x": draw({axes}),' in made({"frob.py": text})[1]


def test_a_script_that_calls_its_function_does_not_rename_it() -> None:
    text = "import torch\n\ndef add(x: torch.Tensor, y: torch.Tensor):\n    return torch.add(x, y)\n\nout = add(one, two)\n"
    assert [one.name for one in candidates(look(["a.py"], {"a.py": text}.__getitem__))] == ["add"]


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


HEAD = """
import torch
import triton


@triton.jit
def kernel(x):
    pass


class OpFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {parameters}):
        kernel[(1,)](x.contiguous())
        return x

    @staticmethod
    def backward(ctx, dy):
        {backward}


"""


def test_the_inputs_with_gradients_are_read_from_the_backward() -> None:
    text = HEAD.format(parameters="x, bias, eps", backward="return dy, None, None")
    text += "def op(x, bias):\n    return OpFunction.apply(x, bias, 1e-3)\n"
    workload = made({"op.py": text}, "op")[1]
    assert 'lambda inputs: kernel.op(inputs["x"], inputs["bias"]), wrt=["x"])' in workload
    applied = made({"op.py": text}, "OpFunction.apply")[1]
    assert 'kernel.OpFunction.apply(inputs["x"], inputs["bias"], 0.001)' in applied, "the value that a caller passes"


@pytest.mark.parametrize(
    ("backward", "more", "name", "why"),
    [
        ("raise NotImplementedError", "", "OpFunction.apply", "OpFunction has no backward"),
        (
            "return dy",
            "def op_fwd(x):\n    kernel[(1,)](x.shape)\n\n\ndef op_bwd(dy):\n    kernel[(1,)](dy.shape)\n",
            "op_fwd",
            "op_fwd does not lead to op_bwd",
        ),
    ],
)
def test_a_proposal_that_times_the_forward_alone_says_so(backward: str, more: str, name: str, why: str) -> None:
    text = HEAD.format(parameters="x", backward=backward) + more
    found = look(["op.py"], {"op.py": text}.__getitem__)
    done = proposed(found, [next(one for one in candidates(found) if one.name == name)], None, "workloads")
    assert (
        f"# This times the forward alone: {why}."
        in done.files["workloads/op_fwd.py" if more else "workloads/OpFunction.py"]
    )
    assert done.notes == (f"The workload times the forward alone: {why}.",)


def test_functions_of_tests_come_last() -> None:
    text = SINGLE["02-softmax.py"]
    files = {"a_test.py": text.replace("def softmax", "def test_softmax"), "rows.py": text}
    assert [one.path for one in candidates(look(list(files), files.__getitem__))] == ["rows.py", "a_test.py"]


def test_a_test_at_the_top_of_a_file_runs_at_import_and_is_named() -> None:
    text = SINGLE["02-softmax.py"].partition('if __name__ == "__main__":')[0]
    for end, lines in (("N = abs(4)\n", 0), ("\ny = softmax(torch.ones(2, 2))\n", 1)):
        found = look(["s.py"], {"s.py": text + end}.__getitem__)
        notes = proposed(found, candidates(found)[:1], None, "workloads").notes
        assert [note.partition(" calls softmax at import, so in every worker")[1] != "" for note in notes] == [
            True
        ] * lines


def test_plain_torch_in_a_file_that_trains_has_gradients() -> None:
    plain = "import torch\n\n\ndef twice(x):\n    rows, width = x.shape\n    return x * 2\n"
    trained = plain + "\n\ndef main():\n    twice(torch.ones(2, 2, requires_grad=True)).sum().backward()\n"
    assert "direction" not in made({"t.py": plain})[1]
    assert '"direction": ["fwd", "bwd"]' in made({"t.py": trained}, "twice")[1]


def signature(parameters: str, doc: str = "") -> str:
    """The workload proposed for a function of these parameters."""
    text = f'import torch\n\n\ndef frob({parameters}):\n    """Frob.\n\n    {doc}\n    """\n    return torch.frob\n'
    return made({"frob.py": text})[1]


def test_the_last_axis_h_is_hidden_unless_it_counts_heads() -> None:
    hidden = signature("x: torch.Tensor, w: torch.Tensor", "x: (B, T, H)\n    w: of shape [H]")
    assert '"default": {"B": [8], "T": [1024, 2048], "H": [4096]' in hidden
    heads = signature("q: torch.Tensor, g: torch.Tensor", "q: (B, T, H, K)\n    g: (B, T, H)")
    assert '"H": [16], "K": [128]' in heads


def test_tensors_of_integers_sequences_and_optional_arguments() -> None:
    table = signature("ids: torch.LongTensor, table: torch.Tensor", "ids: (T,)\n    table: (V, D)")
    assert '"ids": torch.randint(case["V"], draw("T").shape' in table, "an embedding's rows"
    loss = signature(
        "logits: torch.Tensor, y: torch.Tensor", "logits: (T, V)\n    y (Tensor): class indices of shape [T]"
    )
    assert '"y": torch.randint(case["V"], draw("T").shape' in loss
    fused = signature("x: torch.Tensor, w: torch.Tensor, target", "x: (BT, H)\n    w: (V, H)\n    target: (n_rows,)")
    assert '"target": torch.randint(case["V"], draw("BT").shape' in fused, "the classes, not the last size of x"
    typed = signature(
        "x: torch.Tensor, edges: torch.Tensor", "x: (T, D)\n    edges (:class:`LongTensor`): of shape (2 x E)."
    )
    assert '"edges": torch.randint(case["T"], draw(2, "E").shape' in typed, "a graph's edges"
    soft = signature("x: torch.Tensor, target: torch.Tensor", "x: (BT, V)\n    target: (BT, V)")
    assert '"target": draw("BT", "V")' in soft, "probabilities"
    several = signature("xs: list[torch.Tensor]", "xs: (T, D)")
    assert '"xs": [draw("T", "D"), draw("T", "D")],  # GUESSED: the number of tensors' in several
    optional = signature("x: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None = None", "x: (T, D)")
    assert 'kernel.frob(inputs["x"], None)' in optional
    assert "# GUESSED: the value of bias" in optional
    packed = signature("q: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int", "q: (T, H, D)")
    assert '"cu_seqlens": torch.tensor([0, case["T"] // 2, case["T"]], dtype=torch.int32' in packed
    assert 'kernel.frob(inputs["q"], inputs["cu_seqlens"], case["T"])' in packed


def test_pointers_to_segments_and_batches_of_rows() -> None:
    segments = signature("src: torch.Tensor, indptr: torch.Tensor", "src: (T, D)")
    assert '"indptr": torch.tensor([0, case["T"] // 2, case["T"]], dtype=torch.int64' in segments
    assert '"default": {"batch_dim": [2048, 4096]' in signature("x: torch.Tensor", "x: (batch_dim, D)")
    assert '"default": {"batch_dim": [8], "T": [1024, 2048]' in signature("x: torch.Tensor", "x: (batch_dim, T, D)")


def test_shapes_that_the_code_compares_are_the_same() -> None:
    body = "    seqlen, rotary_dim = cos.shape\n    assert sin.shape == cos.shape\n    return torch.frob(x)\n"
    workload = made({"frob.py": "import torch\n\n\ndef frob(x, cos, sin):\n" + body})[1]
    assert '"sin": draw("seqlen", "rotary_dim"),\n' in workload
    assert '"rotary_dim": [64]' in workload, "half of a head"


def test_a_build_is_proposed_only_if_the_file_imports_what_it_makes() -> None:
    apart = {**EXTENSION, "scaled/__init__.py": "", "scaled/rows.py": ROWS}
    entry = made(apart, "softmax")[0]
    assert (entry["path"], entry["build"], entry["inputs"]) == ("scaled", (), ("scaled/**",))
    entry = made({**apart, "scaled/rows.py": "from .ops import add\n" + ROWS}, "softmax")[0]
    assert entry["build"], "through another file"
    torchs = "extension = CppExtension\nextension(\n    f'{name}._C', ['csrc/scaled.cpp'])\n"
    inner = {
        "setup.py": torchs,
        "csrc/scaled.cpp": "",
        "scaled/__init__.py": "from . import _C",
        "scaled/rows.py": ROWS,
    }
    assert made(inner)[0]["build"], "a name that setup.py composes"
    computed = EXTENSION["setup.py"].replace('"scaled_ext"', 'f"scaled._{name}"')
    loaded = {**apart, "setup.py": computed, "scaled/__init__.py": "import torch\ntorch.ops.load_library('_ops.so')\n"}
    assert made(loaded, "softmax")[0]["build"], "a library of operators"


def test_a_name_that_a_function_of_the_package_imports_is_no_name_of_the_package() -> None:
    front = "def rows(x):\n    from .rows import softmax\n\n    return softmax(x)\n"
    _, workload = made({"p/__init__.py": front, "p/rows.py": ROWS}, "softmax")
    assert 'import_module(".rows", kernel.__name__).softmax' in workload


def test_a_file_that_needs_less_than_its_package_is_mounted_alone() -> None:
    package = {"acme/__init__.py": "import transformers\n", "acme/rows.py": ROWS}
    entry, workload = made(package)
    assert (entry["path"], entry["module"]) == ("acme/rows.py", "")
    assert "kernel.softmax(" in workload
    inside = {**package, "acme/rows.py": "from acme.other import x\n" + ROWS, "acme/other.py": ""}
    assert made(inside)[0]["path"] == "acme", "the file imports another one"
