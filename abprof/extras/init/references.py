"""Functions that have one meaning wherever they are written: how plain torch computes them, by their name."""

from __future__ import annotations

import re

from abprof.records import Record

_BEFORE = r"(?:(?:liger|triton|fused|fast|cuda|my|custom|flash|tl|gluon|tri|cute|opt|naive|simple)_)*"
_AFTER = r"(?:_(?:triton|cuda|kernel|fwd|forward|fn|func|function|op|impl|persistent|fused|gpu|v\d+|tma|jit|torch))*"


class Known(Record, frozen=True, kw_only=True):
    """`text` computes it of tensors {0}, {1}, ... and of named scalars with what they are if they are not given."""

    text: str
    tensors: int
    shapes: tuple[tuple[str, ...], ...]  # of each tensor, where the code does not say
    scalars: tuple[tuple[str, str], ...] = ()  # a pattern of the parameter's name, the default


_ROWS = ("rows", "width")
_WIDTH = ("width",)
_HEADS = ("batch", "heads", "seqlen", "head_dim")
_DIM = ("dim|axis", "-1")
_EPS = ("eps|epsilon|variance_epsilon", "1e-6")

_TABLE: tuple[tuple[str, Known], ...] = (
    ("softmax", Known(text="torch.softmax({0}, {dim})", tensors=1, shapes=(_ROWS,), scalars=(_DIM,))),
    ("log_softmax", Known(text="torch.log_softmax({0}, {dim})", tensors=1, shapes=(_ROWS,), scalars=(_DIM,))),
    ("relu|gelu|silu|sigmoid|tanh|exp|sqrt|rsqrt|sin|cos|abs|neg|log", Known(text="", tensors=1, shapes=(_ROWS,))),
    ("swish", Known(text="torch.nn.functional.silu({0})", tensors=1, shapes=(_ROWS,))),
    (
        "rms_?norm",
        Known(
            text="{0} * torch.rsqrt({0}.square().mean(-1, keepdim=True) + {eps}) * {1}",
            tensors=2,
            shapes=(_ROWS, _WIDTH),
            scalars=(_EPS,),
        ),
    ),
    (
        "layer_?norm",
        Known(
            text="torch.nn.functional.layer_norm({0}, {0}.shape[-1:], {1}, {2}, {eps})",
            tensors=3,
            shapes=(_ROWS, _WIDTH, _WIDTH),
            scalars=(("eps|epsilon", "1e-5"),),
        ),
    ),
    ("mat_?mul|mm|gemm|mat_mul", Known(text="{0} @ {1}", tensors=2, shapes=(("M", "K"), ("K", "N")))),
    ("bmm", Known(text="{0} @ {1}", tensors=2, shapes=(("B", "M", "K"), ("B", "K", "N")))),
    ("(?:vector_|vec_|elementwise_)?add", Known(text="{0} + {1}", tensors=2, shapes=(("n",), ("n",)))),
    ("sub", Known(text="{0} - {1}", tensors=2, shapes=(("n",), ("n",)))),
    ("mul|multiply", Known(text="{0} * {1}", tensors=2, shapes=(("n",), ("n",)))),
    ("div", Known(text="{0} / {1}", tensors=2, shapes=(("n",), ("n",)))),
    (
        "swiglu|silu_mul",
        Known(text="torch.nn.functional.silu({0}) * {1}", tensors=2, shapes=(_ROWS, _ROWS)),
    ),
    (
        "geglu|gelu_mul",
        Known(text="torch.nn.functional.gelu({0}, approximate='tanh') * {1}", tensors=2, shapes=(_ROWS, _ROWS)),
    ),
    (
        "cross_entropy(?:_loss)?",
        Known(text="torch.nn.functional.cross_entropy({0}, {1})", tensors=2, shapes=(("tokens", "vocab"), ("tokens",))),
    ),
    ("sum|mean", Known(text="", tensors=1, shapes=(_ROWS,), scalars=(_DIM,))),
    (
        "attention|attn|sdpa|mha|scaled_dot_product_attention",
        Known(
            text="torch.nn.functional.scaled_dot_product_attention({0}, {1}, {2}, is_causal={causal}, scale={scale})",
            tensors=3,
            shapes=(_HEADS, _HEADS, _HEADS),
            scalars=(("causal|is_causal", "False"), ("sm_scale|scale|softmax_scale", "None")),
        ),
    ),
)
_UNARY = {"relu": "torch.relu", "gelu": "torch.nn.functional.gelu", "silu": "torch.nn.functional.silu"}


def known(name: str) -> Known | None:
    """How torch computes what is called so, or None: the meaning is the kernel's own, and a person has to say it."""
    plain = re.sub(r"(autograd|function|func)$", "", name.lower().removesuffix(".apply"))
    bare = re.fullmatch(f"{_BEFORE}(.+?){_AFTER}", plain)
    word = bare[1] if bare else plain
    for pattern, entry in _TABLE:
        if re.fullmatch(pattern, word):
            if entry.text:
                return entry
            text = f"{_UNARY.get(word, f'torch.{word}')}({{0}}{', {dim}' if entry.scalars else ''})"
            return Known(text=text, tensors=entry.tensors, shapes=entry.shapes, scalars=entry.scalars)
    return None
