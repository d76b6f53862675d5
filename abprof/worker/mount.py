"""Import one side's kernel package, independent of what else is installed or lies on the path."""

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
from abprof.worker.workload import namespace

PRIVATE = "abprof_side."


class SideFinder(MetaPathFinder):
    """Finds one top-level name under one root, before any other finder: editable installs, .pth hooks, installed copies.

    Submodules are found along the package's own path, before hooks that map each submodule of an editable install. One
    that this side lacks is left to the other finders: the proof reports it. Of a namespace package the side's portion
    comes first, then those of other distributions. Extension modules at the root are the side's too, as is everything
    there if the root is an installed release (`whole`); and its distributions' metadata.
    """

    def __init__(self, top: str, root: str, *, whole: bool = False) -> None:
        self.top, self.root, self.whole = top, root, whole

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec under the root, or None for every other name."""
        find = importlib.machinery.PathFinder.find_spec
        if fullname.startswith(self.top + "."):
            mine = [place for place in path or () if place.startswith(self.root)]
            others = [place for place in path or () if place not in mine]
            return self._pinned(find(fullname, mine, target), others) or find(fullname, others, target)
        if "." in fullname or (fullname != self.top and fullname in sys.stdlib_module_names):
            return None
        spec = find(fullname, [self.root], target)
        if spec is None:
            return None
        extension = isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)
        return self._pinned(spec, sys.path) if fullname == self.top or self.whole or extension else None

    def _pinned(
        self, spec: importlib.machinery.ModuleSpec | None, elsewhere: Sequence[str]
    ) -> importlib.machinery.ModuleSpec | None:
        """Fix a namespace package's path: this side's portion, then those of other distributions. Left to itself it
        would search all of the path again whenever that changes."""
        if spec is None or spec.origin is not None or spec.submodule_search_locations is None:
            return spec
        mine = list(spec.submodule_search_locations)
        others = importlib.machinery.PathFinder.find_spec(spec.name, elsewhere)
        portions = (others.submodule_search_locations or ()) if others and others.origin is None else ()
        spec.submodule_search_locations = [*mine, *(place for place in portions if place not in mine)]
        return spec

    def find_distributions(self, context: metadata.DistributionFinder.Context) -> Iterable[metadata.Distribution]:
        """Those under the root, unless certain folders are searched."""
        if "path" in vars(context):
            return ()
        here = metadata.DistributionFinder.Context(name=context.name, path=[self.root])
        return metadata.MetadataPathFinder.find_distributions(here)


def kernel_package(mount: wire.Mount) -> types.ModuleType:
    """Import the package of this side. Raises MissingPackage if the side lacks it, or what the import raises."""
    if mount.module.startswith(PRIVATE):
        namespace(PRIVATE[:-1], mount.root)
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
    """(namespace, name) of the package: the namespace packages that it shares with other distributions ("" for none), as
    far as they were imported, and its name below them."""
    if mount.module.startswith(PRIVATE):
        return "", mount.module
    shared: list[str] = []
    rest = mount.module.split(".")
    while len(rest) > 1 and getattr(sys.modules.get(".".join([*shared, rest[0]]), sys), "__file__", "") is None:
        shared.append(rest.pop(0))
    return ".".join(shared), rest[0]
