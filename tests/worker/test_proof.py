"""The list of loaded files, and the reason for a forbidden file: what tests/test_proofs.py does not show with real workers."""

import _ctypes
import ctypes
import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from abprof.records import messages as wire
from abprof.worker.package import INTERPRETER, Prover


class View:
    """What a worker sees of files below `root`, in this process, which already has other tests' modules and libraries."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch
        self.begin()
        self._before = self.begun.loaded

    def begin(self, *paths: str) -> None:
        """Start the worker here, with these folders on its path: their files are part of the environment."""
        for path in paths:
            self.patch.syspath_prepend(str(self.root / path))
        self.begun = Prover(wire.Mount("", "", "", "", []))

    def load(self, name: str, file: str, text: str = "") -> None:
        """Have a module of this name and file in sys.modules."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text)
        module = ModuleType(name)
        module.__file__ = str(path)
        self.patch.setitem(sys.modules, name, module)

    def shared_object(self, file: str) -> Path:
        """Map a real shared object at this path."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_ctypes.__file__, path)
        ctypes.CDLL(str(path))
        return path

    def distribution(self, name: str, url: str, *files: str) -> None:
        """A dist-info as installers leave it (PEP 610), in `site`."""
        info = self.root / "site" / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": "editable" in name}}))

    def proved(self, module: str = "abprof_side.tiny", **changes: Any) -> tuple[str, dict[str, str]]:
        """The reason, and name -> hash of what the test brought in, for a side in side/ with its build in build/; forbidden
        are the user's checkout and another side's tree."""
        own, forbidden = (
            [str(self.root / name) for name in names.split()] for names in ("side build", "checkout other")
        )
        mount = dataclasses.replace(wire.Mount("tiny", own[0], module, "", own, forbidden), **changes)
        prover = Prover(mount)
        for name in ("installed", "importable", "linkable", "loaded"):
            setattr(prover, name, getattr(self.begun, name))
        reason, found = prover.prove({})
        return reason, {item.name: item.sha256 for item in found if item.path not in self._before}


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> View:
    return View(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["mypkg", "mypkg.deep"])
def test_a_module_of_the_packages_own_name_from_anywhere_else(view: View, name: str) -> None:
    """An installed copy, from a folder that is otherwise allowed, is forbidden too."""
    view.begin("installed")
    view.load("another", "installed/another.py")
    assert view.proved("mypkg")[0] == ""
    view.load(name, "installed/mypkg.py")
    reason, found = view.proved("mypkg")
    assert reason == f"module {name} was loaded from {view.root / 'installed' / 'mypkg.py'}, outside this side's tree"
    assert name in found, "and it is on record"


def test_a_package_that_torch_brought_in_may_load_more_of_itself(view: View) -> None:
    """A Triton that is installed editable by a finder: its folder is on no path."""
    view.load("a_triton", "built/a_triton/__init__.py")
    sys.modules["a_triton"].__path__ = [str(view.root / "built" / "a_triton")]
    view.begin()
    view.load("a_triton.tools", "built/a_triton/tools.py")
    reason, found = view.proved()
    assert (reason, set(found)) == ("", {"a_triton.tools"})
    view.load("beside", "built/beside.py")
    assert "beside.py, outside" in view.proved()[0]


def test_a_link_in_a_folder_of_the_path_may_lead_to_a_store_but_not_to_the_checkout(view: View) -> None:
    """Package managers and editable installs link to where they keep files."""
    view.begin("checkout", "site")
    (view.root / "site").mkdir()
    for kept in ("store", "checkout"):
        (view.root / kept).mkdir()
        (view.root / kept / f"in_{kept}.py").write_text("")
        (view.root / "site" / f"in_{kept}.py").symlink_to(view.root / kept / f"in_{kept}.py")
        view.load(f"in_{kept}", f"site/in_{kept}.py")
        reason, found = view.proved()
        assert f"in_{kept}" in found
        assert bool(reason) is (kept == "checkout")


def test_libraries_may_come_from_where_the_environment_says_at_the_start(view: View) -> None:
    """LD_LIBRARY_PATH and CUDA_HOME; modules may not, nor libraries from where a kernel package sets them to."""
    view.patch.setenv("LD_LIBRARY_PATH", f"{view.root / 'given'}::relative")
    view.patch.setenv("CUDA_HOME", str(view.root / "toolkit"))
    view.begin()
    view.shared_object("given/libone.so")
    view.shared_object("toolkit/lib64/libtwo.so.12")
    reason, found = view.proved()
    assert (reason, set(found)) == ("", {"libone.so", "libtwo.so.12"})
    view.patch.setenv("LD_LIBRARY_PATH", str(view.root / "set"))
    library = view.shared_object("set/libthree.so")
    assert view.proved()[0] == f"shared object {library} was loaded from outside this side's tree"
    view.load("a_helper", "given/a_helper.py")
    assert "module a_helper was loaded from" in view.proved()[0]


@pytest.mark.parametrize(
    ("path", "library", "module"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.1", "environment", "outside"),
        ("/usr/local/nvidia/lib64/libcuda.so.580.1", "environment", "outside"),
        ("/lib64/libc.so.6", "environment", "outside"), ("/opt/tools/thing.so", "environment", "outside"),
        ("/nix/store/abc-gcc/lib/libstdc++.so.6", "environment", "outside"),
        ("/usr/src/checkout/kernels/leak.so", "outside", "outside"),
        ("/usr/src/checkout/builds/a/caches/triton/AB/launcher.so", "own", "own"),
        ("/home/someone/leak.so", "outside", "outside"), ("/tmp/leak.so", "outside", "outside"),
        ("/dev/shm/leak.so", "outside", "outside"), ("/lib64-of-mine/leak.so", "outside", "outside"),
        (f"{sys.base_prefix}/share/thing.so", "environment", "outside"), (os.__file__, "environment", "environment"),
    ],
)  # fmt: skip
def test_the_systems_folders_are_for_libraries_alone(path: str, library: str, module: str) -> None:
    checkout = "/usr/src/checkout"
    side = wire.Mount("tiny", "", "tiny", "", [f"{checkout}/builds/a"], [checkout])
    places = Prover(side)
    places.installed = places.importable = places.linkable = ()
    places.loaded = frozenset()
    assert places.standing(path, path, library=True) == library
    debian = path.startswith(INTERPRETER)  # its own Python's libraries are the system's
    assert places.standing(path, path) == ("environment" if debian else module)


def test_a_library_that_was_replaced_or_removed_since_it_was_loaded_is_no_proof(view: View) -> None:
    view.shared_object("build/gone.so").unlink()
    assert view.proved() == ("", {"gone.so": ""}), "an empty hash equals no other"
    found = view.begun.prove({"kernel[abcd]": "0" * 64})[1]
    assert [(item.name, item.kind) for item in found if item.name in ("gone.so", "kernel[abcd]")] == [
        ("gone.so", "object"), ("kernel[abcd]", "kernel"),
    ]  # fmt: skip


def test_the_interpreters_own_packages_may_lie_in_the_checkout(view: View) -> None:
    """Packages in a .venv of the repository under test are environment, not code under test."""
    assert view.proved(forbidden=[str(Path(sys.prefix) / "lib")]) == ("", {})


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://{tmp}/checkout", "{tmp}/checkout"),
        ("file://{tmp}/checkout/a%20folder", "{tmp}/checkout/a folder"),
        ("file://{tmp}/worktree/dist/mine-1.0-py3-none-any.whl", "{tmp}/worktree/dist/mine-1.0-py3-none-any.whl"),
        ("file://{tmp}/checkout-2", ""),  # a folder whose name only begins alike
        ("file://{tmp}/side", ""),  # this side's own
        ("https://example.org/mine-1.0.whl", ""),
        ("no url", ""),
    ],
)
def test_what_was_installed_from_the_repository_is_another_trees(view: View, url: str, says: str) -> None:
    """A module of any name, and a library that it loads, where installed packages lie."""
    view.begin("site")
    view.distribution("mine", url.format(tmp=view.root), "_mine_c.py", "mine.libs/mine.so")
    view.load("_mine_c", "site/_mine_c.py", "N = 1\n")
    library = view.shared_object("site/mine.libs/mine.so")
    sources = [str(view.root / name) for name in ("checkout", "worktree", "side")]
    reason, found = view.proved(sources=sources)
    assert set(found) == {"_mine_c", "mine.so"}, "and they are on record"
    if not says:
        assert reason == ""
        return
    what = f"mine, which was installed from {says.format(tmp=view.root)}, outside this side's tree"
    assert reason == f"module _mine_c is of {what}"
    view.patch.delitem(sys.modules, "_mine_c")
    assert view.proved(sources=sources)[0] == f"shared object {library} is of {what}"


def test_an_installed_copy_of_the_package_is_no_sides_own_whatever_its_modules_are_called(view: View) -> None:
    """An installed release of the package under test: its top-level extension module would serve every side."""
    view.begin("site")
    view.distribution("my_release", "", "mypkg/__init__.py", "mypkg_ext.py")
    view.distribution("another", "", "other/__init__.py", "mypkg_tools/__init__.py")
    view.load("mypkg", "side/mypkg/__init__.py")
    view.load("mypkg_tools", "site/mypkg_tools/__init__.py")
    assert view.proved("mypkg")[0] == "", "another distribution's"
    view.load("mypkg_ext", "site/mypkg_ext.py")
    says = "module mypkg_ext is of my_release, which is an installed copy of the package, outside this side's tree"
    assert view.proved("mypkg")[0] == says
