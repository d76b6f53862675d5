"""What an exception means, as a typed outcome."""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Self

from abprof.records import messages as wire
from abprof.worker.api import Unsupported

_LONGEST = 400  # characters of a reason
_LONGEST_NAME = 120  # of a file's name in it
_OURS = f"{Path(__file__).parents[1]}/"
_BUNDLED = f"{_OURS}_bundled/"  # kernels and workloads that are measured like anybody's


def classify(error: BaseException, package: types.ModuleType | None) -> wire.Fault:
    """unsupported, missing, oom or crash, with one line for a person."""
    block = judging.of(error)
    try:
        status = _status(error, package)
    except Exception:  # noqa: BLE001 - what it answers is its own
        status = "crash"
    line = _line(error)
    at = _raised_in(error, block) if status == "crash" else ""
    return wire.Fault(status, f"{line} ({at})" if at else line, at)


def _status(error: BaseException, package: types.ModuleType | None) -> wire.Failed:
    if isinstance(error, Unsupported):
        return "unsupported"
    if _is_out_of_memory(error):
        return "oom"
    if _is_missing(error, package):
        return "missing"
    return "crash"


def _is_out_of_memory(error: BaseException) -> bool:
    # torch's CPU allocator has no class of its own for this.
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in _said(str, error))
    )


def _is_missing(error: BaseException, package: types.ModuleType | None) -> bool:
    """A name that the workload asks of the kernel package and this side does not have."""
    if package is None:
        return isinstance(error, MissingPackage)
    if isinstance(error, AttributeError):
        owner = getattr(error, "obj", None)
        return isinstance(owner, types.ModuleType) and _belongs(owner.__name__, package)
    if isinstance(error, ImportError):
        return isinstance(error, MissingPackage) or _belongs(error.name or "", package)
    return False


def _belongs(name: str, package: types.ModuleType) -> bool:
    return name == package.__name__ or name.startswith(package.__name__ + ".")


def begun_outside(error: BaseException) -> BaseException:
    """The error, its traceback and those of its causes without the frames of ours that lead up to the code under test. One
    that never left our own is as it was."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        place = cause.__traceback__
        while place is not None and _ours(place.tb_frame.f_code.co_filename):
            place = place.tb_next
        cause.__traceback__ = place or cause.__traceback__
        cause = cause.__cause__ or cause.__context__
    return error


def _ours(file: str) -> bool:
    return file.startswith("<frozen importlib") or (file.startswith(_OURS) and not file.startswith(_BUNDLED))


class _Judging:
    """One block at a time of the workload's own code. Code under test has the exceptions in hand: what is known of them stays
    here."""

    def __init__(self) -> None:
        self._block: tuple[types.ModuleType, str] | None = None
        self._raised: BaseException | None = None

    def __call__(self, module: types.ModuleType, function: str) -> Self:
        self._block, self._raised = (module, function), None
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._raised = error

    def of(self, error: BaseException) -> tuple[types.ModuleType, str] | None:
        """The module and its function whose block this very exception left last; it is kept no longer, nor is what it holds."""
        block = self._block if self._raised is error else None
        self._block = self._raised = None
        return block


judging = _Judging()
"""While the block of `judging(module, function)` runs, what is raised is of this function of the workload. None is given the
kernel package, but check() has what it returned."""


def _raised_in(error: BaseException, block: tuple[types.ModuleType, str] | None) -> str:
    """The workload's function that raised it, `check() of FILE, line N`; "" for anything else."""
    if block is None:
        return ""
    module, function = block
    file, name = (vars(module).get(key) for key in ("__file__", "__name__"))
    file, name = file if isinstance(file, str) else "", name if isinstance(name, str) else ""
    lines = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    place = _in_one_line(Path(file).name or name, _LONGEST_NAME)
    place += f", line {lines[-1]}" if lines and place else ""
    return f"{function}() of {place}" if place else f"{function}()"


class MissingPackage(ImportError):
    """The kernel package, or a variant of it, does not exist on this side."""


def _line(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return _in_one_line(f"called exit({_said(repr, error.code)})")
    if isinstance(error, Unsupported):
        return _in_one_line(_said(str, error)) or "unsupported"
    text = _in_one_line(_said(str, error))
    return _in_one_line(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _said(say: Callable[[object], str], what: object) -> str:
    """What an object of the code under test says of itself."""
    try:
        return say(what)
    except Exception:  # noqa: BLE001 - its own __str__ or __repr__
        return "it cannot be shown"


def _in_one_line(text: str, longest: int = _LONGEST) -> str:
    """Printable, and cut in the middle: a compiler's error tells its place first and its cause last."""
    text = "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))
    return text if len(text) <= longest else f"{text[: longest // 2]} ... {text[-longest // 2 :]}"
