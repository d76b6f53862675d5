"""What all wrapped benchmarks have in common: the file, its import with or without the package, the intercepted call."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any, NoReturn

import torch

from abprof.records.messages import WRAPPED
from abprof.worker.api import Op

_NAMESPACE = f"abprof_workloads.{WRAPPED}"


class Wrapped:
    """A workload (docs/WRITING.md) whose cases and calls are those of a benchmark's file. It has no reference."""

    API = 1

    def __init__(self, where: str, kernel: str, workload: str) -> None:
        """`where`: FILE or FILE:NAME, the file from the repository's root; `kernel`: the package under test, by its name in
        abprof.toml, which is its import name too; `workload`: the workload's own file."""
        self.file, _, self.name = where.partition(":")
        self.KERNEL = kernel
        self.__doc__ = f"{where}, wrapped"
        self._workload = workload
        self._loaded: types.ModuleType | None = None

    @property
    def path(self) -> Path:
        """The benchmark's file. Raises FileNotFoundError."""
        folder = Path(self._workload).resolve().parent
        copied = folder / WRAPPED
        for place in [copied] if copied.is_dir() else [folder, *folder.parents]:
            if (place / self.file).exists():
                return place / self.file
        first = Path(self.file).parts[0]
        raise FileNotFoundError(f'no file {self.file}: add benchmarks = ["{first}"] to abprof.toml')

    @property
    def package(self) -> str:
        """The top-level name of the package under test."""
        return self.KERNEL.partition(".")[0]

    def module(self) -> types.ModuleType:
        """The benchmark with the package of this worker's side, imported once."""
        if self._loaded is None:
            self._loaded = _load(self.path)
        return self._loaded

    def described(self) -> types.ModuleType:
        """The benchmark for its declarations alone: imported with a stand-in if the package is missing, and forgotten."""
        if self._loaded:
            return self._loaded
        with importing(self.path, self.package) as without_stand_in:
            try:
                return _load(self.path)
            except Exception as error:  # noqa: BLE001 - the benchmark's own code
                without_stand_in()
                try:
                    return _load(self.path)
                except Exception:  # noqa: BLE001
                    raise error from None

    def inputs(self, case: Mapping[str, Any], device: object, number: int) -> dict[str, Any]:  # noqa: ARG002
        """Benchmarks make their inputs when they are called: they get the seed, and some the device."""
        return {"seed": number, "device": str(device)}

    def prepare(self, kernel: object, variant: str | None, case: Mapping[str, Any], inputs: Mapping[str, Any]) -> Op:  # noqa: ARG002
        """The operation that the benchmark would have timed in this case."""
        seed(inputs["seed"])
        return self.operation(case, inputs["device"])

    def operation(self, case: Mapping[str, Any], device: str) -> Op:
        """Each kind of benchmark has its own."""
        raise NotImplementedError


def caller() -> str:
    """The file that calls the function which calls this one: the workload's."""
    return str(sys._getframe(2).f_globals["__file__"])


def seed(number: int) -> None:
    """Seed all generators that a benchmark draws its inputs from: the same bytes on every side."""
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)


def plain(value: object) -> Any:
    """A value as an axis may have it: a torch.dtype and other objects by name. Raises TypeError for a stand-in."""
    if isinstance(value, _StandIn):
        value.no_value()
    if isinstance(value, str | int | float | bool):
        return value
    return getattr(value, "__name__", None) or str(value).removeprefix("torch.")


# ---------------------------------------------------------------- the intercepted call


class Caught(BaseException):
    """Raised in the place of timing, with the operation: no `except Exception` of a benchmark stops it."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        self.op = op


def caught(run: Callable[[], Any], nothing: str) -> Op:
    """The operation that `run` passes to its timer. Raises ValueError with `nothing` if it passes none."""
    try:
        run()
    except Caught as found:
        return found.op
    raise ValueError(nothing)


def as_now(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call without gradients if they are off now: a benchmark's `with torch.no_grad()` ends before its call is timed."""
    if torch.is_grad_enabled():
        return call
    mode = torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad

    def without_gradients() -> Any:
        with mode():
            return call()

    return without_gradients


# ---------------------------------------------------------------- import


def _load(file: Path) -> types.ModuleType:
    """Import the file as a script would be: its siblings are found first, and after everything else later on."""
    package, folder = f"{_NAMESPACE}.{file.parent.name}", str(file.parent)
    name = f"{package}.{file.stem}"
    for parent, path in ((_NAMESPACE, []), (package, [folder])):  # so that it finds its siblings relatively
        if parent not in sys.modules:
            sys.modules[parent] = types.ModuleType(parent)
            sys.modules[parent].__path__ = path
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
    return module


@contextlib.contextmanager
def importing(file: Path, package: str) -> Iterator[Callable[[], None]]:
    """While the block runs a stand-in replaces the package, unless it was imported already. Yields a function that removes
    the stand-in, so that an installed package is imported. What was imported meanwhile is forgotten at the end."""
    before, finder = set(sys.modules), StandIns(package)

    def without() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            sys.modules.pop(name, None)

    if package not in sys.modules:
        sys.meta_path.insert(0, finder)
    try:
        yield without
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        folder = str(file if file.is_dir() else file.parent)
        for name in set(sys.modules) - before:
            source = getattr(sys.modules[name], "__file__", None) or ""
            if name.startswith((package, _NAMESPACE)) or source.startswith(folder):
                sys.modules.pop(name, None)


class StandIns(MetaPathFinder, Loader):
    """Finds a package and all below it as stand-ins."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.package and not fullname.startswith(self.package + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _StandIn(types.ModuleType):
    """A missing package, and every function, class, decorator or constant of it. It has no value: deciding about cases by
    it raises TypeError."""

    def no_value(self, *_: object) -> NoReturn:
        package = self.__name__.partition(".")[0]
        what = f"cases depend on the package {package}, which cannot be imported while cases are listed"
        raise TypeError(f"{what}: write the values down, or read them inside the function that is timed")

    __iter__ = __contains__ = __len__ = __bool__ = no_value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getitem__(self, key: object) -> Any:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)
