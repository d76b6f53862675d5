"""Tamper detection: files that code under test changed, whatever process changed them and however it hid that."""

import hashlib
import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from abprof.builds.tampering import Watch
from abprof.records import Artefact, Build, Touched
from tests.simulated.planted import NewLab, load
from tests.simulated.scenario import Fault, Scenario, Time


def built(folder: Path) -> Build:
    """A build with a library, its source, and a cache of kernels beside its lock."""
    for name in ("src/k/__init__.py", "out/k.so", "out/log", "caches/triton/a/k.cubin", "caches/triton/lock"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    made = Artefact(kind="object", name="k.so", path=f"{folder}/out/k.so", sha256=digest)
    return Build(side="base", kernel="k", key="1", path=str(folder), artefacts=(made,))


def put_back(path: Path) -> None:
    """Written to and made as it was, time of modification included. Older kernels tell times of change in steps of some
    milliseconds: not in the step in which it was made."""
    before = path.stat()
    clock = path.with_name(f"{path.name}.clock")
    clock.touch()
    while clock.stat().st_ctime_ns <= before.st_ctime_ns:
        clock.touch()
    clock.unlink()
    text = path.read_bytes()
    path.write_bytes(b"spoilt")
    path.write_bytes(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def facts(found: list[Touched], root: Path) -> list[tuple[str, str, bool]]:
    return sorted((str(Path(one.path).relative_to(root)), one.how, one.falsifies) for one in found)


def test_what_is_measured_and_judges_is_watched(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "w.py").write_text("")
    build = built(tmp_path / "base")
    watch = Watch([tmp_path / "workloads"], [])
    assert facts(list(watch.built([build], "now")), tmp_path) == []
    assert facts(list(watch.look("now")), tmp_path) == []
    for harmless in ("out/log", "caches/triton/lock"):
        (tmp_path / "base" / harmless).write_text("again")
    (tmp_path / "base" / "caches" / "triton" / "new.cubin").write_text("compiled now")
    assert facts(list(watch.look("now")), tmp_path) == []
    (tmp_path / "workloads" / "w.py").write_text("# another judge")
    (tmp_path / "base" / "out" / "k.so").write_text("slower")
    put_back(tmp_path / "base" / "caches" / "triton" / "a" / "k.cubin")
    (tmp_path / "base" / "src" / "k" / "torch.py").write_text("# found before the real one")
    (tmp_path / "base" / "src" / "k" / "__init__.py").unlink()
    assert facts(list(watch.look("now")), tmp_path) == [
        ("base/caches/triton/a/k.cubin", "changed", True),
        ("base/out/k.so", "changed", True),
        ("base/src/k/__init__.py", "removed", True),
        ("base/src/k/torch.py", "added", True),
        ("workloads/w.py", "changed", True),
    ]
    assert facts(list(watch.look("now")), tmp_path) == [], "reported once"


@pytest.mark.parametrize(
    "moved", ["cache/builds", "cache/builds/K", "cache/builds/K/0", "cache/builds/K/0/out", "workloads"]
)
def test_a_folder_that_gives_way_to_another_and_comes_back_is_seen(tmp_path: Path, moved: str) -> None:
    """No file in it is touched: a worker that started meanwhile has loaded others."""
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "w.py").write_text("")
    build = built(tmp_path / "cache" / "builds" / "K" / "0")
    watch = Watch([tmp_path / "workloads"], [])
    assert not list(watch.built([build], "now"))
    (tmp_path / "cache" / "builds" / "L").mkdir()  # of another run
    (tmp_path / "cache" / "builds" / "K" / "0" / "out" / "log").write_text("again")
    (tmp_path / "cache" / "builds" / "K" / "0" / "caches" / "triton" / "b").mkdir()
    assert not list(watch.look("now"))
    folder, away = tmp_path / moved, (tmp_path / moved).with_name("away")
    folder.rename(away)
    shutil.copytree(away, folder)
    shutil.rmtree(folder)
    away.rename(folder)
    assert (moved, "changed", True) in facts(list(watch.look("now")), tmp_path)


def planted(module: Path, text: str) -> Path:
    """Compiled from other source, and Python takes it for this module's: it bears its size and time of modification."""
    seen, other = module.stat(), module.with_suffix(".other")
    other.write_text(text.ljust(seen.st_size - 1) + "\n")
    os.utime(other, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    place = importlib.util.cache_from_source(str(module))
    return Path(py_compile.compile(str(other), place, str(module), doraise=True) or "")


@pytest.mark.parametrize("when", ["while it is built", "in an epoch"])
def test_compiled_python_that_somebody_puts_beside_a_source_is_seen(tmp_path: Path, when: str) -> None:
    (tmp_path / "workloads").mkdir()
    build = built(tmp_path / "base")
    modules = [tmp_path / "workloads" / "w.py", tmp_path / "base" / "src" / "k" / "__init__.py"]
    for module in modules:
        module.write_text("TOLERANCE = 1e-6 # as it was written\n")
    watch = Watch([tmp_path / "workloads"], [])
    assert when == "while it is built" or not list(watch.built([build], "now"))
    compiled = [planted(module, "TOLERANCE = 9") for module in modules]
    imported = [sys.executable, "-c", "import w; print(w.TOLERANCE)"]
    done = subprocess.run(imported, cwd=modules[0].parent, capture_output=True, text=True, check=True)
    assert done.stdout == "9\n", "Python believes it"
    found = watch.built([build], "now") if when == "while it is built" else watch.look("now")
    assert facts(list(found), tmp_path) == sorted((str(path.relative_to(tmp_path)), "added", True) for path in compiled)


JUDGING = {
    "the build": ("turn", "cache/builds/*/*/src/kernels/k/__init__.py"),
    "the workloads": ("turn", "cache/worktrees/*/workloads/w.py"),
    "the tree": ("build", "cache/worktrees/*/s0/kernels/k/__init__.py"),
    "the rounds": ("turn", "runs/*/rounds.jsonl-"),
}


@pytest.mark.parametrize("what", JUDGING)
def test_a_run_whose_ground_was_written_to_is_not_trusted(new_lab: NewLab, what: str) -> None:
    """The target gains by it: its verdict is faster, but the result must not be used."""
    verb, glob = JUDGING[what]
    epoch = 2 if what == "the rounds" else None  # they are there after the first
    spoils = Fault("write", verb, side="target", text=glob, once=True, epoch=epoch)
    times = [Time(ns=1e6), Time(factor=0.5, side="target")]
    lab = new_lab(Scenario(workloads={"w": load(["a", "b"])}, times=times, faults=[spoils]))
    result = lab.abprof("main", "fast", "--epochs", "4")
    assert result.code == 4, result.err
    header = result.run.header
    assert not header.trusted
    assert header.sentence.startswith("Do not act on this run, ")
    first = result.run.warnings[0]
    assert first.kind == "tampered"
    assert Path(glob).name.rstrip("-") in first.text
    assert {one.falsifies for one in result.run.touched} == {True}
    again = lab.command("report", str(result.folder))
    assert "Do not act on this run" in (result.folder / "report.md").read_text(), again  # type: ignore[operator]


def test_a_build_that_changes_its_sources_is_said_to(new_lab: NewLab) -> None:
    writes = Fault("write", "build", side="target", text="cache/builds/*/*/src/kernels/k/__init__.py", once=True)
    lab = new_lab(Scenario(workloads={"w": load(["a"])}, times=[Time(ns=1e6)], faults=[writes]))
    result = lab.abprof("main", "fast", "--quick")
    (said,) = [advice.text for advice in result.run.warnings if advice.kind == "written_elsewhere"]
    assert said.endswith(": the build changed its own sources")
