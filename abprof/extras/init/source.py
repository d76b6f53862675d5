"""One Python file as facts. It is parsed, and never imported."""

from __future__ import annotations

import ast
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from abprof.records import Record


class Use(Record, frozen=True, kw_only=True):
    """What a function's body, or its docstring, says of one parameter."""

    tensor: bool = False
    ndim: int = 0  # 0: not known
    dims: tuple[tuple[int, str], ...] = ()  # which dimension is called how; negative ones count from the end


class Parameter(Record, frozen=True, kw_only=True):
    """One parameter as it is written."""

    name: str
    annotation: str = ""
    default: str | None = None
    placed: bool = False  # only by its position
    rest: bool = False  # *args, **kwargs


class Call(Record, frozen=True, kw_only=True):
    """A call whose arguments are parameters of the caller: where they go."""

    name: str  # of what is called; of `Class.apply` the class
    apply: bool = False
    places: tuple[tuple[int | str, str], ...] = ()  # position or keyword -> the caller's parameter


class Function(Record, frozen=True, kw_only=True):
    """A Python function at the top of a file, or a class's `forward`."""

    name: str
    line: int
    parameters: tuple[Parameter, ...] = ()
    names: frozenset[str] = frozenset()  # every name that its body reads; `torch.ops` stands for its users
    calls: tuple[Call, ...] = ()
    uses: dict[str, Use] = {}
    same: tuple[tuple[tuple[str, int], tuple[str, int]], ...] = ()  # dimensions that it asserts to be equal
    returns: bool = True


class Module(Record, frozen=True, kw_only=True):
    """One Python file."""

    path: str
    kernels: tuple[str, ...] = ()  # @triton.jit, @gluon.jit
    functions: dict[str, Function] = {}
    forwards: dict[str, Function] = {}  # torch.autograd.Function's name -> its forward, without ctx
    aliases: dict[str, str] = {}  # name = Class.apply
    imported: dict[str, str] = {}  # name here -> the last part of what it is
    roots: frozenset[str] = frozenset()  # first parts of absolute imports
    relative: bool = False
    exports: frozenset[str] = frozenset()  # what an __init__.py brings to the front
    extensions: frozenset[str] = frozenset()  # names that torch's load(...) or load_inline(...) is bound to
    runs: tuple[int, str] | None = None  # the first line that does work when the file is imported


_JIT = {"triton.jit", "gluon.jit", "jit", "triton.experimental.gluon.jit", "experimental.gluon.jit"}
_LOADERS = {"load", "load_inline"}
_SAME_SHAPE = {"contiguous", "detach", "to", "float", "half", "clone", "cuda", "type_as"}
_HARMLESS = {"append", "extend", "update", "insert", "setdefault", "register", "getLogger", "filterwarnings", "add"}


def content(path: Path) -> str:
    """A text file's content; a Python file's in the encoding that it names (PEP 263). Raises OSError, and ValueError and
    SyntaxError where it is no text."""
    if path.suffix != ".py":
        return path.read_text(encoding="utf-8")
    try:
        with tokenize.open(path) as file:
            return file.read()
    except LookupError as error:  # an encoding that is no text's
        raise ValueError(str(error)) from None


