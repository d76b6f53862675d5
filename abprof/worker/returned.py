"""What a call returned: the tensors in it, wherever they are held, and what else there was that cannot be compared."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from abprof.worker.api import Unsupported

_NAMED = 5  # kinds of what cannot be compared that are told
# Entered they would give a program's state, not an output.
_CLOSED = (types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)


@dataclass(frozen=True)
class Returned:
    """Dense tensors in the order in which they were found, and what is beside them: its kind, each once."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """What of it is not compared, for a reader; "" where all is."""
        more = len(self.beside) - _NAMED
        kinds = ", ".join(self.beside[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        if not self.tensors:
            return "nothing: a call returns no tensor" + (f", but {kinds}" if kinds else "")
        return (
            f"{len(self.tensors)} tensor{'s' if len(self.tensors) > 1 else ''}; not compared: {kinds}" if kinds else ""
        )


def returned(results: Any) -> Returned:
    """What can be compared: tensors, and arrays that are tensors without a copy (DLPack), in sequences, mappings, dataclasses
    and the public attributes of other objects (by name, in whatever order they were set), each object once.

    What an object keeps to itself (`_scratch`) is no output. If it is a tensor it is named with what else is passed over:
    numbers, words, handles, tensors that are not dense. None is not: a function returns it for what was not asked for.
    """
    found = Returned()
    _walk(results, "", found, set())
    return found


def _walk(value: Any, name: str, found: Returned, seen: set[int]) -> None:
    kind = name or type(value).__name__
    if value is None:
        return
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        found.tensors.append(value)
        return
    parts = _parts(value)
    if parts is not None:
        if id(value) in seen:
            return
        seen.add(id(value))
        before = len(found.tensors) + len(found.beside)
        for inside, part in parts:
            _walk(part, inside, found, seen)
        if len(found.tensors) + len(found.beside) > before or isinstance(value, Mapping | list | tuple):
            return
    elif (held := _by_dlpack(value)) is not None:
        found.tensors.append(held)
        return
    if kind not in found.beside:
        found.beside.append(kind)


def _parts(value: Any) -> Iterable[tuple[str, Any]] | None:
    """What an output is made of, each with the name by which it is told if it cannot be compared; None where it is one thing."""
    if isinstance(value, Mapping):
        return [("", part) for part in value.values()]
    if isinstance(value, list | tuple):
        return [("", part) for part in value]
    if isinstance(value, (torch.Tensor, *_CLOSED)) or hasattr(type(value), "__dlpack__"):
        return None
    own = type(value).__name__
    if dataclasses.is_dataclass(value):
        return [(f"{own}.{f.name}", getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    names = {*getattr(value, "__dict__", ()), *_slots(type(value))}
    if not names:
        return None
    held = [(name, getattr(value, name, None)) for name in sorted(map(str, names))]
    return [(f"{own}.{name}", _shut(part) if name.startswith("_") else part) for name, part in held]


@dataclass(frozen=True)
class _Kept:
    """A tensor that its object keeps to itself: scratch memory, perhaps, of which nobody wrote a byte."""


def _shut(part: Any) -> _Kept | None:
    return _Kept() if isinstance(part, torch.Tensor) else None


def _slots(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        slots = one.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _by_dlpack(value: Any) -> torch.Tensor | None:
    """An array of another library (NumPy's, CuPy's) as a tensor of the same memory; None where it is none."""
    if isinstance(value, torch.Tensor) or not hasattr(type(value), "__dlpack__"):
        return None
    try:
        tensor: torch.Tensor = torch.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError):
        return None
    return tensor


def refuse_incomparable(results: Any) -> None:
    """Raises Unsupported, naming the type, for a sparse tensor, or what can be walked only once, as an output of its own:
    what the call made is there and would go unseen."""
    parts: Iterable[Any] = ()
    if isinstance(results, Mapping):
        parts = results.values()
    elif isinstance(results, list | tuple):
        parts = results
    elif isinstance(results, torch.Tensor) and results.layout != torch.strided:
        _refuse(f"a tensor of layout {results.layout}")
    elif isinstance(results, Iterator):
        _refuse(f"a {type(results).__name__}")
    for part in parts:
        refuse_incomparable(part)


def _refuse(what: str) -> None:
    raise Unsupported(f"a call returns {what}, and without a reference only dense tensors are compared")
