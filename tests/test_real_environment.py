"""The environment of a real worker: odd folders, no secrets, private caches, no leftovers; and docs/TUTORIAL.md in its order."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gitrepo import ENVIRONMENT
from tests.tinyrepo import PACKAGE, ROOT, WORKLOAD, Done, abprof, abprof_afresh, source, tiny_repo

CELL = "tiny/n=4096"
QUICK = ("--quick", "--device", "cpu", "--no-peers", "--json")
TELLS = (
    PACKAGE
    + "\nimport json, sys; print('FOUND', json.dumps({**os.environ, 'cwd': os.getcwd(), 'path': sys.path}), flush=True)\n"
)
MINE = {"GITHUB_TOKEN": "ghp_1234567890", "MY_EDITOR": "vi", "PYTHONPATH": "/elsewhere", "GIT_DIR": "/elsewhere/.git",
        "DB_URL": "postgres://me:pass@host/db", "SOME": "ghp_0123456789", "CUDA_HOME": "/usr/local/cuda"}  # fmt: skip
# Looks for secrets in the environment of every process that it can see, and for what stands behind them in abprof's.
LOOKS = """
for process in Path("/proc").glob("[0-9]*"):
    try:
        seen, line = (process / "environ").read_bytes(), (process / "cmdline").read_bytes().split(b"\\0")
        if b"PLANTED" in seen or (b"abprof" in line and os.readlink(process / "cwd") == "@REPO@" and b"LAST=whole" not in seen):
            print("WRONG IN", line, flush=True)
    except OSError:
        pass
"""


def found(done: Done) -> dict[str, Any]:
    """Return the environment that the kernel package saw at its import."""
    log = (Path(done.run["run_dir"]) / "logs" / "worker-base-tiny.log").read_text()
    line = next(line for line in log.splitlines() if line.startswith("FOUND "))
    seen: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return seen


@pytest.mark.slow
def test_folders_with_blanks_quotes_and_letters_of_any_kind(tmp_path: Path) -> None:
    """The repository, the caches and the runs folder: compilers, ninja files and URIs all see such paths."""
    home = tmp_path / 'it\'s "mine" ünï 1%2 #3 {x}'
    repo = tiny_repo(home / "my repo's (copy)")
    repo.branch("fast")
    repo.commit("fast", {"kernels/tiny/tiny.c": source(110)})
    repo.checkout("main")
    runs = home / "my runs"
    done = abprof("main", "fast", *QUICK, "--runs-dir", str(runs), cwd=repo.path, home=home)
    assert done.statuses("base") == done.statuses("target") == {CELL: "ok"}
    assert Path(done.run["run_dir"]).parent == runs
    assert repo.git("status", "--porcelain", "--ignored") == ""


@pytest.mark.slow
@pytest.mark.parametrize("ci", [False, True])
def test_secrets_and_other_trees_are_kept_from_kernels(
    tmp_path: Path, ci: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand a worker gets all but secrets and variables that load other code; in CI or with --env clean, an allow-list."""
    for name, value in MINE.items():
        monkeypatch.setenv(name, value)
    repo = tiny_repo(tmp_path / "repo")
    repo.commit("tells", {"kernels/tiny/__init__.py": TELLS})
    options = ("--env", "clean") if ci else ()
    done = abprof("run", "main", *QUICK, *options, cwd=repo.path, home=tmp_path, GIT_DIR=str(repo.path / ".git"))
    seen = found(done)
    assert not {"GITHUB_TOKEN", "DB_URL", "SOME", "PYTHONPATH", "GIT_DIR"} & set(seen)
    assert "CUDA_HOME" in seen
    assert ("MY_EDITOR" in seen) == (not ci)
    withheld = done.run["withheld"]
    assert {"GITHUB_TOKEN", "DB_URL", "SOME"} <= {*withheld}
    assert ("MY_EDITOR" in withheld) == ci
    assert "ghp_1234567890" not in (Path(done.run["run_dir"]) / "run.json").read_text()
    assert not [entry for entry in seen["path"] if entry in ("", "/elsewhere", str(repo.path))]
    build = done.run["builds"][0]["path"]
    for name in (
        "TRITON_CACHE_DIR",
        "TORCH_EXTENSIONS_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "XDG_CACHE_HOME",
    ):
        assert seen[name].startswith(build), "private to this build"
    assert seen["cwd"].startswith(build)
    assert seen["HOME"].startswith(build) == ci
    assert Path(seen["HOME"]).is_dir()
    assert seen["CUDA_VISIBLE_DEVICES"] == "", "a run on the CPU shows no GPU"


