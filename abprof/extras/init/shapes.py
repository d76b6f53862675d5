"""What is said of a tensor's dimensions: by how a function takes its shape apart, and by its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from abprof.extras.init.facts import Use

_TENSORS = {
    *("shape", "size", "stride", "device", "dtype", "numel", "dim", "ndim", "contiguous", "is_contiguous", "is_cuda"),
    *(
        "data_ptr",
        "view",
        "reshape",
        "new_empty",
        "element_size",
        "is_floating_point",
        "transpose",
        "unsqueeze",
        "cuda",
    ),
}
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
    for owner, at in _strides(nodes, names):
        if owner not in ranks and at >= 0:
            dims.setdefault(owner, {})
            ranks[owner] = max(at + 1, 1) if at else 0
    ranks = {owner: rank for owner, rank in ranks.items() if rank}
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


def _strides(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[tuple[str, int]]:
    """The largest dimension whose stride is asked for, of each tensor."""
    most: dict[str, int] = {}
    for inner in nodes:
        call = inner if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) else None
        if call and call.func.attr == "stride" and len(call.args) == 1 and isinstance(call.func.value, ast.Name):  # type: ignore[attr-defined]
            at, owner = _integer(call.args[0]), call.func.value.id  # type: ignore[attr-defined]
            if at is not None and owner in names:
                most[owner] = max(at, most.get(owner, 0))
    yield from most.items()


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


def along(uses: Mapping[str, Use], places: Mapping[str, str]) -> dict[str, Use]:
    """What a callee says of its parameters, as the caller's: `places` is the callee's name -> the caller's."""
    return {mine: uses[theirs] for theirs, mine in places.items() if theirs in uses}
