"""Find functions that take tensors, and the Triton kernels that these functions launch. No file is imported."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePosixPath

_LARGEST = 1 << 20  # characters; larger Python files are skipped as generated
_DEPTH = 4  # depth of calls followed to learn shapes and kernels
_JIT = re.compile(r"(.*\b(triton|gluon)\.)?jit")
# Functions in these folders are candidates only if no other folder has candidates.
_ASIDE = re.compile(
    r"(.*/)?((tests?|bench\w*|docs?|examples?|scripts|tools|third_party|vendor|ci|utils|tutorials|workloads|runs|dev|demo)/.*"
    r"|(test_|bench|conftest|setup\.)[^/]*|[^/]+_test\.py)"
)
LIBRARY = "torch.ops.load_library"
BACKWARD = re.compile(r"backward|bwd|_grad|grad_|dgrad|wgrad")
_INTERNAL = re.compile(r"_(forward|fwd|impl|inner|kernel|launch|config)|autotune|_$")
_OF_TENSORS = re.compile(r"shape|size|stride|device|dtype|numel|n?dim|(is_)?contiguous|is_cuda|data_ptr|view|reshape")
_LIKE = {"empty_like", "zeros_like", "ones_like"}
_SAME_SHAPE = {"contiguous", "detach", "to", "float", "half", "clone", "cuda", "type_as"}
# "x: (B, T, D)", or "x (Tensor): queries of shape [B, T, D]", or "(B x T x D)"; the text may go on in lines that are indented further.
_DOCUMENTED = (
    r"^([ \t]*)(?:[^\n]*(?:[\])],|;|\.) +)?(?:`*\w+`*, ?)*`*{name}`*(?:, ?`*\w+`*)*[ \t]*"
    r"(\([^()\n]*\))?[ \t]*[:=-][ \t]*(.*(?:\n\1[ \t]+\S.*)*)"
)
_NEXT = re.compile(
    r"(?:;|(?<=[\])]),)\s*(?!dtype|default)`*\w+`*\s*:"
)  # where the next parameter begins on the same line
_SHAPE = re.compile(
    r"(?:.*?\b(?:[Ss]hape|[Ss]ize|Tensor)s?\b(?: is| of)?[\s:=`]*)?`*[\[(]([\w ]+(?:,[\w ]+)+,?|\w+,)[\])]"
    r"|.*?\b[Ss]hapes?\b(?: is)?[\s:=`]*[\[(]([\w ]+)[\])]",
    re.DOTALL,
)
_INTEGERS = re.compile(r"\b(Long|Int)Tensor|\bint(32|64)\b|\binteger|\bind(ex|ices)\b", re.IGNORECASE)
_TYPES = {"tensor", "optional", "int", "float", "bool", "str", "none", "default", "list", "tuple"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function."""

    name: str
    annotation: str = ""
    default: str | None = None
    keyword_only: bool = False

    @property
    def tensor(self) -> bool:
        """Whether the annotation names a tensor type, or a sequence of tensors."""
        return "Tensor" in self.annotation


@dataclass(eq=False)
class Function:
    """A top-level function, or the `forward` of a torch autograd function, under the name `Class.apply`."""

    name: str
    path: str
    line: int
    parameters: list[Parameter]
    names: set[str]  # names that the body reads
    calls: list[tuple[str, dict[int | str, str]]]  # (called name, position or keyword -> own parameter or constant)
    tensors: set[str]  # parameters that the body uses as tensors
    shapes: dict[str, tuple[str, ...]]  # parameter -> names of its dimensions, "_" for an unnamed dimension
    integers: set[str]  # parameters that hold integers, by annotation or docstring
    kernels: set[str] = field(default_factory=set)  # Triton kernels launched, directly or through calls
    applied: bool = False  # a torch autograd function: arguments go by position
    differentiable: bool = False  # autograd computes gradients: of `gradients`, or if that is empty of any tensor
    gradients: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)  # parameter -> constant or default value that a caller passes


