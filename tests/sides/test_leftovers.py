import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from abprof.sides import Repository, checkouts, resolve, sweep
from abprof.sides.git import Git
from tests.gitrepo import GitRepo
from tests.sides.conftest import fingerprint
from tests.sides.test_worktrees import leftovers

Opened = Callable[[GitRepo], Repository]
ROOT = Path(__file__).parents[2]

RUN = """
import sys, time
from pathlib import Path
from abprof.sides import open_repository, resolve
from abprof.sides import checkouts
repository = open_repository(Path(sys.argv[1]), cache=Path(sys.argv[2]))
sides, _ = resolve(repository, ["main", "."])
with checkouts(repository, sides, run="doomed"):
    print("ready", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def run(repo: GitRepo, cache: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in its own process group that makes worktrees and keeps them."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(repo.path), str(cache)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None


def wait_for(path: Path) -> None:
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never came")


def first_line(run: subprocess.Popen[str]) -> str:
    assert run.stdout is not None
    return run.stdout.readline()


def test_a_living_run_is_left_alone_and_a_killed_one_removed(run: subprocess.Popen[str], cache: Path) -> None:
    assert first_line(run) == "ready\n"
    (worktree,) = cache.glob("worktrees/*/s1")
    for link in cache.glob("repos/*/worktrees/*/gitdir"):  # as git 2.48 writes it with worktree.useRelativePaths
        link.write_text(os.path.relpath(link.read_text().strip(), link.parent))
    assert sweep(cache, everything=True) == []
    assert (worktree / "kernels").exists()
    assert len(list(cache.glob("repos/*/worktrees/*"))) == 2
    run.kill()
    run.wait()
    assert sweep(cache) == [f"removed {worktree.parent} (left by a run that ended)"]
    assert leftovers(cache) == []


@pytest.fixture
def slow_checkout(repo: GitRepo, tmp_path: Path) -> Iterator[Path]:
    """The first to check out stops half way (in a smudge filter) until the folder's file `go` is there."""
    signs = tmp_path / "signs"
    signs.mkdir()
    repo.commit("slow", {".gitattributes": "*.slow filter=slow\n", "a": "1", "b.slow": "1", "c": "1"})
    script = f"if mkdir {signs}/started; then while [ ! -e {signs}/go ]; do sleep 0.02; done; fi; cat"
    subprocess.run(["git", "config", "--global", "filter.slow.smudge", f"sh -c '{script}'"], check=True)
    subprocess.run(["git", "config", "--global", "filter.slow.clean", "cat"], check=True)
    subprocess.run(["git", "config", "--global", "filter.slow.required", "true"], check=True)
    yield signs
    (signs / "go").touch()


@pytest.mark.parametrize("whole_group", [True, False])
def test_killed_in_the_middle_of_a_checkout(
    slow_checkout: Path, run: subprocess.Popen[str], repo: GitRepo, opened: Opened, cache: Path, whole_group: bool
) -> None:
    before = fingerprint(repo.path)
    wait_for(slow_checkout / "started")
    if whole_group:
        os.killpg(run.pid, signal.SIGKILL)
    else:
        run.kill()  # its git lives on, and goes on writing when it may
    run.wait()
    lines = sweep(cache)
    assert [line.endswith("(left by a run that ended)") for line in lines] == [True]
    assert leftovers(cache) == []
    repository = opened(repo)
    sides, _ = resolve(repository, ["main"])
    with checkouts(repository, sides, run="doomed") as (made,):  # the same run, resumed
        (slow_checkout / "go").touch()
        with contextlib.suppress(ProcessLookupError):
            while not os.killpg(run.pid, 0):  # until the old git has failed, and removed what it takes for its own
                time.sleep(0.02)
        assert Path(made.path, "c").read_text() == "1"
        assert Git(made.path).text("status", "--porcelain") == ""
    sweep(cache)
    assert leftovers(cache) == []
    assert fingerprint(repo.path) == before


CLONE = """
import sys
from pathlib import Path
from abprof.sides import open_repository, resolve
resolve(open_repository(Path(sys.argv[1]), cache=Path(sys.argv[2])), ["main"])
"""


def clone_of(repo: GitRepo, cache: Path) -> Path:
    """abprof's clone of `repo`, made by a process that has ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", CLONE, str(repo.path), str(cache)], env=environment, check=True)
    return next(path for path in (cache / "repos").iterdir() if path.is_dir())


def test_a_clone_goes_with_its_repository_or_with_everything(repo: GitRepo, cache: Path) -> None:
    clone = clone_of(repo, cache)
    assert sweep(cache) == []
    assert clone.exists()
    assert sweep(cache, everything=True) == [f"removed {clone} (clone of {repo.path}/.git/objects)"]
    assert list((cache / "repos").iterdir()) == []
    clone_of(repo, cache)
    shutil.rmtree(repo.path)
    assert sweep(cache) == [f"removed {clone} (clone of {repo.path}/.git/objects)"]
