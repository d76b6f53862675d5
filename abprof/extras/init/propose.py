"""A guess at how a function is called (its inputs, scalars and reference), and at how its package is imported and built."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from abprof.extras.init.source import Found, Function, Parameter
from abprof.records import PackageTable

_OURS = {"case", "compare", "import_module", "inputs", "kernel", "Op", "torch", "variant"}  # names that a workload uses
_RESERVED = {"dtype", "direction", "arm", "case", "device"}  # no names of axes
_SCALARS = (  # a parameter's name -> a value that is likely to be accepted
    (r"(variance_)?eps(ilon)?", "1e-6"),
    (r"(dim|axis)", "-1"),
    (r"(is_)?causal|training|return_\w+|use_\w+|keepdim|in_?place|transpose\w*|has_\w+", "False"),
    (r"dropout(_p)?|p_dropout", "0.0"),
    (r"(sm_|softmax_|attn_)?scale|alpha|temperature", "1.0"),
    (r"(block|chunk|tile|group)_?(size)?(_\w+)?", "64"),
)
_BY_ANNOTATION = {"bool": "False", "int": "1", "float": "1.0", "str": '""'}
_TENSOR_NAME = re.compile(
    r"[a-zA-Z]\d?|inp(ut)?s?|out(put)?|query|key|value|weights?|bias|residual|gate|up|logits|hidden\w*|mask|gamma|beta"
)
_INDEX = re.compile(r"targets?|labels?|ind(ex|ices)|idx|\w+_(ids?|idx)|positions?|offsets?|cu_seqlens\w*")
_PER_WIDTH = re.compile(r"weights?|w|gamma|beta|bias")
_GENERIC = ("batch", "heads", "rows", "width")


# ---------------------------------------------------------------- functions of a known name


@dataclass(frozen=True)
class _Known:
    """`text` computes the function of tensors {0}, {1}, ... and of named scalars."""

    names: str
    text: str
    shapes: tuple[tuple[str, ...], ...]  # of each tensor, where the code does not say
    scalars: Mapping[str, tuple[str, str]]  # name in `text` -> pattern of the parameter's name, default


_BEFORE = r"(?:(?:liger|triton|fused|fast|cuda|my|custom|flash|naive|simple)_)*"
_AFTER = r"(?:_(?:triton|cuda|kernel|fwd|forward|fn|func|function|op|impl|persistent|fused|gpu|v\d+|torch))*"
_F = "torch.nn.functional"
_ROWS, _WIDTH, _HEADS = ("rows", "width"), ("width",), ("batch", "heads", "seqlen", "head_dim")
_EPS = "(variance_)?eps(ilon)?"
_KNOWN = (
    _Known("softmax|log_softmax|sum|mean", "torch.{name}({0}, {dim})", (_ROWS,), {"dim": ("dim|axis", "-1")}),
    _Known("relu|sigmoid|tanh|exp|sqrt|rsqrt|sin|cos|abs", "torch.{name}({0})", (_ROWS,), {}),
    _Known("gelu|silu", f"{_F}.{{name}}({{0}})", (_ROWS,), {}),
    _Known(
        "rms_?norm",
        "{0} * torch.rsqrt({0}.square().mean(-1, keepdim=True) + {eps}) * {1}",
        (_ROWS, _WIDTH),
        {"eps": (_EPS, "1e-6")},
    ),
    _Known(
        "layer_?norm",
        f"{_F}.layer_norm({{0}}, {{0}}.shape[-1:], {{1}}, {{2}}, {{eps}})",
        (_ROWS, _WIDTH, _WIDTH),
        {"eps": (_EPS, "1e-5")},
    ),
    _Known("mat_?mul|mm|gemm", "{0} @ {1}", (("M", "K"), ("K", "N")), {}),
    _Known("bmm", "{0} @ {1}", (("B", "M", "K"), ("B", "K", "N")), {}),
    _Known("(vector_|vec_|elementwise_)?add", "{0} + {1}", (("n",), ("n",)), {}),
    _Known("mul", "{0} * {1}", (("n",), ("n",)), {}),
    _Known("swiglu|silu_mul", f"{_F}.silu({{0}}) * {{1}}", (_ROWS, _ROWS), {}),
    _Known("geglu|gelu_mul", f"{_F}.gelu({{0}}, approximate='tanh') * {{1}}", (_ROWS, _ROWS), {}),
    _Known("cross_entropy(_loss)?", f"{_F}.cross_entropy({{0}}, {{1}})", (("tokens", "vocab"), ("tokens",)), {}),
    _Known(
        "attention|attn|sdpa|mha|scaled_dot_product_attention",
        f"{_F}.scaled_dot_product_attention({{0}}, {{1}}, {{2}}, is_causal={{causal}}, scale={{scale}})",
        (_HEADS, _HEADS, _HEADS),
        {"causal": ("(is_)?causal", "False"), "scale": ("((sm|softmax)_)?scale", "None")},
    ),
)


def _known(called: str) -> tuple[_Known | None, str]:
    """What the function computes by its name, and that name without the words around it."""
    plain = re.sub(r"function$", "", called.lower().removesuffix(".apply"))
    bare = re.fullmatch(f"{_BEFORE}(.+?){_AFTER}", plain)
    word = bare[1] if bare else plain
    return next((one for one in _KNOWN if re.fullmatch(one.names, word)), None), word


# ---------------------------------------------------------------- the call


@dataclass(frozen=True)
class Argument:
    """One argument of the call."""

    name: str
    local: str  # variable of the reference
    value: str = ""  # of one that is no tensor
    shape: tuple[str, ...] = ()  # a tensor's axes, digits for a fixed extent
    index: bool = False  # integers below the first tensor's last extent
    guessed: str = ""
    keyword: bool = False


@dataclass(frozen=True)
class Call:
    """A whole call."""

    arguments: tuple[Argument, ...]
    reference: str  # in plain torch, of the tensors' locals; "" if the name has no known meaning
    left_out: tuple[str, ...]  # parameters that keep their defaults

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of all tensors, in order of appearance."""
        return tuple(dict.fromkeys(axis for one in self.arguments for axis in one.shape if not axis.isdigit()))