@dataclass
class Found:
    """The files of a repository, and the functions in its Python files."""

    files: Sequence[str]
    functions: dict[str, list[Function]] = field(default_factory=dict)  # by name
    kernels: set[str] = field(default_factory=set)
    fronts: dict[str, set[str]] = field(default_factory=dict)  # path of an __init__.py -> names that the file imports
    unread: list[str] = field(default_factory=list)  # Python files that cannot be parsed
    setup: str = ""  # text of setup.py
    imports: dict[str, set[str]] = field(default_factory=dict)  # path -> dotted names that the file imports
    absolute: set[str] = field(default_factory=set)  # dotted names that any file imports, without relative imports
    called: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # path -> (name, line) of calls at import

    def callees(self, function: Function) -> Iterator[tuple[Function, list[tuple[str, str]]]]:
        """For each call in `function`, yield the called function and (what is passed, the called function's parameter)."""
        for name, places in function.calls:
            there = self.functions.get(name, [])
            if there and function not in there:
                one = next((one for one in there if one.path == function.path), there[0])
                own: dict[int | str, str] = dict(enumerate(p.name for p in one.parameters))
                yield (
                    one,
                    [(mine, own.get(at, str(at))) for at, mine in places.items() if at in own or isinstance(at, str)],
                )


def look(files: Sequence[str], text: Callable[[str], str]) -> Found:
    """Find the functions in the Python files. `text` returns a file's content, or raises OSError or ValueError."""
    found = Found(files)
    for path in (path for path in files if path.endswith(".py") and path.isprintable()):
        try:
            source = text(path)
            found.setup = source if path == "setup.py" else found.setup
            if len(source) <= _LARGEST:
                _read(found, path, source)
        except (OSError, SyntaxError, ValueError, RecursionError):
            found.unread.append(path)
    for function in chain(*found.functions.values()):
        _learn(found, function, _DEPTH)
    return found


def candidates(found: Found) -> tuple[Function, ...]:
    """Return the functions that can be measured, the most likely first: above all those that launch kernels."""
    every = [one for one in chain(*found.functions.values()) if _measurable(one)]
    inner = {callee.name for one in every for callee, _ in found.callees(one)}
    exported = {name for names in found.fronts.values() for name in names}

    def rank(one: Function) -> tuple[bool, bool, int, str, int]:
        name = one.name.lower()
        unknown = [p for p in one.parameters if p.default is None and not p.annotation and p.name not in one.tensors]
        score = 2 * (one.name in exported) - 2 * (one.name in inner) - 2 * one.name.endswith(".apply")
        score -= 4 * len(unknown) + 6 * bool(BACKWARD.search(name)) + 2 * bool(_INTERNAL.search(name))
        return bool(_ASIDE.fullmatch(one.path)), not one.kernels, -score, one.path, one.line

    return tuple(sorted(every, key=rank))


def _measurable(one: Function) -> bool:
    private = one.name.startswith("_") or one.name == "main" or PurePosixPath(one.path).name.startswith("test_")
    tensors = any(p.tensor or (p.name in one.tensors and not p.annotation) for p in one.parameters)
    return tensors and not private and bool(one.kernels or "torch" in one.names)


def _learn(found: Found, function: Function, depth: int) -> None:
    """Add to `function` what calls show, followed `depth` levels deep: launched kernels, and shapes of tensors."""
    function.kernels |= function.names & found.kernels
    for callee, pairs in found.callees(function) if depth else ():
        _learn(found, callee, depth - 1)
        function.kernels |= callee.kernels
        function.differentiable |= callee.differentiable
        own = {p.name: p.default for p in function.parameters}
        for mine, theirs in pairs:
            if (value := own.get(mine, mine)) and callee.values.get(theirs, "None") == "None":
                callee.values[theirs] = value
            if mine not in own:
                continue
            if theirs in callee.tensors:
                function.tensors.add(mine)
            if theirs in callee.gradients:
                function.gradients.add(mine)
            if theirs in callee.shapes:
                function.shapes.setdefault(mine, callee.shapes[theirs])


