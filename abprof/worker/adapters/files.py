"""A benchmark's file: where it lies, and its import beside the package under test or a stand-in for it."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any, NoReturn

from abprof.records.messages import WRAPPED


def find(name: str, workload: str) -> Path:
    """The benchmark's file, named from the repository's root, for a workload's file. Raises FileNotFoundError."""
    folder = Path(workload).resolve().parent
    places = [folder / WRAPPED, *((folder, *folder.parents) if not (folder / WRAPPED).is_dir() else ())]
    for place in places:
        if (place / name).exists():
            return place / name
    first = Path(name).parts[0]
    raise FileNotFoundError(f'{name} is not there: abprof.toml\'s benchmarks = ["{first}"] takes it along')


def load(file: Path) -> types.ModuleType:
    """Import the file as a script would be: its siblings are found first."""
    package = f"abprof_workloads.{WRAPPED}.{file.parent.name}"
    name = f"{package}.{file.stem}"
    _package(f"abprof_workloads.{WRAPPED}", [])
    _package(package, [str(file.parent)])
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _first_on_path(str(file.parent)):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


def _package(name: str, path: list[str]) -> None:
    """A package without a file, through which a benchmark finds its siblings relatively."""
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__path__ = path
        sys.modules[name] = module


@contextlib.contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    """What the benchmark imports later it still finds, but after everything else."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


# ---------------------------------------------------------------- without the package


def described(file: Path, package: str) -> types.ModuleType:
    """The file imported only to be asked for its cases, where no side's package is there. Nothing of it stays imported.
    Raises what the import raises."""
    with importing(file, package) as again:
        try:
            return load(file)
        except Exception as with_stand_in:  # noqa: BLE001 - the benchmark's own code
            again()
            try:
                return load(file)
            except Exception:  # noqa: BLE001
                raise with_stand_in from None


@contextlib.contextmanager
def importing(file: Path, package: str) -> Iterator[Callable[[], None]]:
    """While the block runs a stand-in takes the package's place, unless a side's is there; the block is given what takes it
    away again, so that what this interpreter has is imported. What was imported meanwhile is forgotten at the end."""
    before, finder = set(sys.modules), _StandIns(package)

    def without() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        _forget(before)

    if package not in sys.modules:
        sys.meta_path.insert(0, finder)
    try:
        yield without
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        folder = file if file.is_dir() else file.parent
        _forget(before, only=(package, f"abprof_workloads.{WRAPPED}"), under=str(folder))


def _forget(before: set[str], only: tuple[str, ...] = (), under: str = "") -> None:
    """Take what was imported since out again: all of it, or what has one of these names or lies under this folder."""
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if not only or name.startswith(only) or (under and file.startswith(under)):
            sys.modules.pop(name, None)


def stand_in(package: str) -> None:
    """Let a package that is not there be something that can be named, called and decorated with, from now on."""
    sys.meta_path.append(_StandIns(package))


class _StandIns(MetaPathFinder, Loader):
    """Finds a package, and whatever is asked of it, as something that can be named, called and decorated with."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for the package and all below it."""
        del path, target
        if fullname != self.package and not fullname.startswith(self.package + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A module that has every name."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(self.__name__.partition(".")[0])


class Anything:
    """A function, class, decorator or constant of a package that is not there. It has no value: what asks for one, to
    decide about cases, is told so."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __iter__(self) -> NoReturn:
        raise valueless(self)

    def __contains__(self, value: object) -> NoReturn:
        raise valueless(self)

    def __len__(self) -> NoReturn:
        raise valueless(self)

    def __bool__(self) -> NoReturn:
        raise valueless(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getitem__(self, key: object) -> Any:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)


def valueless(thing: Anything) -> TypeError:
    """What is raised where a case would be made of a stand-in."""
    what = f"cases depend on the package {vars(thing)['_package']}, which is not there when they are asked for"
    return TypeError(f"{what}: write them down, or ask it inside the function that is timed")
