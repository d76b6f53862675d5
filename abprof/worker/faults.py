"""Turn an exception of a workload or kernel into a status, a line for the report, and the function that raised it."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from abprof.records import messages as wire
from abprof.worker.api import Unsupported

_LONGEST = 400  # characters of a reason
_LONGEST_NAME = 120  # characters of a file name in a reason

# What Triton and torch raise where there is no GPU -> what it means.
_NO_GPU = {
    r"\b0 active drivers": "Triton finds no GPU",
    r"CUDA enabled|CUDA support|CUDA GPUs|NVIDIA driver|dummy base class": "torch finds no GPU",
    r"Expected a cuda device, but got": "torch finds no GPU",
    r"^InterpreterError.*?\b(\w+ not supported|no attribute 'create_\w+'|Unsupported data type|`_semantic` argument)": ""
    "Triton's interpreter cannot run this ({})",
}


class MissingPackage(ImportError):
    """Raised if a side has no such kernel package or variant."""


# The last exception from a function of the workload, with module and function name. Not stored in the exception, whose
# attributes the code under test can set.
_left: list[tuple[BaseException, types.ModuleType, str]] = []


@contextlib.contextmanager
def running(module: types.ModuleType, function: str) -> Iterator[None]:
    """Attribute exceptions in the block to the workload's `function`: `with running(module, "check"):`."""
    _left.clear()
    try:
        yield
    except BaseException as error:
        _left.append((error, module, function))
        raise


def classify(error: BaseException, package: types.ModuleType | None) -> wire.Fault:
    """Return an exception's status, reason and origin. `package`: the kernel package; None if not imported."""
    block = next(((module, function) for raised, module, function in _left if raised is error), None)
    _left.clear()
    status: wire.Failed = "crash"
    with contextlib.suppress(Exception):  # an exception of the code under test may have any attributes
        status = _status(error, package)
    if isinstance(error, SystemExit):
        line = f"called exit({_text(repr, error.code)})"
    elif status == "crash" and (reason := _way_out(f"{type(error).__name__}: {_text(str, error)}")):
        return wire.Fault("unsupported", reason)
    else:
        shown = error
        while type(shown).__name__ == "InterpreterError" and shown.__cause__:  # Triton's, around each nested call
            shown = shown.__cause__
        name = "unsupported" if isinstance(error, Unsupported) else type(shown).__name__
        text = _one_line(_text(str, shown))
        line = text if text and isinstance(error, Unsupported) else f"{name}: {text or _raised_at(error)}"
    if isinstance(error, ModuleNotFoundError) and status == "crash":
        line += f" ({sys.executable} lacks it)"
    at = ""
    if status == "crash" and block:  # `check() of FILE, line N`
        module, function = block
        file = str(vars(module).get("__file__", ""))
        lines = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
        place = _one_line(Path(file).name, _LONGEST_NAME) + (f", line {lines[-1]}" if lines else "")
        at = f"{function}() of {place}" if file else f"{function}()"
    return wire.Fault(status, _one_line(line) + (f" ({at})" if at else ""), at)


def _raised_at(error: BaseException) -> str:
    """Return the line that raised an exception without a text: `FILE, line N: assert x == y`."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return "".join(_one_line(f"{Path(one.filename).name}, line {one.lineno}: {one.line}") for one in frames)


def _way_out(text: str) -> str:
    """Return what the exception `text` means if it comes from a missing GPU, with the way out; else ""."""
    out = "run it on a GPU"
    if "TRITON_INTERPRET" not in os.environ:
        out = "set TRITON_INTERPRET=1 to run Triton's kernels without one, in its interpreter"
    found = ((re.search(pattern, text, re.DOTALL), reason) for pattern, reason in _NO_GPU.items())
    means = next((reason.format(it[it.lastindex or 0]) for it, reason in found if it), "")
    return f"{means}: {out}" if means and not torch.cuda.device_count() else ""


def _status(error: BaseException, package: types.ModuleType | None) -> wire.Failed:
    if isinstance(error, Unsupported):
        return "unsupported"
    no_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if no_memory or (isinstance(error, RuntimeError) and "can't allocate memory" in _text(str, error)):
        return "oom"  # torch's CPU allocator raises a RuntimeError
    owner = ""  # name of the module that lacks an attribute or cannot be imported
    if isinstance(error, AttributeError) and isinstance(where := getattr(error, "obj", None), types.ModuleType):
        owner = where.__name__
    elif isinstance(error, ImportError):
        owner = error.name or ""
    mine = package is not None and f"{owner}.".startswith(f"{package.__name__}.")
    return "missing" if mine or isinstance(error, MissingPackage) else "crash"


def _text(show: Callable[[object], str], what: object) -> str:
    try:
        return show(what)
    except Exception:  # noqa: BLE001 - its own __str__ or __repr__
        return "(cannot be shown)"


def _one_line(text: str, longest: int = _LONGEST) -> str:
    """Return the text as one printable line, without its middle if it is longer than `longest` characters."""
    text = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 2 :]}"
