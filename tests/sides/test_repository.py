import os
import subprocess
from pathlib import Path

import pytest

from abprof.records.errors import AbprofError
from abprof.sides import checkouts, open_repository, resolve
from tests.gitrepo import GitRepo, make_repo
from tests.sides.conftest import KERNEL, as_somebody_else, fingerprint


def test_found_from_any_folder_inside(repo: GitRepo, cache: Path) -> None:
    found = open_repository(repo.path / "kernels" / "ffa", cache=cache)
    assert found.path == repo.path
    assert found.git_dir == found.common_dir == repo.path / ".git"
    assert not cache.exists()  # looking costs nothing


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("absent", "no such folder"), ("project/kernels/ffa/__init__.py", "not a folder"),
        ("plain", "not a git repository"), ("bare", "a bare repository"), ("project/.git", "a .git folder"),
    ],
)  # fmt: skip
def test_refused(repo: GitRepo, tmp_path: Path, cache: Path, place: str, what: str) -> None:
    (tmp_path / "plain").mkdir()
    repo.git("clone", "--quiet", "--bare", ".", str(tmp_path / "bare"))
    with pytest.raises(AbprofError) as caught:
        open_repository(tmp_path / place, cache=cache)
    assert what in caught.value.what
    assert caught.value.where == str(tmp_path / place)
    assert "\n" not in caught.value.line


def test_a_hooks_environment_does_not_mislead(
    repo: GitRepo, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repo(tmp_path / "other")
    other.commit("elsewhere", {"b": "2"})
    for name, value in {
        "GIT_DIR": other.path / ".git",
        "GIT_WORK_TREE": other.path,
        "GIT_INDEX_FILE": other.path / ".git" / "index",
        "GIT_OBJECT_DIRECTORY": other.path / ".git" / "objects",
        "GIT_PREFIX": "kernels/",
    }.items():
        monkeypatch.setenv(name, str(value))
    before = fingerprint(other.path)
    found = open_repository(repo.path, cache=cache)
    (_, here), _ = resolve(found, ["main", "."])
    assert found.path == repo.path
    assert here.tree == repo.git("rev-parse", "main^{tree}")
    assert fingerprint(other.path) == before


def test_read_only_repository_of_another_user(open_to_all: Path) -> None:
    repo = make_repo(open_to_all / "project")
    repo.commit("first", KERNEL)
    repo.write({"kernels/ffa/__init__.py": "SPEED = 7\n"})
    subprocess.run(["chmod", "-R", "a-w", str(repo.path)], check=True)
    before = fingerprint(repo.path)

    def job() -> str:
        repository = open_repository(repo.path, cache=open_to_all / "cache")
        sides, _ = resolve(repository, ["main", "."])
        with checkouts(repository, sides, run="r") as made:
            writable = os.access(repo.path / ".git", os.W_OK)
            speeds = [Path(one.path, "kernels/ffa/__init__.py").read_text().strip() for one in made]
        return f"{speeds} {writable}"

    assert as_somebody_else(job) == "['SPEED = 1', 'SPEED = 7'] False"
    assert fingerprint(repo.path) == before