@pytest.mark.slow
def test_a_package_that_looks_for_the_token_of_its_run_finds_none(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo")
    repo.commit("looks", {"kernels/tiny/__init__.py": PACKAGE + LOOKS.replace("@REPO@", str(repo.path))})
    secrets = {"GITHUB_TOKEN": "PLANTED", "MY_API_KEY": "PLANTED" * 300, "LAST": "whole"}
    done = abprof_afresh("run", "main", *QUICK, "--contain", "never", cwd=repo.path, home=tmp_path, **secrets)
    assert done.statuses("base") == {CELL: "ok"}
    assert "WRONG IN" not in (Path(done.run["run_dir"]) / "logs" / "worker-base-tiny.log").read_text()


def test_one_branch_alone_with_variables_that_reach_builder_and_workers(tmp_path: Path) -> None:
    """Its package has an environment of its own, and so has the server that forks its workers. An arm is made once by
    the builder, once to be checked and timed, and once to be profiled: one that takes long to make does not move."""
    repo, made = tiny_repo(tmp_path / "repo"), tmp_path / "made"
    settings = """
schema = 1
[environment]
set = {FROM_FILE = "1"}
allow = ["LET_THROUGH_TOKEN"]
[kernels.tiny]
env = {MY_CACHE = "{build_dir}/cache", WHO = "tree of {side}", LITERAL = "${{HOME}}"}
"""
    prepare = "def prepare(kernel, variant, case, inputs):\n"
    slow = f"{prepare}    import time\n    time.sleep(0.3)\n    open({str(made)!r}, 'a').write('x')\n"
    own = "assert b'WHO=tree of base' in Path('/proc/self/environ').read_bytes(), 'not at the start'\n"
    repo.commit("own", {"abprof.toml": settings, "kernels/tiny/__init__.py": TELLS + own,
                        "workloads/tiny.py": WORKLOAD.replace(prepare, slow)})  # fmt: skip
    done = abprof("run", "main", *QUICK, cwd=repo.path, home=tmp_path, LET_THROUGH_TOKEN="x")
    assert done.code == 0
    assert done.statuses("base") == {CELL: "ok"}
    assert {proof["forked"] for proof in done.run["proofs"]} == {True}
    assert done.run["comparisons"] == []
    assert done.run["observations"][0]["metrics"]["wall"]["value"] > 0
    assert done.run["observations"][0]["check"]["ok"]
    assert made.read_text() == "xxx"
    seen = found(done)
    assert (seen["FROM_FILE"], seen["LET_THROUGH_TOKEN"], seen["WHO"]) == ("1", "x", "tree of base")
    assert seen["LITERAL"] == "${HOME}"
    assert seen["MY_CACHE"] == f"{done.run['builds'][0]['path']}/out/cache"
    log = (Path(done.run["run_dir"]) / "logs" / "build-base-tiny.log").read_text()
    assert '"FROM_FILE": "1"' in log


PAGE = (ROOT / "docs" / "TUTORIAL.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE, re.M | re.S)
ENV = {"ABPROF_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def test_the_tutorial_is_one_page() -> None:
    assert len(PAGE.split()) < 700


@pytest.mark.slow
def test_the_tutorials_commands_run(tmp_path: Path) -> None:
    """Any verdict is right here, for it depends on the machine; the budgets are shorter than the page's."""
    repo, home = tmp_path / "repo", tmp_path / "home"
    repo.mkdir()
    home.mkdir()
    for language, text in BLOCKS:
        if language == "python":
            first, _, rest = text.partition("\n")
            (repo / first.removeprefix("# ")).write_text(rest)
            continue
        for line in text.splitlines():
            if not line.startswith("abprof "):
                subprocess.run(shlex.split(line), cwd=repo, env={"PATH": "/usr/bin:/bin", **ENVIRONMENT}, check=True)
                continue
            quicker = re.sub(r"--budget \d+m", "--budget 4s", line)
            run = max((repo / "runs").glob("*"), default=repo)
            words = [str(run) if word == "RUN" else word for word in shlex.split(quicker)[1:]]
            done = abprof(*words, cwd=repo, home=home, **ENV)
            assert done.code in {0, 1, 4}, (line, done)
    (compared,) = (repo / "runs").glob("*-main-faster")
    assert (compared / "report.html").exists()
    statuses = {row["status"] for row in json.loads((compared / "run.json").read_text())["observations"]}
    assert statuses == {"ok"}