def _read(found: Found, path: str, text: str) -> None:
    with warnings.catch_warnings():  # hide warnings of invalid escapes in strings
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    found.imports[path] = set(_imported(tree, PurePosixPath(path).parent.parts))
    found.absolute |= set(_imported(tree, None))
    if path.endswith("__init__.py"):
        imports = [node for node in _outer(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        found.fronts[path] = {alias.asname or alias.name for node in imports for alias in node.names}
    plainly = (node for node in tree.body if isinstance(node, ast.Expr | ast.Assign | ast.Assert))
    calls = (call for node in plainly for call in ast.walk(node) if isinstance(call, ast.Call))
    found.called[path] = [(_dotted(call), call.lineno) for call in calls]
    mine: dict[str, Function] = {}
    for node in _top(tree.body):
        if isinstance(node, ast.FunctionDef):
            if any(_JIT.fullmatch(_dotted(decorator)) for decorator in node.decorator_list):
                found.kernels.add(node.name)
            else:
                mine[node.name] = _function(path, node.name, node)
        elif isinstance(node, ast.ClassDef) and any(_dotted(base).endswith("Function") for base in node.bases):
            inner = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
            if "forward" in inner:
                mine[f"{node.name}.apply"] = _function(path, f"{node.name}.apply", inner["forward"], drop=1)
                _differentiate(mine[f"{node.name}.apply"], inner.get("backward"))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            jits = [one for one in ast.walk(value) if isinstance(one, ast.Call) and _JIT.fullmatch(_dotted(one))]
            if jits:  # name = triton.jit(function)
                found.kernels.add(name)
                for arg in jits[0].args:
                    mine.pop(_dotted(arg), None)
            # name = Class.apply; out = add(x, y) is a call
            applied = mine.pop(_dotted(value), None) if isinstance(value, ast.Name | ast.Attribute) else None
            if applied:
                applied.name = name
                mine[name] = applied
    plain = re.search(r"requires_grad|\.backward\(", text) and not re.search(r"\btriton\b|cpp_extension", text)
    for name, function in mine.items():
        function.differentiable |= bool(plain) or "register_autograd" in text
        function.names |= {"torch"} if re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE) else set()
        found.functions.setdefault(name, []).append(function)


def _top(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top([*node.body, *node.orelse])


def _outer(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes outside of functions: an import inside a function names nothing in the module."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = {node for function in functions for node in ast.walk(function)}
    return [node for node in ast.walk(tree) if node not in inside]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _function(path: str, name: str, node: ast.FunctionDef, drop: int = 0) -> Function:
    parameters = _parameters(node.args)[drop:]
    mine = {p.name for p in parameters}
    nodes = list(ast.walk(node))
    text = ast.get_docstring(node) or ""
    shapes = dict(reversed([*_unpacked(nodes, mine)])) | _documented(text, mine)
    shapes |= {one: shapes[other] for one, other in _alike(nodes, mine) if other in shapes and one not in shapes}
    tensors = {*shapes, *_tensors(nodes, mine)}
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - mine
    whole = {p.name for p in parameters if _INTEGERS.search(p.annotation + "".join(_text_of(p.name, text))[:200])}
    return Function(name, path, node.lineno, parameters, read, list(_calls(nodes, mine)), tensors, shapes, whole)


def _differentiate(applied: Function, backward: ast.FunctionDef | None) -> None:
    applied.applied = True
    if backward is None or any(isinstance(node, ast.Raise) for node in backward.body):
        return
    applied.differentiable = True
    for node in ast.walk(backward):
        if isinstance(node, ast.Return) and node.value is not None:
            given = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if not any(isinstance(one, ast.Starred) for one in given) and len(given) >= len(applied.parameters):
                some = zip(applied.parameters, given, strict=False)  # torch ignores further None
                applied.gradients |= {p.name for p, one in some if _constant(one) != "None"}


def _imported(tree: ast.Module, folder: tuple[str, ...] | None) -> Iterator[str]:
    """Yield the dotted name of everything imported, libraries of operators too; relative imports (left out if `folder` is
    None) are counted from the top of the repository."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "load_library":
            yield LIBRARY
        elif isinstance(node, ast.Import | ast.ImportFrom):
            level, module = getattr(node, "level", 0), getattr(node, "module", None)
            if folder is None and level:
                continue
            folder = folder or ()
            above = [*folder[: len(folder) + 1 - level if level else 0], *([module] if module else [])]
            yield from (".".join([*above, alias.name]) for alias in node.names)


def _parameters(args: ast.arguments) -> list[Parameter]:
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    annotations = [ast.unparse(arg.annotation) if arg.annotation else "" for arg, _ in pairs]
    texts = [ast.unparse(default) if default else None for _, default in pairs]
    every = zip(pairs, annotations, texts, strict=True)
    return [Parameter(arg.arg, annotation, text, arg in args.kwonlyargs) for (arg, _), annotation, text in every]


def _calls(nodes: Sequence[ast.AST], mine: set[str]) -> Iterator[tuple[str, dict[int | str, str]]]:
    for call in nodes:
        if isinstance(call, ast.Call) and (isinstance(call.func, ast.Name) or _dotted(call.func).endswith(".apply")):
            given: list[tuple[int | str, ast.expr]] = list(enumerate(call.args))
            given += [(word.arg, word.value) for word in call.keywords if word.arg]
            texts = {at: name if (name := _handed(value)) in mine else _constant(value) for at, value in given}
            yield _dotted(call.func), {at: text for at, text in texts.items() if text}


def _constant(value: ast.expr) -> str:
    """Return the source of a constant, such as None, 1e-6 or -1; "" for other expressions."""
    inner = value.operand if isinstance(value, ast.UnaryOp) else value
    return ast.unparse(value) if isinstance(inner, ast.Constant) else ""


def _handed(value: ast.expr) -> str:
    """Return the name of the variable in an argument like `x` or `x.contiguous()`; "" for other expressions."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SAME_SHAPE:
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


def _text_of(name: str, text: str) -> tuple[str, str]:
    """Return a parameter's type and description in a docstring."""
    match = name in text and re.search(_DOCUMENTED.format(name=re.escape(name)), text, re.MULTILINE)
    return (match[2] or "", _NEXT.split(match[3])[0]) if match else ("", "")


def _documented(text: str, names: set[str]) -> dict[str, tuple[str, ...]]:
    found = {}
    for name in names:
        match = _SHAPE.match(_text_of(name, text)[1])
        given = (match[1] or match[2]) if match else ""
        parts = [part.strip() for part in given.split("," if "," in given else " x ") if part.strip()]
        if parts and all(p.isidentifier() or p.isdigit() for p in parts) and not _TYPES & {p.lower() for p in parts}:
            found[name] = tuple(parts)
    return found


def _unpacked(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (parameter, names of its dimensions) for each statement like `M, K = a.shape`."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            owner, _, attribute = _dotted(node.value).partition(".")
            parts = node.targets[0].elts
            if owner in names and attribute in {"shape", "size"} and all(isinstance(part, ast.Name) for part in parts):
                yield owner, tuple(part.id for part in parts if isinstance(part, ast.Name))


def _alike(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield both orders of two parameters in `sin.shape == cos.shape`."""
    for node in nodes:
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            pair = [_dotted(one).partition(".") for one in (node.left, node.comparators[0])]
            if all(owner in names and attribute == "shape" for owner, _, attribute in pair):
                yield from ((pair[0][0], pair[1][0]), (pair[1][0], pair[0][0]))


def _tensors(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and _OF_TENSORS.fullmatch(node.attr):
            yield from {node.value.id} & names
        elif isinstance(node, ast.Call) and _dotted(node).rpartition(".")[2] in _LIKE:
            yield from {arg.id for arg in node.args[:1] if isinstance(arg, ast.Name)} & names
