"""The list of loaded files, and the reason for a forbidden file: what tests/test_proofs.py does not show with real workers."""

from __future__ import annotations

import _ctypes
import ctypes
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from abprof.records import messages as wire
from abprof.worker.package import Prover as Judge


class Prover:
    """Make proofs in this process, which already has other tests' modules and libraries."""

    def __init__(self) -> None:
        self.given = Judge(wire.Mount("", "", "", "", []))
        self._before = self.given.loaded

    def __call__(self, mount: wire.Mount, kernels: dict[str, str]) -> tuple[str, list[wire.Artefact]]:
        """The reason, and the artefacts that the test brought in."""
        judge = Judge(mount)
        for name in ("installed", "importable", "linkable", "loaded"):
            setattr(judge, name, getattr(self.given, name))
        reason, found = judge.prove(kernels)
        return reason, [item for item in found if item.path not in self._before]

    def begin(self) -> None:
        """Start the worker's view here: files on its paths are part of the environment."""
        self.given = Judge(wire.Mount("", "", "", "", []))


@pytest.fixture
def proved() -> Prover:
    """Request it first: it begins here."""
    return Prover()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """Modules that look imported: name -> file."""
    added: dict[str, Path] = {}
    yield added
    for name in added:
        sys.modules.pop(name, None)


def load(modules: dict[str, Path], name: str, file: Path, text: str = "") -> None:
    """Have a module of this name and file in sys.modules."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.write_text(text)
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    modules[name] = file


def mount(tmp_path: Path, module: str = "abprof_side.tiny") -> wire.Mount:
    """A side in tmp/side, its build in tmp/build; forbidden are the user's checkout and another side's tree."""
    forbidden = [str(tmp_path / name) for name in ("checkout", "other")]
    return wire.Mount(
        "tiny", str(tmp_path / "side"), module, "", [str(tmp_path / "side"), str(tmp_path / "build")], forbidden
    )


def shared_object(path: Path) -> Path:
    """Map a real shared object at this path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_ctypes.__file__, path)
    ctypes.CDLL(str(path))
    return path


def distribution(site: Path, name: str, url: str, *files: str) -> None:
    """A dist-info as installers leave it (PEP 610)."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": "editable" in name}}))


def named(artefacts: list[wire.Artefact]) -> dict[str, str]:
    return {item.name: item.sha256 for item in artefacts}


@pytest.mark.parametrize("name", ["mypkg", "mypkg.deep"])
def test_a_module_of_the_packages_own_name_from_anywhere_else(
    proved: Prover, tmp_path: Path, modules: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An installed copy, from a folder that is otherwise allowed, is forbidden too."""
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    proved.begin()
    load(modules, "another", tmp_path / "installed" / "another.py")
    assert proved(mount(tmp_path, "mypkg"), {})[0] == ""
    load(modules, name, tmp_path / "installed" / "mypkg.py")
    reason, found = proved(mount(tmp_path, "mypkg"), {})
    assert reason == f"module {name} was loaded from {tmp_path / 'installed' / 'mypkg.py'}, outside this side's tree"
    assert name in named(found), "and it is on record"


def test_a_package_that_torch_brought_in_may_load_more_of_itself(
    proved: Prover, tmp_path: Path, modules: dict[str, Path]
) -> None:
    """A Triton that is installed editable by a finder: its folder is on no path."""
    load(modules, "a_triton", tmp_path / "built" / "a_triton" / "__init__.py")
    sys.modules["a_triton"].__path__ = [str(tmp_path / "built" / "a_triton")]
    proved.begin()
    load(modules, "a_triton.tools", tmp_path / "built" / "a_triton" / "tools.py")
    reason, found = proved(mount(tmp_path), {})
    assert (reason, set(named(found))) == ("", {"a_triton.tools"})
    load(modules, "beside", tmp_path / "built" / "beside.py")
    assert "beside.py, outside" in proved(mount(tmp_path), {})[0]