def read(path: str, text: str) -> Module:
    """The file's facts. Raises SyntaxError, ValueError (a NUL byte) and RecursionError."""
    with warnings.catch_warnings():  # of escapes in strings: its author's matter
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    imported, roots, relative = _imports(tree)
    functions, forwards, kernels = {}, {}, []
    for node in _top(tree.body):
        if isinstance(node, ast.FunctionDef):
            decorators = {_dotted(decorator) for decorator in node.decorator_list}
            if decorators & (_JIT if "jit" in imported else _JIT - {"jit"}):
                kernels.append(node.name)
            else:
                functions[node.name] = _function(node, node.args)
        elif isinstance(node, ast.ClassDef) and any(_dotted(base).split(".")[-1] == "Function" for base in node.bases):
            inner = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
            if inner:
                forwards[node.name] = _function(inner[0], inner[0].args, drop=1)
    bound = dict(_assigned(tree))
    aliases = {name: owner for name, value in bound.items() if (owner := _applied(value))}
    return Module(
        path=path,
        kernels=tuple(kernels),
        functions=functions,
        forwards=forwards,
        aliases={name: owner for name, owner in aliases.items() if owner in forwards or owner in imported},
        imported=imported,
        roots=roots,
        relative=relative,
        exports=_exports(bound, imported) if path.rpartition("/")[2] == "__init__.py" else frozenset(),
        extensions=frozenset(
            name for name, v in bound.items() if isinstance(v, ast.Call) and _dotted(v).split(".")[-1] in _LOADERS
        ),
        runs=_runs(tree.body, text),
    )


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a file, those under `if` and `try` too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top(node.body)
            yield from _top(node.orelse)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements in it, at any depth; a third of the nodes."""
    for name in ("body", "orelse", "finalbody", "handlers"):
        for inner in getattr(node, name, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from _statements(inner)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _imports(tree: ast.Module) -> tuple[dict[str, str], frozenset[str], bool]:
    names, roots, relative = {}, set(), False
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = alias.name.split(".")[-1]
                roots.add(alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
            if node.level:
                relative = True
            elif node.module:
                roots.add(node.module.split(".")[0])
    return names, frozenset(roots), relative


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in _top(tree.body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _applied(value: ast.expr) -> str:
    """`Class` of `Class.apply`."""
    applies = isinstance(value, ast.Attribute) and value.attr == "apply"
    return _dotted(value).removesuffix(".apply") if applies else ""


def _exports(bound: dict[str, ast.expr], imported: dict[str, str]) -> frozenset[str]:
    listed = bound.get("__all__")
    if isinstance(listed, ast.List | ast.Tuple):
        return frozenset(str(e.value) for e in listed.elts if isinstance(e, ast.Constant))
    return frozenset(name for name in imported if not name.startswith("_"))


def _runs(body: list[ast.stmt], text: str) -> tuple[int, str] | None:
    """The first statement that does something when the file is imported: a call whose value is not kept."""
    for node in body:
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and _dotted(call).split(".")[-1] not in _HARMLESS:
            return node.lineno, (ast.get_source_segment(text, node) or "").split("\n")[0]
    return None


# ---------------------------------------------------------------- one function


def _function(node: ast.FunctionDef, args: ast.arguments, drop: int = 0) -> Function:
    parameters = _parameters(args)[drop:]
    mine = {p.name for p in parameters if not p.rest}
    nodes = list(ast.walk(node))
    uses, same = from_body(nodes, mine)
    told = from_docstring(ast.get_docstring(node) or "", mine)
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if any(isinstance(n, ast.Attribute) and n.attr == "ops" and _dotted(n) == "torch.ops" for n in nodes):
        read.add("torch.ops")
    return Function(
        name=node.name,
        line=node.lineno,
        parameters=parameters,
        names=frozenset(read - mine),
        calls=tuple(_calls(nodes, mine)),
        uses={name: merged(told.get(name), uses.get(name)) for name in mine if name in told or name in uses},
        same=same,
        returns=any(isinstance(n, ast.Return) and n.value is not None for n in _own(node)),
    )


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """All of a function but the functions and classes inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own(child)


