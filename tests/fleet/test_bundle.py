"""A run's cargo: on another machine it is measured from as from the repository, and that machine has nothing else of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from abprof import sides as repo
from abprof.fleet.bundle import Cargo, elsewhere, here, load, sweep, unload
from abprof.fleet.messages import Shard
from abprof.measure import continued
from abprof.measure.plan import Continued, make_plan
from abprof.measure.resources import worktrees
from abprof.measure.run_context import look_around
from abprof.records import Checkout, Run, Side
from abprof.records.errors import AbprofError
from abprof.records.options import File, Options
from abprof.sides import releases as dists
from abprof.system import checksummed as sealed
from abprof.system import locks as leases
from abprof.system.console import View
from abprof.system.trees import files_of, tree_hash
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a", "b"]}})
SCENARIO = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)])
VIEW = View(quiet=True)


@dataclass(frozen=True)
class Sent:
    """What leaves a machine: the head, the cargo and its bundle."""

    run: Run
    file: File
    cargo: Cargo
    bundle: bytes


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab = Lab(tmp_path / "lab", SCENARIO)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name, value in lab.environment().items():
        monkeypatch.setenv(name, value)
    return lab


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Another machine: abprof's folders are others there from now on."""

    def make(name: str) -> Path:
        for kind in ("CACHE", "STATE"):
            monkeypatch.setenv(f"ABPROF_{kind}_DIR", str(tmp_path / name / kind.lower()))
        return tmp_path / name / "cache"

    return make


def sent(lab: Lab, *specs: str, **asked: object) -> Sent:
    """A run planned on the lab's machine and its cargo; then its repository, worktrees and cache are gone."""
    config = Options(specs=specs, repo=str(lab.repo.path), device=("simulated",), **asked)
    place = look_around(config, VIEW)
    file = lab.folder / "bundle"
    (lab.folder / "logs").mkdir(exist_ok=True)
    with worktrees(place, place.id, VIEW) as trees:
        plan = make_plan(place, trees, lab.folder / "logs", VIEW)
        cargo = load(place, trees, plan.shop.scratch.parent / "workloads", file)
    return Sent(elsewhere(plan.run, cargo), place.file, cargo, file.read_bytes())


@contextmanager
def prepared(got: Sent, cache: Path) -> Iterator[dict[str, Path]]:
    """What a shard's program does first: the sides' files, by side."""
    home = unload(cache, got.cargo, lambda: got.bundle)
    run = here(got.run, got.cargo, home)
    place = continued.same_place(run, str(home), cache.parent / "runs", 60.0, VIEW)
    place = replace(place, file=got.file)  # abprof.toml travels in the shard
    with worktrees(place, "there", VIEW) as trees:
        plan = make_plan(place, trees, cache.parent, VIEW, Continued(run, run.cells))
        assert plan.cells == got.run.cells
        yield {tree.side.id: Path(tree.path) for tree in trees} | {"": place.root}


def test_what_arrives_is_measured_from_as_the_repository_was(lab: Lab, node: Callable[[str], Path]) -> None:
    """Two commits, and a working tree as it stood when the run began; the judge lies beside the repository."""
    lab.repo.write({"abprof.toml": 'workloads = "../judge"\n', "kernels/k/__init__.py": "WHO = 'mine'\n"})
    (lab.repo.path / "workloads").rename(lab.folder / "judge")
    (lab.folder / "judge" / "_helper.py").write_text("# beside it\n")
    before = lab.fingerprint()
    got = sent(lab, "main", "fast", ".")
    assert lab.fingerprint() == before
    for path in (lab.repo.path, lab.folder / "judge", lab.cache):
        path.rename(path.with_name(f"{path.name} away"))
    with prepared(got, node("node")) as at:
        found = {side: (path / "kernels/k/__init__.py").read_text() for side, path in at.items() if side}
        assert found == {"base": "WHO = 'main'\n", "target": "WHO = 'fast'\n", "target2": "WHO = 'mine'\n"}
        assert (at[""] / ".abprof/workloads/_helper.py").read_text() == "# beside it\n"


