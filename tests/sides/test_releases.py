"""Releases installed by the real pip from local wheels: installation, cache and errors."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from abprof.records import Side
from abprof.records.errors import AbprofError
from abprof.sides import releases
from tests.wheels import index, only, wheel

slow = pytest.mark.slow  # pip runs
FILES = {"tinyk/__init__.py": "from tinyk_ops import WHO\n", "tinyk_ops.py": "WHO = 1\n"}


@dataclass
class Shelf:
    """A folder of wheels that pip searches, and abprof's cache."""

    links: Path
    cache: Path
    monkeypatch: pytest.MonkeyPatch
    said: list[str] = field(default_factory=list)

    def set_pip(self, **places: str) -> None:
        for name, value in only(**places).items():
            self.monkeypatch.setenv(name, value)

    def resolve(self, spec: str, python: str = sys.executable) -> tuple[Side, tuple[str, ...]]:
        return releases.install([spec], lambda _: python, self.cache, 100.0, self.said.append)[spec]

    def refusal(self, spec: str, python: str = sys.executable) -> str:
        with pytest.raises(AbprofError) as refused:
            self.resolve(spec, python)
        return refused.value.line


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf(tmp_path / "links", tmp_path / "cache", monkeypatch)
    made.set_pip(PIP_FIND_LINKS=str(made.links), PIP_NO_INDEX="1")
    return made


@slow
def test_a_release_is_its_installed_files(shelf: Shelf, tmp_path: Path) -> None:
    file = wheel(shelf.links, "tinyk", "1.0", FILES)
    side, notes = shelf.resolve("dist:Tinyk==1.0")
    assert (side.kind, side.label, side.spec, side.anew) == ("dist", "Tinyk==1.0", "dist:Tinyk==1.0", "dist:Tinyk==1.0")
    assert side.commit == side.tree
    assert len(side.commit) == 64
    assert side.subject.startswith("tinyk-1.0-py3-none-any.whl sha256:")
    assert notes == ()
    releases.put(shelf.cache, side, tmp_path / "tree")
    names = {str(p.relative_to(tmp_path / "tree")) for p in (tmp_path / "tree").rglob("*") if p.is_file()}
    assert names == {*FILES, "tinyk-1.0.dist-info/METADATA", "tinyk-1.0.dist-info/WHEEL"}
    assert shelf.resolve("dist:tinyk==1.0")[0].commit == side.commit, "equal wheels make equal folders"
    wheel(file.parent, "tinyk", "1.0", {**FILES, "tinyk_ops.py": "WHO = 2\n"})
    assert shelf.resolve("dist:tinyk==1.0")[0].commit != side.commit, (
        "another wheel under the same name is not taken for it"
    )


@slow
def test_files_that_were_changed_in_the_cache_are_installed_again(shelf: Shelf, tmp_path: Path) -> None:
    wheel(shelf.links, "tinyk", "1.0", FILES)
    side, _ = shelf.resolve("dist:tinyk==1.0")
    (kept,) = (shelf.cache / "dists" / "files").iterdir()
    (kept / "tinyk_ops.py").write_text("WHO = 'spoilt'\n")
    with pytest.raises(AbprofError, match="were changed"):
        releases.put(shelf.cache, side, tmp_path / "spoilt")
    assert shelf.resolve("dist:tinyk==1.0")[0] == side
    releases.put(shelf.cache, side, tmp_path / "whole")
    assert [line for line in releases.sweep(shelf.cache, everything=True) if "removed" in line] == [
        f"removed the installed release {kept.name}"
    ]
    assert not (shelf.cache / "dists").exists()


@slow
def test_what_cannot_be_had_is_one_line(shelf: Shelf) -> None:
    for version in ("0.8", "0.9", "1.0"):
        wheel(shelf.links, "tinyk", version, FILES)
    wheel(shelf.links, "tinyk", "3.0", FILES, tag="cp27-cp27mu-manylinux1_x86_64")
    (shelf.links / "tinyk-2.0.tar.gz").write_text("")
    for version in ("9", "2.0", "3.0"):
        said = shelf.refusal(f"dist:tinyk=={version}")
        assert said.startswith(f"tinyk=={version}: pip: Could not find a version that satisfies")
        assert "(from versions: 0.8, 0.9, 1.0)" in said
    assert "(from versions: none) (PIP_INDEX_URL and PIP_FIND_LINKS" in shelf.refusal("dist:absent==1.0")
    assert not (shelf.cache / "dists" / "files").exists()


@slow
def test_a_release_that_was_withdrawn_or_is_for_another_python(shelf: Shelf) -> None:
    files = {version: wheel(shelf.links, "tinyk", version, FILES) for version in ("1.0", "2.0")}
    links = {files["1.0"]: 'data-yanked="wrong at 4096"', files["2.0"]: 'data-requires-python="&gt;=9"'}
    shelf.set_pip(PIP_INDEX_URL=index(shelf.links / "simple", "tinyk", links), PIP_NO_INDEX="0")
    _, notes = shelf.resolve("dist:tinyk==1.0")
    assert notes == ("tinyk==1.0 was withdrawn by its authors: wrong at 4096",)
    assert shelf.refusal("dist:tinyk==2.0").startswith("tinyk==2.0: pip: ")


@pytest.mark.parametrize(
    "spec",
    [
        "dist:", "dist:liger-kernel", "dist:liger-kernel>=0.5", "dist:liger-kernel==0.5.*",
        "dist:liger-kernel==0.5; python_version > '3'", "dist:--pre==1", "dist:a==1...main",
        "dist:a @ https://example.org/a-1.0-py3-none-any.whl", "dist:a==1\n-r /etc/passwd",
    ],
)  # fmt: skip
def test_a_spec_is_one_version_of_one_distribution(tmp_path: Path, spec: str) -> None:
    with pytest.raises(AbprofError, match=r"not a release with one exact version \(write dist:NAME==VERSION\)"):
        releases.install([spec], lambda _: sys.executable, tmp_path, 100.0, str)
