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

    Submodules are found along the package's own path. One that this side lacks is left to the other finders: the proof
    reports it. Extension modules at the root are the side's too, as is everything there if the root is an installed
    release (`whole`); and its distributions' metadata.
    """

    def __init__(self, top: str, root: str, *, whole: bool = False) -> None:
        self.top, self.root, self.whole = top, root, whole

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec under the root, or None for every other name."""
        find = importlib.machinery.PathFinder.find_spec
        if fullname.startswith(self.top + "."):
            return find(fullname, path, target)
        if "." in fullname or (fullname != self.top and fullname in sys.stdlib_module_names):
            return None
        spec = find(fullname, [self.root], target)
        if spec is None:
            return None
        if (
            spec.submodule_search_locations is not None
        ):  # a namespace's would be searched again whenever the path changes
            spec.submodule_search_locations = list(spec.submodule_search_locations)
        extension = isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)
        return spec if fullname == self.top or self.whole or extension else None

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
