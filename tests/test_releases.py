"""A side that is a release: whole runs with wheels made here, away from any repository and beside a branch."""

from pathlib import Path

import pytest

from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload
from tests.test_proofs import artefacts, reasons, sha256
from tests.tinyrepo import WORKLOAD, abprof
from tests.wheels import only, wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # many workers that import torch
QUICK = ("--quick", "--device", "cpu", "--no-peers", "--json")
CELL = "tiny/n=4096"
# Like real packages: read the own version, import by the real name, have a second top-level module.
PACKAGE = """
from importlib.metadata import version
__version__ = version("tiny-release")
from tiny.ops import double
"""
OPS = """
from tiny_extra import FACTOR
def double(x):
    return x * FACTOR
"""


def release(links: Path, version: str, factor: float = 2.0, **more: str) -> dict[str, str]:
    """A wheel of tiny-release, and its files."""
    files = {"tiny/__init__.py": PACKAGE, "tiny/ops.py": OPS, "tiny_extra.py": f"FACTOR = {factor}\n", **more}
    wheel(links, "tiny_release", version, files)
    return files


def test_two_releases_away_from_any_repository(tmp_path: Path) -> None:
    links, place = tmp_path / "links", tmp_path / "away"
    sides = {"base": release(links, "1.0"), "target": release(links, "2.0", 3.0)}
    (place / "bench").mkdir(parents=True)
    (place / "bench" / "tiny.py").write_text(WORKLOAD.replace("API = 1", "from ._shared import N\nAPI = 1"))
    (place / "bench" / "_shared.py").write_text("N = 4096\n")
    (place / "bench" / "other.py").write_text("raise RuntimeError('this workload is not selected')\n")
    env = {**only(PIP_FIND_LINKS=str(links), PIP_NO_INDEX="1"), "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    two = ("dist:tiny-release==1.0", "dist:tiny-release==2.0")
    done = abprof(*two, *QUICK, "--workloads", "bench/tiny.py", cwd=place, home=tmp_path, **env)
    assert done.statuses("base") == {CELL: "ok"}, done.err
    assert done.statuses("target") == {CELL: "wrong"}, "it trebles"
    assert [(side["kind"], side["label"]) for side in done.run["sides"]] == [
        ("dist", "tiny-release==1.0"),
        ("dist", "tiny-release==2.0"),
    ]
    for side, files in sides.items():
        modules = artefacts(done, side, "module")
        assert {name: item["sha256"] for name, item in modules.items()} == {
            "tiny": sha256(files["tiny/__init__.py"].encode()),
            "tiny.ops": sha256(files["tiny/ops.py"].encode()),
            "tiny_extra": sha256(files["tiny_extra.py"].encode()),
        }
    assert (place / "runs").is_dir()
    folder = done.run["run_dir"]
    shown = abprof("report", folder, "--json", cwd=tmp_path, home=tmp_path)
    assert shown.run["sides"] == done.run["sides"]
    again = abprof("rerun", folder, "--budget", "5s", cwd=place, home=tmp_path, **env)
    assert again.code == 1, again.err
    release(links, "2.0", 2.0)
    refused = abprof("rerun", folder, cwd=place, home=tmp_path, **env)
    assert "side target: dist:tiny-release==2.0 has changed since the run (start a new run)" in refused.err


def test_a_release_that_reaches_for_anothers_files(tmp_path: Path) -> None:
    """One that lacks the package is `missing`; one that takes it from elsewhere is `broken`."""
    links = tmp_path / "links"
    release(links, "1.0")
    wheel(links, "tiny_release", "2.0", {"other.py": ""})
    steals = "import sys; sys.path.insert(0, {!r}); import thief\nfrom tiny.ops import double\n"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "thief.py").write_text("")
    release(links, "3.0", **{"tiny/__init__.py": steals.format(str(tmp_path / "outside"))})
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "tiny.py").write_text(WORKLOAD)
    env = only(PIP_FIND_LINKS=str(links), PIP_NO_INDEX="1")
    specs = [f"dist:tiny-release=={version}.0" for version in (1, 2, 3)]
    done = abprof(*specs, *QUICK, "--workloads", "./w", cwd=tmp_path, home=tmp_path, **env)
    assert [done.statuses(arm)[CELL] for arm in ("base", "target")] == ["ok", "missing"], done.err
    assert reasons(done, "target").endswith("tiny does not exist on this side")
    assert "module thief was loaded from" in reasons(done, "target2")
    assert [row["verdict"] for row in done.run["comparisons"]] == ["broken", "broken"]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    load = Workload(kernel="k", presets={"default": {"case": ["a"]}})
    made = Lab(tmp_path, Scenario(workloads={"w": load}, times=[Time(ns=20e6), Time(factor=0.9, side="target")]))
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "links", "k", version, {"k/__init__.py": f"WHO = {version}\n"})
    made.more = only(PIP_FIND_LINKS=str(tmp_path / "links"), PIP_NO_INDEX="1")
    return made


def test_did_my_branch_get_faster_than_the_release(lab: Lab) -> None:
    done = lab.abprof("dist:k==1.0", "fast")
    assert done.table() == {"w/case=a": "faster"}
    epochs = done.row("w/case=a").epochs
    again = lab.command("rerun", str(done.folder), "--repo", str(lab.repo.path))
    assert again.row("w/case=a").epochs > epochs
    both = lab.abprof("dist:k==1.0", "dist:k==1.0", "--quick")
    assert "hold the same files: this is an A/A run" in " ".join(both.run.notes)
    scripts = lab.command("scripts", str(done.folder), "--repo", str(lab.repo.path))
    assert "dist:k==1.0" in Path(scripts.out.split()[0]).read_text()


def test_a_release_is_no_branch_of_a_nightly_job(lab: Lab) -> None:
    night = lab.command("nightly", "--repo", str(lab.repo.path), "--branch", "dist:k==1.0", "--device", "simulated")
    assert "dist:k==1.0: a nightly job needs a branch, not a release" in night.out + night.err
