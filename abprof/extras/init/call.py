"""Guess how to call a function that `abprof init` proposes a workload for: which parameters are tensors, their shapes, the
other values, and the same operation in plain torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from abprof.extras.init.source import Function, Parameter

# Names that a workload uses.
_OURS = {"case", "compare", "directed", "import_module", "inputs", "kernel", "Op", "plain", "torch", "variant"}
_RESERVED = {"dtype", "direction", "arm", "case", "device"}  # not allowed as names of axes
_SCALARS = (  # pattern of a parameter's name -> a plausible value
    (r"(variance_)?eps(ilon)?", "1e-6"),
    (r"(dim|axis)", "-1"),
    (r"(is_)?causal|training|return_\w+|use_\w+|keepdim|in_?place|transpose\w*|has_\w+", "False"),
    (r"dropout(_p)?|p_dropout", "0.0"),
    (r"(sm_|softmax_|attn_)?scale|alpha|temperature", "1.0"),
    (r"(block|chunk|tile|group)_?(size)?(_\w+)?", "64"),
    (r"max_?seq_?len\w*", 'case["{first}"]'),
    (r"normalized_shape", '[case["{last}"]]'),
)
_BY_ANNOTATION = {"bool": "False", "int": "1", "float": "1.0", "str": '""'}
_TENSOR_NAME = re.compile(
    r"[a-zA-Z]\d?|inp(ut)?s?|out(put)?|query|key|value|weights?|bias|residual|gate|up|logits|hidden\w*|mask|gamma|beta"
)
_INDEX = re.compile(r"targets?|labels?|ind(ex|ices)|idx|\w+_(ids?|idx)|positions?|offsets?|cu_seqlens\w*|\w*ptr")
_PER_WIDTH = re.compile(r"weights?|w|gamma|beta|bias")
_GENERIC = ("batch", "heads", "rows", "width")


class _Known(NamedTuple):
    """A common operation, recognised by name. `text`: the operation in plain torch, with {0}, {1}, ... as tensors."""

    names: str
    text: str
    axes: str  # of each tensor, used if the code does not give the shape
    scalars: Mapping[str, tuple[str, str]] = {}  # name in `text` -> pattern of the parameter's name, default

    @property
    def shapes(self) -> list[tuple[str, ...]]:
        return [tuple(shape.split()) for shape in self.axes.split(",")]


_BEFORE = r"(?:(?:liger|triton|fused|fast|cuda|my|custom|flash|naive|simple)_)*"
SUFFIXES = r"(?:_(?:triton|cuda|kernel|fwd|forward|fn|func|function|op|impl|persistent|fused|gpu|v\d+|torch))*"
_F = "torch.nn.functional"
_SDPA = f"{_F}.scaled_dot_product_attention({{0}}, {{1}}, {{2}}, is_causal={{causal}}, scale={{scale}})"
_RMS_NORM = "{0} * torch.rsqrt({0}.square().mean(-1, keepdim=True) + {eps}) * {1}"
_LAYER_NORM = f"{_F}.layer_norm({{0}}, {{0}}.shape[-1:], {{1}}, {{2}}, {{eps}})"
_QKV = "batch heads seqlen head_dim, batch heads seqlen head_dim, batch heads seqlen head_dim"
_EPS = "(variance_)?eps(ilon)?"
_MASKED = {"causal": ("(is_)?causal", "False"), "scale": ("((sm|softmax)_)?scale", "None")}
_KNOWN = (
    _Known("softmax|log_softmax|sum|mean", "torch.{name}({0}, {dim})", "rows width", {"dim": ("dim|axis", "-1")}),
    _Known("relu|sigmoid|tanh|exp|sqrt|rsqrt|sin|cos|abs", "torch.{name}({0})", "rows width"),
    _Known("gelu|silu", f"{_F}.{{name}}({{0}})", "rows width"),
    _Known("rms_?(layer_?)?norm", _RMS_NORM, "rows width, width", {"eps": (_EPS, "1e-6")}),
    _Known("layer_?norm", _LAYER_NORM, "rows width, width, width", {"eps": (_EPS, "1e-5")}),
    _Known("mat_?mul|mm|gemm", "{0} @ {1}", "M K, K N"),
    _Known("(vector_|vec_|elementwise_)?add", "{0} + {1}", "n, n"),
    _Known("swiglu|silu_mul", f"{_F}.silu({{0}}) * {{1}}", "rows width, rows width"),
    _Known("geglu|gelu_mul", f"{_F}.gelu({{0}}, approximate='tanh') * {{1}}", "rows width, rows width"),
    _Known("cross_entropy(_loss)?", f"{_F}.cross_entropy({{0}}, {{1}})", "tokens vocab, tokens"),
    _Known("attention|attn|sdpa|mha|scaled_dot_product_attention", _SDPA, _QKV, _MASKED),
)


def _known(called: str) -> tuple[_Known | None, str]:
    """Return the operation that a function's name suggests, or None, and the name without prefixes and suffixes such as
    `triton_` and `_kernel`."""
    snake = re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", called.removesuffix(".apply")).lower()
    plain = re.sub(r"_*(auto_?grad|function)*$", "", snake.replace("__", "_"))
    bare = re.fullmatch(f"{_BEFORE}(.+?){SUFFIXES}", plain)
    word = bare[1] if bare else plain
    return next((one for one in _KNOWN if re.fullmatch(one.names, word)), None), word


@dataclass(frozen=True)
class Argument:
    """An argument of a proposed call."""

    name: str
    value: str = ""  # value of an argument that is not a tensor
    shape: tuple[str, ...] = ()  # a tensor's axes; digits mean a fixed size
    index: bool = False  # a tensor of integers below the first tensor's last size
    several: bool = False  # a list of two tensors
    guessed: str = ""
    keyword: bool = False

    @property
    def local(self) -> str:
        return f"{self.name}_" if self.name in _OURS else self.name


@dataclass(frozen=True)
class Call:
    """A proposed call of a function."""

    arguments: tuple[Argument, ...]
    reference: str  # expression in plain torch; "" if the name is not a known operation
    left_out: tuple[str, ...]  # parameters that keep their defaults
    wrt: tuple[str, ...]  # arguments with gradients; (): every tensor, or the call has none

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(axis for one in self.arguments for axis in one.shape if not axis.isdigit()))


def call_of(one: Function) -> Call:
    """Guess the arguments for a call of `one`: parameters without a default, and the tensors of a known operation."""
    meaning, word = _known(one.name)
    required = [p for p in one.parameters if p.default is None]
    some = [p for p in required if _is_tensor(one, p, first=p is required[0])]
    tensors = [p for p in some if not re.search(r"\bOptional\b|\bNone\b", p.annotation)]
    optional = [p for p in one.parameters if p in some or (p.default == "None" and _is_tensor(one, p, first=False))]
    lacking = max(0, (len(meaning.shapes) if meaning else 1) - len(tensors))
    tensors += [p for p in optional if p not in tensors][:lacking]
    if meaning and len(tensors) != len(meaning.shapes):
        meaning = None
    shapes = _shapes(one, tensors, meaning)
    front = next(iter(shapes.values()), ("",))
    arguments, left_out, gap = [], [], False
    for at, p in enumerate(one.parameters):
        gap |= p.keyword_only
        if p in tensors:
            doubts = [] if p.tensor or p.name in one.tensors else ["that it is a tensor"]
            known = one.shapes.get(p.name, ("",))[-1] in shapes[p.name]
            doubts += [] if known else ["its shape"] if doubts else ["the shape"]
            several = bool(re.search("list|tuple|sequence", p.annotation, re.IGNORECASE))
            doubts += ["the number of tensors"] if several else []
            # Targets of the logits' shape are probabilities.
            soft = p.name.startswith(("target", "label")) and shapes[p.name] == front
            index = not soft and (p.name in one.integers or bool(_INDEX.fullmatch(p.name)))
            guessed = ", and ".join(doubts)
            arguments.append(Argument(p.name, "", shapes[p.name], index, several, guessed, gap))
        elif p in required:
            value = one.values.get(p.name, "")
            value = value if re.fullmatch(r"-?[\d.]+(e-?\d+)?|True|False|None|'[^']*'", value) else ""
            value = value or next((value for pattern, value in _SCALARS if re.fullmatch(pattern, p.name)), "")
            value = value.format(first=front[0], last=front[-1])
            arguments.append(Argument(p.name, value or _BY_ANNOTATION.get(p.annotation, "None"), keyword=gap))
        elif one.applied and any(later in tensors or later in required for later in one.parameters[at:]):
            arguments.append(Argument(p.name, p.default or ""))
        else:
            gap = True
            left_out.append(f"{p.name}={p.default}")
    reference = _reference(meaning, word, one, arguments) if meaning else ""
    floats = [a.name for a in arguments if a.shape and not a.index]
    wrt = tuple(name for name in floats if name in one.gradients)
    return Call(tuple(arguments), reference, tuple(left_out), wrt if len(wrt) < len(floats) else ())


def _is_tensor(one: Function, p: Parameter, *, first: bool) -> bool:
    if p.annotation:
        return p.tensor
    if p.name in one.tensors or p.name in one.gradients:
        return True
    scalar = any(re.fullmatch(pattern, p.name) for pattern, _ in _SCALARS)
    return not scalar and (first or bool(_TENSOR_NAME.fullmatch(p.name) or _INDEX.fullmatch(p.name)))


def _reference(meaning: _Known, word: str, one: Function, arguments: Sequence[Argument]) -> str:
    passed = {a.name: a.value for a in arguments if not a.shape}
    passed = {p.name: passed.get(p.name) or p.default or "" for p in one.parameters}
    scalars = {}
    for name, (pattern, default) in meaning.scalars.items():
        value = next((value for mine, value in passed.items() if re.fullmatch(pattern, mine)), default)
        scalars[name] = value if re.fullmatch(r"[-+.\de]+|True|False", value) else default
    return meaning.text.format(*(a.local for a in arguments if a.shape), name=word, **scalars)


def _shapes(one: Function, tensors: Sequence[Parameter], meaning: _Known | None) -> dict[str, tuple[str, ...]]:
    """Return each tensor's axes: those in the code, else the operation's usual axes, else those of the first tensor."""
    made: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}  # dimension in the known operation -> dimension in the code
    for p, usual in zip(tensors, meaning.shapes if meaning else (), strict=False):
        axes = one.shapes.get(p.name, ())
        pairs = zip(usual, axes, strict=True) if len(axes) == len(usual) else zip(usual[-1:], axes[-1:], strict=False)
        for general, mine in pairs:  # of more leading axes, the last still names the width
            if mine != "_":
                names.setdefault(general, mine)
    for at, p in enumerate(tensors):
        axes = one.shapes.get(p.name, ())
        usual = meaning.shapes[at] if meaning else ()
        first = next(iter(made.values()), ())
        if first and _INDEX.fullmatch(p.name) and len(axes) == 1 and axes[0] not in first:
            axes = ()  # an inner name of the rows
        if usual and len(axes) in {0, len(usual)}:
            made[p.name] = tuple(_axis(names.get(general, general)) for general in usual)
        elif axes:
            generic = _GENERIC[-len(axes) :] if len(axes) <= len(_GENERIC) else [f"d{n}" for n in range(len(axes))]
            made[p.name] = tuple(_axis(g if mine == "_" else mine) for mine, g in zip(axes, generic, strict=True))
        elif any(re.fullmatch(pattern, p.name) for pattern, _ in _SCALARS):  # with a gradient
            made[p.name] = ("1",)
        elif first and _PER_WIDTH.fullmatch(p.name):
            made[p.name] = first[-1:]
        elif first and _INDEX.fullmatch(p.name):
            made[p.name] = first[: max(1, len(first) - 1)]
        else:
            made[p.name] = first or ("rows", "width")
    return made


def _axis(name: str) -> str:
    return f"{name}_" if name in _RESERVED else name