LANDS = """
import json, os, sys
from abprof.fleet.bundle import Cargo
from abprof.fleet.remote_runner import RemoteRunner
from abprof.fleet.messages import read_shard
import msgspec
from pathlib import Path
shard, cargo, bundle = (Path(name).read_bytes() for name in sys.argv[1:])
RemoteRunner(read_shard(shard), msgspec.json.decode(cargo, type=Cargo), lambda: bundle, os.environ)
print("landed", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_node_process_left_is_removed_by_the_next(lab: Lab, node: Callable[[str], Path]) -> None:
    got, cache = sent(lab, "main", "fast"), node("node")
    shard = Shard(number=1, run=got.run, file=got.file, arms={}, budget=1.0, repository="", logs="")
    files = [lab.folder / name for name in ("a", "b", "c")]
    for file, data in zip(files, (sealed.dump(shard), sealed.dump(got.cargo), got.bundle), strict=True):
        file.write_bytes(data)
    (temporary := lab.folder / "tmp").mkdir()
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", LANDS, *map(str, files)],
        env={**lab.environment(), "ABPROF_CACHE_DIR": str(cache), "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout
    assert child.stdout.readline() == b"landed\n"
    (lies,) = (path for path in (cache / "landed").iterdir() if path.is_dir())
    repo.sweep(cache)
    assert (lies / "shard.json").exists(), "its process lives"
    child.kill()
    child.communicate()
    assert lies.exists()
    repo.sweep(cache)
    assert not list((cache / "landed").iterdir())
    assert not list(temporary.glob("abprof-*"))


def test_releases_travel_as_they_were_installed(lab: Lab, node: Callable[[str], Path]) -> None:
    """No index is asked on the other machine."""
    installed = lab.folder / "installed"
    (installed / "k").mkdir(parents=True)
    (installed / "k" / "__init__.py").write_bytes(b"FAST = 1\r\n")
    (installed / "k" / "tool").write_text("#!/bin/sh\n")
    (installed / "k" / "tool").chmod(0o755)
    (installed / "k" / "link").symlink_to("tool")
    content = tree_hash(installed, files_of(installed))
    side = Side(id="base", spec="dist:k==1", kind="dist", commit=content, tree=content, label="k==1")
    config = Options(specs=("main",), repo=str(lab.repo.path), device=("simulated",))
    place = look_around(config, VIEW)
    trees = [Checkout(side=side, path=str(installed))]
    cargo = load(place, trees, lab.repo.path / "workloads", lab.folder / "bundle")
    assert cargo.commits == {}
    cache = node("node")
    unload(cache, cargo, (lab.folder / "bundle").read_bytes)
    dists.put(cache, side, cache / "there")
    assert tree_hash(cache / "there", files_of(cache / "there")) == content


def test_spoilt_bytes_leave_nothing(lab: Lab, node: Callable[[str], Path]) -> None:
    got, cache = sent(lab, "main", "fast"), node("node")
    with pytest.raises(AbprofError, match="bundle"):
        unload(cache, got.cargo, lambda: got.bundle[:1000])
    assert [path for path in (cache / "cargo").iterdir() if path.is_dir()] == []
    assert unload(cache, got.cargo, lambda: got.bundle).is_dir()


def test_what_nobody_uses_goes_in_its_turn(tmp_path: Path) -> None:
    cache = tmp_path
    for number in range(12):
        home = cache / "cargo" / f"{number:040}"
        home.mkdir(parents=True)
        os.utime(home, (number, number))
    leases.hold(cache / "cargo" / f"{0:040}.use", shared=True)
    try:
        assert len(sweep(cache)) == 3
        kept = sorted(int(path.name) for path in (cache / "cargo").iterdir() if path.is_dir())
        assert kept == [0, *range(4, 12)]
        assert len(sweep(cache, everything=True)) == 8
    finally:
        leases.drop(cache / "cargo" / f"{0:040}.use")