def call_of(one: Function) -> Call:
    """Guess the call: parameters without a default, and optional tensors that the function's meaning needs."""
    meaning, word = _known(one.name)
    required = [p for p in one.parameters if p.default is None]
    tensors = [p for p in required if _is_tensor(one, p, first=p is required[0])]
    optional = [p for p in one.parameters if p.default == "None" and _is_tensor(one, p, first=False)]
    tensors += optional[: max(0, (len(meaning.shapes) if meaning else 1) - len(tensors))]
    if meaning and len(tensors) != len(meaning.shapes):
        meaning = None
    shapes = _shapes(one, tensors, meaning)
    arguments, left_out, gap = [], [], False
    for p in one.parameters:
        gap |= p.keyword_only
        local = f"{p.name}_" if p.name in _OURS else p.name
        if p in tensors:
            doubts = [] if p.tensor or p.name in one.tensors else ["that it is a tensor"]
            doubts += [] if p.name in one.shapes else ["its shape"] if doubts else ["the shape"]
            index, guessed = bool(_INDEX.fullmatch(p.name)), ", and ".join(doubts)
            arguments.append(Argument(p.name, local, "", shapes[p.name], index, guessed, gap))
        elif p in required:
            arguments.append(Argument(p.name, local, value=_value(p), keyword=gap))
        else:
            gap = True
            left_out.append(f"{p.name}={p.default}")
    reference = _reference(meaning, word, one, arguments) if meaning else ""
    return Call(tuple(arguments), reference, tuple(left_out))


def _is_tensor(one: Function, p: Parameter, *, first: bool) -> bool:
    if p.annotation:
        return p.tensor
    if p.name in one.tensors:
        return True
    scalar = any(re.fullmatch(pattern, p.name) for pattern, _ in _SCALARS)
    return not scalar and (first or bool(_TENSOR_NAME.fullmatch(p.name) or _INDEX.fullmatch(p.name)))


def _value(p: Parameter) -> str:
    by_name = next((value for pattern, value in _SCALARS if re.fullmatch(pattern, p.name)), None)
    return by_name or _BY_ANNOTATION.get(p.annotation, "None")


def _reference(meaning: _Known, word: str, one: Function, arguments: Sequence[Argument]) -> str:
    """The meaning's text with this call's names; its scalars as they are passed, or by default."""
    passed = {a.name: a.value for a in arguments if not a.shape}
    passed = {p.name: passed.get(p.name) or p.default or "" for p in one.parameters}
    scalars = {}
    for name, (pattern, default) in meaning.scalars.items():
        value = next((value for mine, value in passed.items() if re.fullmatch(pattern, mine)), default)
        scalars[name] = value if re.fullmatch(r"[-+.\de]+|True|False", value) else default
    return meaning.text.format(*(a.local for a in arguments if a.shape), name=word, **scalars)


