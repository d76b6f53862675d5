"""Where abprof is run: as a user without a name, home or git identity, in repositories that are another's, large or partial."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo
from tests.sides.conftest import fingerprint
from tests.simulated.lab import ROOT, Lab
from tests.simulated.scenario import Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a"]}})
SLOWER = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6), Time(factor=1.2, side="target")])
QUICK = 4  # exit code: one epoch decides nothing
NAMELESS = 54321  # no such user is in the system's list: as in a container that is given a number alone


def as_nameless(argv: list[str], env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run by that user, where root runs the tests; else by this one."""
    who = {"user": NAMELESS, "group": NAMELESS, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, check=False, **who)  # type: ignore[call-overload]


def reachable(env: dict[str, str], cwd: Path) -> str:
    """An interpreter that that user may start: this one can lie in root's own home."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            if as_nameless([python, "-P", "-c", "import abprof.session, msgspec, git"], env, cwd).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("another user can start no Python here that has abprof's dependencies")


def test_a_user_without_name_home_or_identity_in_a_read_only_repository_of_another(open_to_all: Path) -> None:
    lab = Lab(open_to_all / "ünï code (1)", SLOWER)
    repo, place = lab.repo.path, open_to_all / "place"
    for folder in (place, place / "tmp"):
        folder.mkdir()
        folder.chmod(0o777)
    lab.repo.write({"kernels/k/__init__.py": "WHO = 'mine'\n"})
    subprocess.run(["chmod", "-R", "a-w", str(repo)], check=True)
    lab.folder.chmod(0o777)  # the simulated workers leave their notes there
    left_out = ("GIT_", "HOME", "ABPROF_CACHE", "ABPROF_STATE")
    env = {name: value for name, value in lab.environment().items() if not name.startswith(left_out)}
    env |= {"TMPDIR": str(place / "tmp"), "PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}
    python = reachable(env, place)
    env["ABPROF_WORKER"] = env["ABPROF_WORKER"].replace(sys.executable, python)
    before = fingerprint(repo)

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        words = ("main", ".", "--quick", "--repo", str(repo), "--device", "simulated", *more)
        return as_nameless([python, "-P", "-m", "abprof", *words], env, place)

    done = run("--runs-dir", str(place / "runs"))
    assert done.returncode == QUICK, done.stderr
    assert "20.0 % slower" in done.stdout
    refused = run()
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines()[-1] == (
        f"abprof: {repo}/runs: Permission denied (choose another place with --runs-dir)"
    )
    assert fingerprint(repo) == before
    if os.geteuid() == 0:  # else this user has a home
        (kept,) = (place / "tmp").glob("abprof-*")
        assert (kept.name, kept.stat().st_mode & 0o777) == (f"abprof-{NAMELESS}", 0o700)
        assert {path.name for path in kept.iterdir()} == {"cache", "state"}


@pytest.mark.slow
def test_a_shallow_clone_is_measured_and_a_partial_one_refused(tmp_path: Path) -> None:
    lab = Lab(tmp_path, SLOWER)
    for number in range(5):
        lab.repo.commit("more", {"kernels/k/notes.txt": f"{number}\n" * 100})
    lab.repo.git("config", "uploadpack.allowFilter", "true")
    kinds = {"partial": ["--filter=blob:none"], "shallow": ["--depth=1", "--no-single-branch"]}
    for how, words in kinds.items():
        clone = GitRepo(tmp_path / f"{how} clone")
        lab.repo.git("clone", "--quiet", *words, lab.repo.path.as_uri(), str(clone.path))
        before = fingerprint(clone.path)
        runs = ("--quick", "--repo", str(clone.path), "--device", "simulated", "--runs-dir", str(tmp_path / "runs"))
        done, gone = (lab.command(base, "origin/fast", *runs) for base in ("origin/main", "origin/main~3"))
        if how == "shallow":
            assert (done.code, [build.failure for build in done.run.builds]) == (QUICK, [None, None]), done.err
            assert (gone.code, "is not in this shallow clone" in gone.err) == (2, True)
        else:
            assert (done.code, "use a clone without --filter" in done.err) == (2, True)
        assert fingerprint(clone.path) == before
