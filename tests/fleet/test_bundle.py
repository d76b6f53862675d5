"""A run's bundle: on another machine it is measured from as from the repository, and that machine has nothing else of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from abprof import sides as repo
from abprof.fleet.bundle import Bundle, elsewhere, here, pack, unpack
from abprof.fleet.messages import DEVICE, Ended, Measured, Shard, read_news
from abprof.fleet.ray import RemoteRunner
from abprof.measure import continued
from abprof.measure.plan import Continued, make_plan
from abprof.measure.run_context import Settled, look_around, worktrees
from abprof.records import Arm, Build, Run
from abprof.records.errors import AbprofError
from abprof.records.options import File, Options
from abprof.system import checksummed as sealed
from abprof.system.console import View
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a", "b"]}})
SCENARIO = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)])
VIEW = View(quiet=True)


@dataclass(frozen=True)
class Sent:
    """What leaves a machine: the head and the bundle."""

    run: Run
    file: File
    packed: Bundle
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
    """A run planned on the lab's machine and its bundle; then its repository, worktrees and cache are gone."""
    config = Options(specs=specs, repo=str(lab.repo.path), device=("simulated",), **asked)
    place = look_around(config, VIEW)
    file = lab.folder / "bundle"
    (lab.folder / "logs").mkdir(exist_ok=True)
    with worktrees(place, place.id, VIEW) as trees:
        plan = make_plan(place, trees, lab.folder / "logs", VIEW)
        packed = pack(trees, plan.factory.scratch.parent / "workloads", file)
    return Sent(elsewhere(plan.run, packed), place.file, packed, file.read_bytes())


@contextmanager
def prepared(got: Sent, cache: Path) -> Iterator[dict[str, Path]]:
    """What a shard's program does first: the sides' files, by side."""
    home = unpack(cache, got.packed, lambda: got.bundle)
    run = here(got.run, got.packed, home)
    options = msgspec.structs.replace(continued.as_asked(run, str(home), 60.0), device=("simulated",))
    place = look_around(options, VIEW, Settled(run.sides, got.file, run.id))
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
        assert (at[""] / "workloads/_helper.py").read_text() == "# beside it\n"


LANDS = """
import json, os, sys
from abprof.fleet.bundle import Bundle
from abprof.fleet.ray import RemoteRunner
from abprof.fleet.messages import read_shard
import msgspec
from pathlib import Path
shard, cargo, bundle = (Path(name).read_bytes() for name in sys.argv[1:])
RemoteRunner(read_shard(shard), msgspec.json.decode(cargo, type=Bundle), lambda: bundle, os.environ)
print("landed", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_node_process_left_is_removed_by_the_next(lab: Lab, node: Callable[[str], Path]) -> None:
    got, cache = sent(lab, "main", "fast"), node("node")
    shard = Shard(number=1, run=got.run, file=got.file, arms={}, budget=1.0, repository="", logs="")
    files = [lab.folder / name for name in ("a", "b", "c")]
    for file, data in zip(files, (sealed.text(shard), sealed.text(got.packed), got.bundle), strict=True):
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


def test_spoilt_bytes_leave_nothing(lab: Lab, node: Callable[[str], Path]) -> None:
    got, cache = sent(lab, "main", "fast"), node("node")
    with pytest.raises(AbprofError, match="bundle"):
        unpack(cache, got.packed, lambda: got.bundle[:1000])
    assert [path for path in (cache / "bundles").iterdir() if path.is_dir()] == []
    assert unpack(cache, got.packed, lambda: got.bundle).is_dir()


def test_a_shard_is_built_and_measured_from_its_bundle(lab: Lab, node: Callable[[str], Path]) -> None:
    got = sent(lab, "main", "fast")
    lab.repo.path.rename(lab.folder / "away")
    cache = node("node")
    builds = tuple(Build(side=side, kernel="k", key=side, path="/not/here") for side in ("base", "target"))
    both = (Arm(id="base", side="base"), Arm(id="target", side="target"))
    arms = {cell.id: both for cell in got.run.cells}
    run = msgspec.structs.replace(got.run, builds=builds, arms=both)
    shard = Shard(number=1, run=run, file=got.file, arms=arms, budget=60.0, repository="", logs="")
    env = {**os.environ, DEVICE: "simulated", "ABPROF_CACHE_DIR": str(cache)}
    runner, lines, gone = RemoteRunner(shard, got.packed, lambda: got.bundle, env), list[bytes](), None
    while gone is None:
        more, gone = runner.lines(60.0)
        lines += more
    logs = runner.logs()
    runner.end(0.0)
    news = [read_news(line) for line in lines]
    assert isinstance(news[-1], Ended), gone
    assert news[-1].why == "done", news[-1]
    measured = {one.block.cell for one in news if isinstance(one, Measured)}
    assert measured == {"w/case=a", "w/case=b"}
    assert {"program.log", "build-base-k.log", "worker-base-k.log"} <= logs.keys()
    assert not list((cache / "landed").glob("*/"))