def _shapes(one: Function, tensors: Sequence[Parameter], meaning: _Known | None) -> dict[str, tuple[str, ...]]:
    """Tensor -> its axes: by the code, by the function's meaning with the code's names, or like the first tensor's."""
    made: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}  # the meaning's name of a dimension -> the code's
    for at, p in enumerate(tensors):
        said = one.shapes.get(p.name, ())
        usual = meaning.shapes[at] if meaning else ()
        first = next(iter(made.values()), ())
        if said and len(said) == len(usual):
            for general, mine in zip(usual, said, strict=True):
                if mine != "_":
                    names.setdefault(general, mine)
        if usual and len(said) in {0, len(usual)}:
            made[p.name] = tuple(_axis(names.get(general, general)) for general in usual)
        elif said:
            generic = _GENERIC[-len(said) :] if len(said) <= len(_GENERIC) else [f"d{n}" for n in range(len(said))]
            made[p.name] = tuple(_axis(g if mine == "_" else mine) for mine, g in zip(said, generic, strict=True))
        elif first and _PER_WIDTH.fullmatch(p.name):
            made[p.name] = first[-1:]
        elif first and _INDEX.fullmatch(p.name):
            made[p.name] = first[: max(1, len(first) - 1)]
        else:
            made[p.name] = first or _ROWS
    return made


def _axis(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


# ---------------------------------------------------------------- the package

_BUILD_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in")
_NATIVE = ("csrc", "include", "cpp", "cuda", "src/csrc")


@dataclass(frozen=True)
class Package:
    """The kernel package that a function belongs to."""

    kernel: str  # its name
    access: str  # module to import the function from, relative to the package: ".rows"; "" for the package itself
    entry: PackageTable | None  # its table in abprof.toml; None for kernels/NAME, which needs none
    why: Mapping[str, str]  # key of the table -> why it has that value, where it is a guess


def package_of(found: Found, one: Function, setup: str) -> Package:
    """Guess a function's package: the highest folder with an __init__.py. `setup` is the text of setup.py, "" without one."""
    path = PurePosixPath(one.path)
    home = path
    for folder in path.parents:
        if f"{folder}/__init__.py" not in found.files:
            break
        home = folder
    inner = path.relative_to(home).with_suffix("").parts if home != path else ()
    access = "".join(f".{part}" for part in inner).removesuffix(".__init__")
    if one.name.partition(".")[0] in found.fronts.get(f"{home}/__init__.py", ()):
        access = ""
    if home.parts[:-1] == ("kernels",):
        return Package(home.name.removesuffix(".py"), access, None, {})
    # A folder without __init__.py below src/ is a namespace.
    parts = home.parts[1:] if home.parts[0] == "src" else home.parts[-1:]
    entry, why = _entry(found, str(home), "" if home == path else ".".join(parts), setup)
    return Package(re.sub(r"[^\w-]", "_", home.name.removesuffix(".py")), access, entry, why)


def _entry(found: Found, home: str, module: str, setup: str) -> tuple[PackageTable, dict[str, str]]:
    inputs = [f"{home}/**" if module else home]
    why = {"inputs": "what decides a rebuild, and all that a build is given: add what else it reads"}
    built = "Extension(" in setup
    if built:
        inputs += [name for name in _BUILD_FILES if name in found.files]
        inputs += [name for name in found.files if "/" not in name and f'"{name}"' in setup]
        why["build"] = "setup.py makes an extension: it is compiled once for each content of `inputs`"
        why["env"] = "the extension is imported from the top, not from inside the package"
    inputs += [f"{folder}/**" for folder in _NATIVE if any(name.startswith(f"{folder}/") for name in found.files)]
    entry = PackageTable(
        path=home,
        module=module,
        inputs=tuple(dict.fromkeys(inputs)),
        build=("python", "setup.py", "build_ext", "--inplace") if built else (),
        env={"PYTHONPATH": "{worktree}"} if built else {},
        submodules=built and ".gitmodules" in found.files,
    )
    return entry, why