def test_a_link_in_a_folder_of_the_path_may_lead_to_a_store_but_not_to_the_checkout(
    proved: Prover, tmp_path: Path, modules: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Package managers and editable installs link to where they keep files."""
    site = tmp_path / "site-packages"
    for folder in (site, tmp_path / "checkout"):
        monkeypatch.syspath_prepend(str(folder))
    proved.begin()
    for kept in ("store", "checkout"):
        (tmp_path / kept).mkdir(exist_ok=True)
        (tmp_path / kept / f"in_{kept}.py").write_text("")
        site.mkdir(exist_ok=True)
        (site / f"in_{kept}.py").symlink_to(tmp_path / kept / f"in_{kept}.py")
        load(modules, f"in_{kept}", site / f"in_{kept}.py")
        reason, found = proved(mount(tmp_path), {})
        assert f"in_{kept}" in named(found)
        assert bool(reason) is (kept == "checkout")


def test_libraries_may_come_from_where_the_environment_says_at_the_start(
    proved: Prover, tmp_path: Path, modules: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LD_LIBRARY_PATH and CUDA_HOME; modules may not, nor libraries from where a kernel package sets them to."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'given'}::relative")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    proved.begin()
    shared_object(tmp_path / "given" / "libone.so")
    shared_object(tmp_path / "toolkit" / "lib64" / "libtwo.so.12")
    reason, found = proved(mount(tmp_path), {})
    assert (reason, set(named(found))) == ("", {"libone.so", "libtwo.so.12"})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "set"))
    library = shared_object(tmp_path / "set" / "libthree.so")
    assert proved(mount(tmp_path), {})[0] == f"shared object {library} was loaded from outside this side's tree"
    load(modules, "a_helper", tmp_path / "given" / "a_helper.py")
    assert "module a_helper was loaded from" in proved(mount(tmp_path), {})[0]


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
    places = Judge(side)
    places.installed = places.importable = places.linkable = ()
    places.loaded = frozenset()
    assert places.standing(path, path, library=True) == library
    assert places.standing(path, path) == module


def test_a_library_that_was_replaced_or_removed_since_it_was_loaded_is_no_proof(proved: Prover, tmp_path: Path) -> None:
    library = shared_object(tmp_path / "build" / "gone.so")
    library.unlink()
    reason, found = proved(mount(tmp_path), {"kernel[abcd]": "0" * 64})
    assert (reason, named(found)) == ("", {"gone.so": "", "kernel[abcd]": "0" * 64}), "an empty hash equals no other"
    assert [item.kind for item in found] == ["object", "kernel"]


def test_the_interpreters_own_packages_may_lie_in_the_checkout(proved: Prover, tmp_path: Path) -> None:
    """Packages in a .venv of the repository under test are environment, not code under test."""
    given = mount(tmp_path)
    own = wire.Mount(given.name, given.root, given.module, "", given.allowed, [str(Path(sys.prefix) / "lib")])
    assert proved(own, {}) == ("", [])


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
def test_what_was_installed_from_the_repository_is_another_trees(
    proved: Prover, tmp_path: Path, modules: dict[str, Path], monkeypatch: pytest.MonkeyPatch, url: str, says: str
) -> None:
    """A module of any name, and a library that it loads, where installed packages lie."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    proved.begin()
    distribution(site, "mine", url.format(tmp=tmp_path), "_mine_c.py", "mine.libs/mine.so")
    load(modules, "_mine_c", site / "_mine_c.py", "N = 1\n")
    library = shared_object(site / "mine.libs" / "mine.so")
    given = mount(tmp_path)
    given = dataclasses.replace(given, sources=[str(tmp_path / name) for name in ("checkout", "worktree", "side")])
    reason, found = proved(given, {})
    if not says:
        assert (reason, set(named(found))) == ("", {"_mine_c", "mine.so"})
        return
    what = f"mine, which was installed from {says.format(tmp=tmp_path)}, outside this side's tree"
    assert reason == f"module _mine_c is of {what}"
    assert set(named(found)) == {"_mine_c", "mine.so"}, "and it is on record"
    sys.modules.pop("_mine_c")
    assert proved(given, {})[0] == f"shared object {library} is of {what}"


def test_an_installed_copy_of_the_package_is_no_sides_own_whatever_its_modules_are_called(
    proved: Prover, tmp_path: Path, modules: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed release of the package under test: its top-level extension module would serve every side."""
    site, side = tmp_path / "site", tmp_path / "side"
    monkeypatch.syspath_prepend(str(site))
    proved.begin()
    distribution(site, "my_release", "", "mypkg/__init__.py", "mypkg_ext.py")
    distribution(site, "another", "", "other/__init__.py", "mypkg_tools/__init__.py")
    load(modules, "mypkg", side / "mypkg/__init__.py")
    load(modules, "mypkg_tools", site / "mypkg_tools/__init__.py")
    given = dataclasses.replace(mount(tmp_path), module="mypkg", root=str(side))
    assert proved(given, {})[0] == "", "another distribution's"
    load(modules, "mypkg_ext", site / "mypkg_ext.py")
    says = "module mypkg_ext is of my_release, which is an installed copy of the package, outside this side's tree"
    assert proved(given, {})[0] == says
