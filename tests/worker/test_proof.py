"""The list of what is loaded, and the reason when some of it may not be."""

from __future__ import annotations

import _ctypes
import ctypes
import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from abprof import wire
from abprof.worker.proof import prove


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


def named(artefacts: list[dict[str, str]]) -> dict[str, str]:
    return {item["name"]: item["sha256"] for item in artefacts}


def test_what_comes_from_the_side_is_listed_with_its_hash(tmp_path: Path, modules: dict[str, Path]) -> None:
    load(modules, "abprof_side.tiny", tmp_path / "side" / "tiny.py", "WHO = 1\n")
    load(modules, "a_helper", tmp_path / "build" / "made.py", "N = 2\n")
    library = shared_object(tmp_path / "build" / "out" / "own.so")
    reason, found = prove(mount(tmp_path), {"kernel[abcd]": "0" * 64})
    assert reason == ""
    assert named(found) == {
        "abprof_side.tiny": hashlib.sha256(b"WHO = 1\n").hexdigest(),
        "a_helper": hashlib.sha256(b"N = 2\n").hexdigest(),
        "own.so": hashlib.sha256(library.read_bytes()).hexdigest(),
        "kernel[abcd]": "0" * 64,
    }
    assert [item["kind"] for item in found] == ["module", "module", "object", "kernel"]


@pytest.mark.parametrize("place", ["checkout/tools/helper.py", "other/tiny.py"])
def test_a_module_from_where_nothing_may_come(tmp_path: Path, modules: dict[str, Path], place: str) -> None:
    load(modules, "a_helper", tmp_path / place)
    reason, _ = prove(mount(tmp_path), {})
    assert reason == f"module a_helper was loaded from {tmp_path / place}, outside this side's tree"


@pytest.mark.parametrize("name", ["mypkg", "mypkg.deep"])
def test_a_module_of_the_packages_own_name_from_anywhere_else(
    tmp_path: Path, modules: dict[str, Path], name: str
) -> None:
    """Also from a place that is not forbidden in general: an installed copy."""
    load(modules, name, tmp_path / "installed" / "mypkg.py")
    reason, found = prove(mount(tmp_path, "mypkg"), {})
    assert reason == f"module {name} was loaded from {tmp_path / 'installed' / 'mypkg.py'}, outside this side's tree"
    assert name in named(found), "and it is on record"


def test_a_shared_object_from_where_nothing_may_come(tmp_path: Path) -> None:
    library = shared_object(tmp_path / "other" / "with a blank" / "cached.so.1")
    reason, found = prove(mount(tmp_path), {})
    assert reason == f"shared object {library} was loaded from outside this side's tree"
    assert named(found) == {"cached.so.1": hashlib.sha256(library.read_bytes()).hexdigest()}


def test_a_library_that_was_replaced_or_removed_since_it_was_loaded_is_no_proof(tmp_path: Path) -> None:
    library = shared_object(tmp_path / "build" / "gone.so")
    library.unlink()
    reason, found = prove(mount(tmp_path), {})
    assert (reason, named(found)) == ("", {"gone.so": ""}), "an empty hash equals no other"


def test_a_file_that_changes_has_another_hash_the_next_time(tmp_path: Path, modules: dict[str, Path]) -> None:
    file = tmp_path / "side" / "tiny.py"
    load(modules, "abprof_side.tiny", file, "A = 1\n")
    before = named(prove(mount(tmp_path), {})[1])
    file.write_text("A = 2\n")
    os.utime(file, ns=(1, 1))
    assert named(prove(mount(tmp_path), {})[1]) != before


def test_a_link_does_not_hide_where_code_lies(tmp_path: Path, modules: dict[str, Path]) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "real.py").write_text("")
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / "link.py").symlink_to(tmp_path / "checkout" / "real.py")
    load(modules, "abprof_side.tiny", tmp_path / "side" / "link.py")
    assert "real.py, outside this side's tree" in prove(mount(tmp_path), {})[0]


def test_a_folder_whose_name_only_begins_alike_is_another(tmp_path: Path, modules: dict[str, Path]) -> None:
    load(modules, "a_helper", tmp_path / "checkout-2" / "helper.py")
    assert prove(mount(tmp_path), {}) == ("", [])
    load(modules, "abprof_side.tiny", tmp_path / "side-2" / "tiny.py")
    assert prove(mount(tmp_path), {})[0]


def test_the_interpreters_own_packages_may_lie_in_the_checkout(tmp_path: Path) -> None:
    """A .venv in the repository under test: what is installed there is the environment, not the code under test."""
    given = mount(tmp_path)
    own = wire.Mount(given.name, given.root, given.module, "", given.allowed, [str(Path(sys.prefix) / "lib")])
    assert pytest.__file__.startswith(own.forbidden[0]) or sys.prefix == sys.base_prefix
    assert prove(own, {}) == ("", [])


def test_abprofs_own_part_and_the_judge_are_not_the_packages(tmp_path: Path, modules: dict[str, Path]) -> None:
    load(modules, "abprof_workloads.dense", tmp_path / "checkout" / "workloads" / "dense.py")
    assert prove(mount(tmp_path), {}) == ("", [])


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
    tmp_path: Path, modules: dict[str, Path], monkeypatch: pytest.MonkeyPatch, url: str, says: str
) -> None:
    """A module of any name, and a library that it loads, where installed packages lie."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    distribution(site, "mine", url.format(tmp=tmp_path), "_mine_c.py", "mine.libs/mine.so")
    load(modules, "_mine_c", site / "_mine_c.py", "N = 1\n")
    library = shared_object(site / "mine.libs" / "mine.so")
    given = mount(tmp_path)
    given = dataclasses.replace(given, sources=[str(tmp_path / name) for name in ("checkout", "worktree", "side")])
    reason, found = prove(given, {})
    if not says:
        assert (reason, found) == ("", [])
        return
    what = f"mine, which was installed from {says.format(tmp=tmp_path)}, outside this side's tree"
    assert reason == f"module _mine_c is of {what}"
    assert set(named(found)) == {"_mine_c", "mine.so"}, "and it is on record"
    sys.modules.pop("_mine_c")
    assert prove(given, {})[0] == f"shared object {library} is of {what}"


def test_a_build_in_place_that_is_installed_where_it_was_built_is_named(
    tmp_path: Path, modules: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable install whose compiled part lies beside torch."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    distribution(site, "my_editable", f"file://{tmp_path}/checkout", "my_ext.so", "__editable__.pth")
    load(modules, "my_ext", site / "my_ext.so")
    given = dataclasses.replace(mount(tmp_path), sources=[str(tmp_path / "checkout")])
    assert prove(given, {})[0].startswith("module my_ext is of my_editable, which was installed from")
