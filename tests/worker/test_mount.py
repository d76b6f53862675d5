"""A side's package is imported from its own folder. tests/test_proofs.py has installed copies, import hooks and paths."""

import dataclasses
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from abprof.records import messages as wire
from abprof.worker.faults import MissingPackage
from abprof.worker.package import kernel_package
from abprof.worker.workload import load


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo a test's imports and hooks."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("ABPROF_BUILD_DIR", "")
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    importlib.invalidate_caches()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def mount(root: Path, module: str) -> wire.Mount:
    return wire.Mount(module.rpartition(".")[2], str(root), module, str(root / "out"), [str(root)])


def test_a_private_mount_bears_a_private_name(tmp_path: Path) -> None:
    root = write(tmp_path, {"tiny/__init__.py": "from .part import WHO", "tiny/part.py": "WHO = 'side'"})
    package: Any = kernel_package(mount(root, "abprof_side.tiny"))
    assert (package.WHO, package.__name__) == ("side", "abprof_side.tiny")
    assert os.environ["ABPROF_BUILD_DIR"] == str(root / "out")
    assert "tiny" not in sys.modules
    assert importlib.util.find_spec("tiny") is None


def test_a_release_brings_all_its_modules_and_says_its_own_version(tmp_path: Path) -> None:
    def files(who: str, version: str) -> dict[str, str]:
        info = f"mypkg-{version}.dist-info/METADATA"
        asks = "from importlib.metadata import version; import mypkg_extra, types; VERSION = version('mypkg')"
        about = f"Metadata-Version: 2.1\nName: mypkg\nVersion: {version}\n"
        return {"mypkg/__init__.py": asks, "mypkg_extra.py": f"WHO = {who!r}", info: about, "types.py": "1 / 0"}

    side = write(tmp_path / "side", files("side", "2.0"))
    sys.path.insert(0, str(write(tmp_path / "installed", files("installed", "1.0"))))
    package: Any = kernel_package(dataclasses.replace(mount(side, "mypkg"), whole=True))
    assert (package.VERSION, package.mypkg_extra.WHO) == ("2.0", "side")
    (found,) = (d for d in metadata.distributions(path=[str(tmp_path / "installed")]) if d.metadata["Name"] == "mypkg")
    assert found.version == "1.0", "who asks about a folder is answered about that folder"


def test_extension_modules_at_the_root_are_the_sides_and_nothing_else_there(tmp_path: Path) -> None:
    """As `setup.py build_ext --inplace` leaves them beside the package; a repository's root also holds setup.py, tests/."""
    side = write(tmp_path / "side", {"mypkg/__init__.py": "", "setup.py": "1 / 0", "mypkg_c.abi3.so": "not a library"})
    sys.path.insert(0, str(write(tmp_path / "other", {"mypkg_c.py": "", "setup.py": "WHO = 'other'"})))
    kernel_package(mount(side, "mypkg"))
    with pytest.raises(ImportError, match=rf"{side}/mypkg_c.abi3.so"):
        importlib.import_module("mypkg_c")
    setup: Any = importlib.import_module("setup")
    assert setup.WHO == "other"


@pytest.mark.parametrize("module", ["abprof_side.absent", "absent", "absent.deep", "mypkg.absent"])
def test_a_package_that_this_side_does_not_have_is_missing(tmp_path: Path, module: str) -> None:
    root = write(tmp_path, {"mypkg/__init__.py": ""})
    with pytest.raises(MissingPackage, match=r"(absent|deep) does not exist on this side"):
        kernel_package(mount(root, module))


def test_workloads_may_import_their_siblings(tmp_path: Path) -> None:
    root = write(
        tmp_path, {"one.py": "from ._shared import N\nfrom . import two", "two.py": "M = 2", "_shared.py": "N = 1"}
    )
    module: Any = load("one", str(root / "one.py"))
    assert (module.N, module.two.M, module.__name__) == (1, 2, "abprof_workloads.one")
