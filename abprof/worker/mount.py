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

from abprof import wire
from abprof.worker.faults import MissingPackage

PRIVATE = "abprof_side"
WORKLOADS = "abprof_workloads"


class SideFinder(MetaPathFinder):
    """Finds one top-level name under one root, before any other finder: editable installs, .pth hooks, installed copies.

    What lies inside it is found along its own path, before hooks that map each submodule of an editable install. One
    that this side does not have is left to the other finders: should they bring it from elsewhere, the proof says so.
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
            return importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if "." in fullname or (fullname != self.top and fullname in sys.stdlib_module_names):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, [self.root], target)
        if spec is None or not (fullname == self.top or self.whole or _is_extension(spec)):
            return None
        if spec.origin is None and spec.submodule_search_locations is not None:
            # A namespace package would go on looking along sys.path: pin it to this root.
            spec.submodule_search_locations = [os.path.join(self.root, fullname)]  # noqa: PTH118
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
