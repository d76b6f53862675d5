"""What names mean by convention: how plain torch computes a function of a known name, and how large an axis is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_BEFORE = r"(?:(?:liger|triton|fused|fast|cuda|my|custom|flash|tl|gluon|tri|cute|opt|naive|simple)_)*"
_AFTER = r"(?:_(?:triton|cuda|kernel|fwd|forward|fn|func|function|op|impl|persistent|fused|gpu|v\d+|tma|jit|torch))*"


class Known(NamedTuple):
    """`text` computes it of tensors {0}, {1}, ... and of named scalars."""

    text: str
    shapes: tuple[tuple[str, ...], ...]  # of each tensor, where the code does not say
    scalars: tuple[tuple[str, str], ...] = ()  # a pattern of the parameter's name, the default


_ROWS = ("rows", "width")
_WIDTH = ("width",)
_HEADS = ("batch", "heads", "seqlen", "head_dim")
_DIM = ("dim|axis", "-1")
_EPS = ("eps|epsilon|variance_epsilon", "1e-6")


_ATTENTION = "torch.nn.functional.scaled_dot_product_attention({0}, {1}, {2}, is_causal={causal}, scale={scale})"
_ATTENTION_SCALARS = (("causal|is_causal", "False"), ("sm_scale|scale|softmax_scale", "None"))
_LAYER_NORM = "torch.nn.functional.layer_norm({0}, {0}.shape[-1:], {1}, {2}, {eps})"
_RMS_NORM = "{0} * torch.rsqrt({0}.square().mean(-1, keepdim=True) + {eps}) * {1}"
_TABLE: tuple[tuple[str, Known], ...] = (
    ("softmax", Known("torch.softmax({0}, {dim})", (_ROWS,), (_DIM,))),
    ("log_softmax", Known("torch.log_softmax({0}, {dim})", (_ROWS,), (_DIM,))),
    ("relu|gelu|silu|sigmoid|tanh|exp|sqrt|rsqrt|sin|cos|abs|neg|log", Known("", (_ROWS,))),
    ("swish", Known("torch.nn.functional.silu({0})", (_ROWS,))),
    ("rms_?norm", Known(_RMS_NORM, (_ROWS, _WIDTH), (_EPS,))),
    ("layer_?norm", Known(_LAYER_NORM, (_ROWS, _WIDTH, _WIDTH), (("eps|epsilon", "1e-5"),))),
    ("mat_?mul|mm|gemm|mat_mul", Known("{0} @ {1}", (("M", "K"), ("K", "N")))),
    ("bmm", Known("{0} @ {1}", (("B", "M", "K"), ("B", "K", "N")))),
    ("(?:vector_|vec_|elementwise_)?add", Known("{0} + {1}", (("n",), ("n",)))),
    ("sub", Known("{0} - {1}", (("n",), ("n",)))),
    ("mul|multiply", Known("{0} * {1}", (("n",), ("n",)))),
    ("div", Known("{0} / {1}", (("n",), ("n",)))),
    ("swiglu|silu_mul", Known("torch.nn.functional.silu({0}) * {1}", (_ROWS, _ROWS))),
    ("geglu|gelu_mul", Known("torch.nn.functional.gelu({0}, approximate='tanh') * {1}", (_ROWS, _ROWS))),
    (
        "cross_entropy(?:_loss)?",
        Known("torch.nn.functional.cross_entropy({0}, {1})", (("tokens", "vocab"), ("tokens",))),
    ),
    ("sum|mean", Known("", (_ROWS,), (_DIM,))),
    (
        "attention|attn|sdpa|mha|scaled_dot_product_attention",
        Known(_ATTENTION, (_HEADS, _HEADS, _HEADS), _ATTENTION_SCALARS),
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
            return Known(text, entry.shapes, entry.scalars)
    return None


# ---------------------------------------------------------------- sizes of axes


_SIZES = (  # what a dimension is called -> smoke, default
    (r"(kernel|conv|filter)_(size|width)", 4, 4),
    (r"b|bs|bsz|batch(_?size)?|n_?batch|z|bh", 2, 8),
    (r"vocab\w*|v_?size", 512, 32768),
    (r"t|l|s|seq\w*|n_?ctx|\w*seqlen\w*|length|context\w*|total_tokens|tokens|bt|num_tokens", 128, 2048),
    (r"(\w*_)?(n?_?heads?(_num)?|num_heads|hq|hv|hk|h_q|h_kv)|h", 2, 16),
    (r"head_?dim\w*|d_?head|dh|hd|dk|dv|d_k|d_v", 64, 128),
    (r"width|n_?cols?|hidden\w*|d_?model|dim|c|channels?|feature\w*|d|e", 256, 4096),
    (r"rows|n_?rows?", 128, 4096),
    (r"m|n|k", 256, 4096),
)
_ALONE = (65536, 1 << 24)  # of a vector


def sizes(axis: str, beside: int) -> tuple[int, int]:
    """(smoke, default) for an axis of a tensor that has `beside` more axes."""
    name = axis.lower()
    if beside == 0:
        return _ALONE
    if beside >= 3 and name in {"d", "k", "v"}:  # beside three others it is a head's
        return 64, 128
    for pattern, small, large in _SIZES:
        if re.fullmatch(pattern, name):
            return small, large
    return (16, 64) if beside >= 2 else (256, 2048)


def scaled(axes: Sequence[str]) -> str:
    """The axis that the default preset has two values of: a length before a width."""
    for pattern in (_SIZES[3][0], r"rows|n_?rows?|m", r".*"):
        for axis in axes:
            if re.fullmatch(pattern, axis.lower()):
                return axis
    return axes[0]
