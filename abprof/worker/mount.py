"""Import one side's kernel package and the judge's workloads, whatever else is installed or lies on the path."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder

from abprof.records import messages as wire
from abprof.worker.faults import MissingPackage

PRIVATE = "abprof_side"
WORKLOADS = "abprof_workloads"


class SideFinder(MetaPathFinder):
    """Finds one top-level name under one root, before any other finder: editable installs, .pth hooks, installed copies.

    What lies inside it is found along its own path, before hooks that map each submodule of an editable install. One
    that this side does not have is left to the other finders: should they bring it from elsewhere, the proof says so.
    Of a namespace package other distributions have other parts, which are found after the side's.
    Extension modules that lie at the root are the side's too, as is all that does where the root is an installed
    release (`whole`); and so is what the root says of distributions (`importlib.metadata.version`).
    """

    def __init__(self, top: str, root: str, *, whole: bool = False) -> None:
        self.top = top
        self.root = root
        self.whole = whole

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec under the root, or None for every other name."""
        if fullname.startswith(self.top + "."):
            mine = [place for place in path or () if place.startswith(self.root)]
            others = [place for place in path or () if place not in mine]
            found = self._pinned(importlib.machinery.PathFinder.find_spec(fullname, mine, target), others)
            return found or importlib.machinery.PathFinder.find_spec(fullname, others, target)
        if "." in fullname or (fullname != self.top and fullname in sys.stdlib_module_names):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, [self.root], target)
        if spec is None or not (fullname == self.top or self.whole or _is_extension(spec)):
            return None
        return self._pinned(spec, sys.path)

    def _pinned(
        self, spec: importlib.machinery.ModuleSpec | None, elsewhere: Sequence[str]
    ) -> importlib.machinery.ModuleSpec | None:
        """A namespace package keeps this side's portion first, then those that other distributions have of it now. Left
        to itself it would look along all of the path again whenever that changes."""
        if spec is None or spec.origin is not None or spec.submodule_search_locations is None:
            return spec
        mine = list(spec.submodule_search_locations)
        others = importlib.machinery.PathFinder.find_spec(spec.name, elsewhere)
        portions = (others.submodule_search_locations or ()) if others and others.origin is None else ()
        spec.submodule_search_locations = [*mine, *(place for place in portions if place not in mine)]
        return spec

    def find_distributions(self, context: metadata.DistributionFinder.Context) -> Iterable[metadata.Distribution]:
        """Those under the root; none where the question is about certain folders."""
        if "path" in vars(context):
            return ()
        here = metadata.DistributionFinder.Context(name=context.name, path=[self.root])
        return metadata.MetadataPathFinder.find_distributions(here)


def _is_extension(spec: importlib.machinery.ModuleSpec) -> bool:
    return isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)


def kernel_package(mount: wire.Mount) -> types.ModuleType:
    """Import the package of this side. Raises MissingPackage when the side does not have it, or what the import raises."""
    if mount.module.startswith(PRIVATE + "."):
        _namespace(PRIVATE, mount.root)
    else:
        sys.meta_path.insert(0, SideFinder(mount.module.split(".")[0], mount.root, whole=mount.whole))
    os.environ["ABPROF_BUILD_DIR"] = mount.build_dir
    try:
        if importlib.util.find_spec(mount.module) is None:
            raise ModuleNotFoundError(mount.module, name=mount.module)
    except ModuleNotFoundError as error:
        if error.name and (mount.module == error.name or mount.module.startswith(error.name + ".")):
            raise MissingPackage(f"{mount.name} does not exist on this side", name=mount.module) from error
        raise
    return importlib.import_module(mount.module)


def owned(mount: wire.Mount) -> tuple[str, str]:
    """(namespace, name): what the package is called below the namespace packages that it shares with others ("" for
    none), as far as it was imported. A private mount is shared with nobody."""
    if mount.module.startswith(PRIVATE + "."):
        return "", mount.module
    namespace: list[str] = []
    rest = mount.module.split(".")
    while len(rest) > 1 and getattr(sys.modules.get(".".join([*namespace, rest[0]]), sys), "__file__", "") is None:
        namespace.append(rest.pop(0))
    return ".".join(namespace), rest[0]


def workload(name: str, file: str) -> types.ModuleType:
    """Import a workload file as abprof_workloads.NAME, so that it may import its siblings relatively."""
    _namespace(WORKLOADS, os.path.dirname(file))  # noqa: PTH120
    return importlib.import_module(f"{WORKLOADS}.{name}")


def _namespace(name: str, root: str) -> None:
    module = sys.modules.get(name)
    if module is None:
        module = types.ModuleType(name)
        module.__path__ = [root]
        sys.modules[name] = module
    elif root not in module.__path__:
        module.__path__ = [*module.__path__, root]
