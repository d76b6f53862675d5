"""Fixtures of the tests of abprof.sides: a machine without git configuration, and a cache folder."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from abprof.sides import Repository, open_repository
from tests.gitrepo import GitRepo, make_repo

OTHER_USER = 65534
KERNEL = {"kernels/ffa/__init__.py": "SPEED = 1\n"}


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No identity, no settings, nothing a hook or a CI system exported."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    """One commit on main."""
    repo = make_repo(tmp_path / "project")
    repo.commit("first", KERNEL)
    return repo


@pytest.fixture
def opened(cache: Path) -> Callable[[GitRepo], Repository]:
    return lambda repo: open_repository(repo.path, cache=cache)


def forked(repo: GitRepo) -> None:
    """Branch optimize_ffa, one commit ahead; main moves on by three commits, two of which touch the kernels."""
    repo.branch("optimize_ffa")
    repo.commit("faster", {"kernels/ffa/__init__.py": "SPEED = 2\n"})
    repo.checkout("main")
    repo.commit("words", {"README.md": "hello\n"})
    repo.commit("new kernel", {"kernels/other/__init__.py": "SPEED = 1\n"})
    repo.commit("retouch", {"kernels/other/__init__.py": "SPEED = 3\n"})


def fingerprint(top: Path) -> dict[str, str]:
    """Every file, link and folder under `top`: its mode and the hash of its content."""
    prints = {}
    for path in sorted(top.rglob("*")):
        mode = f"{path.lstat().st_mode:o}"
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        else:
            content = path.read_bytes() if path.is_file() else b""
        prints[str(path.relative_to(top))] = f"{mode} {hashlib.sha256(content).hexdigest()}"
    return prints


def as_somebody_else(job: Callable[[], str]) -> str:
    """Return the result of `job` run by a user without root's rights: in a child process if root runs the tests."""
    if os.geteuid() != 0:
        return job()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            os.write(send, job().encode())
        except BaseException as error:
            os.write(send, repr(error).encode())
        os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    with open(receive, "rb") as pipe:
        return pipe.read().decode()
