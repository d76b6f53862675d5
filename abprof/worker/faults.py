"""What an exception means, as a typed outcome."""

from __future__ import annotations

import contextlib
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

from abprof import wire
from abprof.kit import Unsupported

_LONGEST = 400  # characters of a reason
_OURS = f"{Path(__file__).parents[1]}/"
_BUNDLED = f"{_OURS}_bundled/"  # kernels and workloads that are measured like anybody's


def classify(error: BaseException, package: types.ModuleType | None) -> wire.Fault:
    """unsupported, missing, oom or crash, with one line for a person."""
    status, line = _status(error, package), _line(error)
    at = _raised_in(error) if status == "crash" else ""
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
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
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


@contextlib.contextmanager
def judging(module: types.ModuleType, function: str) -> Iterator[None]:
    """While the block runs, what is raised is of this function of the workload. None is given the kernel package, but check()
    has what it returned."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(AttributeError, TypeError):  # a class of its own may refuse it
            error.abprof_judging = module, function  # type: ignore[attr-defined]
        raise


def _raised_in(error: BaseException) -> str:
    """The workload's function that raised it, `check() of FILE, line N`; "" for anything else."""
    module, function = getattr(error, "abprof_judging", (None, ""))
    if not function:
        return ""
    file = str(getattr(module, "__file__", None) or "")
    lines = [number for frame, number in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    place = f"{Path(file).name}, line {lines[-1]}" if lines else Path(file).name or str(getattr(module, "__name__", ""))
    return f"{function}() of {place}".removesuffix(" of ")


class MissingPackage(ImportError):
    """The kernel package, or a variant of it, does not exist on this side."""


def _line(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called exit({error.code!r})"
    if isinstance(error, Unsupported):
        return str(error) or "unsupported"
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:  # a compiler's error tells its place first and its cause last
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