def _parameters(args: ast.arguments) -> tuple[Parameter, ...]:

    def one(arg: ast.arg, default: ast.expr | None, *, placed: bool = False) -> Parameter:
        annotation, value = (ast.unparse(node) if node else None for node in (arg.annotation, default))
        return Parameter(name=arg.arg, annotation=annotation or "", default=value, placed=placed)

    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    pairs = zip(plain, defaults, strict=True)
    made = [one(arg, default, placed=at < len(args.posonlyargs)) for at, (arg, default) in enumerate(pairs)]
    made += [Parameter(name=args.vararg.arg, rest=True)] if args.vararg else []
    made += [one(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    made += [Parameter(name=args.kwarg.arg, rest=True)] if args.kwarg else []
    return tuple(made)


def _calls(nodes: Sequence[ast.AST], mine: set[str]) -> Iterator[Call]:
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        name = _dotted(call.func)
        apply = name.endswith(".apply")
        name = name.removesuffix(".apply").split(".")[-1]
        if name and not isinstance(call.func, ast.Subscript):
            given: list[tuple[int | str, ast.expr]] = list(enumerate(call.args))
            given += [(word.arg, word.value) for word in call.keywords if word.arg]
            places = tuple((at, own) for at, value in given if (own := _handed(value)) in mine)
            yield Call(name=name, apply=apply, places=places)


def _handed(value: ast.expr) -> str:
    """The name that is handed on, as it is or in another memory layout: `x`, `x.contiguous()`."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME_SHAPE:
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


# ---------------------------------------------------------------- a tensor's dimensions


_ATTRIBUTES = """
shape size stride device dtype numel dim ndim contiguous is_contiguous is_cuda data_ptr view reshape new_empty element_size
is_floating_point transpose unsqueeze cuda
"""
_TENSORS = frozenset(_ATTRIBUTES.split())
_OPS = {"empty_like", "zeros_like", "ones_like", "rand_like", "randn_like"}
# "name: (B, T, H, D)", or "name (Tensor): queries of shape [B, T, H, D]" in the same line or the next.
_TOLD = (
    r"^[ \t]*[-*]?[ \t]*`*{name}`*[ \t]*(?:\([^()\n]*\))?[ \t]*[:=-][ \t]*\n?"
    r"(?:[^\n]*?\b(?:[Ss]hape|[Ss]ize|Tensor)\b[ \t:=`]*)?[ \t`]*"
    r"[\[(]([\w ]+(?:,[\w ]+)+,?|\w+,)[\])]"
)
_TYPES = {"tensor", "longtensor", "optional", "int", "float", "bool", "str", "none", "default", "list", "tuple"}

Ends = tuple[tuple[str, int], tuple[str, int]]


def merged(first: Use | None, second: Use | None) -> Use:
    """Both together; where they disagree the first is believed."""
    if first is None or second is None:
        return first or second or Use()
    dims = first.dims if first.dims and (first.ndim or not second.ndim) else (second.dims or first.dims)
    return Use(tensor=first.tensor or second.tensor, ndim=first.ndim or second.ndim, dims=dims)


def from_docstring(text: str, names: set[str]) -> dict[str, Use]:
    """Shapes that a docstring gives beside a parameter's name."""
    found = {}
    for name in names:
        told = re.search(_TOLD.format(name=re.escape(name)), text, re.MULTILINE)
        parts = [part.strip() for part in told[1].split(",") if part.strip()] if told else []
        if (
            parts
            and not _TYPES & {part.lower() for part in parts}
            and all(part.isidentifier() or part.isdigit() for part in parts)
        ):
            dims = tuple((at, part) for at, part in enumerate(parts) if part != "_")
            found[name] = Use(tensor=True, ndim=len(parts), dims=dims)
    return found


def from_body(nodes: Sequence[ast.AST], names: set[str]) -> tuple[dict[str, Use], tuple[Ends, ...]]:
    """How a function's body (all of its nodes, outer before inner) uses its parameters: as a tensor, of how many
    dimensions, called what; and which dimensions it says are equal."""
    tensors = set(_tensors(nodes, names))
    dims: dict[str, dict[int, str]] = {}
    ranks: dict[str, int] = {}
    for target, owner, at in _unpacked(nodes, names):
        if isinstance(target, ast.Tuple):
            # the first word is the caller's: later ones may be of what it was reshaped to
            if owner not in ranks and not any(isinstance(e, ast.Starred) for e in target.elts):
                ranks[owner] = len(target.elts)
                dims[owner] = {i: e.id for i, e in enumerate(target.elts) if isinstance(e, ast.Name) and e.id != "_"}
        elif at is not None and owner not in ranks:
            dims.setdefault(owner, {}).setdefault(at, target.id)
    for owner, rank in _ranks(nodes, names):
        ranks.setdefault(owner, rank)
    everything = tensors | dims.keys() | ranks.keys()
    uses = {
        name: Use(tensor=True, ndim=ranks.get(name, 0), dims=tuple(sorted(dims.get(name, {}).items())))
        for name in everything
    }
    return uses, tuple(_equal(nodes, names))


def _tensors(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[str]:
    for inner in nodes:
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id in names:
            if inner.attr in _TENSORS:
                yield inner.value.id
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _OPS:
            yield from (arg.id for arg in inner.args[:1] if isinstance(arg, ast.Name) and arg.id in names)


def _shape(node: ast.expr, names: set[str]) -> tuple[str, int | None] | None:
    """(`x`, None) for x.shape and x.size(); (`x`, 1) for x.shape[1] and x.size(1)."""
    at: ast.expr | None = None
    if isinstance(node, ast.Subscript):
        at, node = node.slice, node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
        at, node = (node.args[0] if node.args else None), node.func
    if isinstance(node, ast.Attribute) and node.attr in {"shape", "size"} and isinstance(node.value, ast.Name):
        index = None if at is None else _integer(at)
        if node.value.id in names and (at is None or index is not None):
            return node.value.id, index
    return None


def _integer(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) else None


def _unpacked(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[tuple[ast.Tuple | ast.Name, str, int | None]]:
    """`M, K = a.shape` and `M = a.shape[0]`, in the order they stand in."""
    for inner in nodes:
        if not isinstance(inner, ast.Assign) or len(inner.targets) != 1:
            continue
        target, value = inner.targets[0], inner.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = list(zip(target.elts, value.elts, strict=True))
        for name, said in pairs:
            found = _shape(said, names)
            if found and isinstance(name, ast.Tuple if found[1] is None else ast.Name):
                yield name, found[0], found[1]


def _ranks(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[tuple[str, int]]:
    """`x.ndim == 3`, `x.dim() == 3`, `len(x.shape) == 3` that are asserted."""
    for part in _asserted(nodes):
        said, rank = ast.unparse(part.left), _integer(part.comparators[0])
        owner = re.fullmatch(r"(\w+)\.(?:ndim|dim\(\))|len\((\w+)\.(?:shape|size\(\))\)", said)
        name = (owner[1] or owner[2]) if owner else ""
        if rank and name in names:
            yield name, rank


def _equal(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[Ends]:
    """`assert a.shape[1] == b.shape[0]`."""
    for part in _asserted(nodes):
        left, right = _shape(part.left, names), _shape(part.comparators[0], names)
        if left and right and left[1] is not None and right[1] is not None:
            yield (left[0], left[1]), (right[0], right[1])


def _asserted(nodes: Sequence[ast.AST]) -> Iterator[ast.Compare]:
    """Every `left == right` that is asserted."""
    for inner in nodes:
        for part in ast.walk(inner.test) if isinstance(inner, ast.Assert) else ():
            if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq):
                yield part
