"""A worker's environment: the variables it gets, and the secrets that real child processes do not find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from abprof.builds import environment
from abprof.records.errors import AbprofError
from abprof.system.config_file import fill
from tests.tinyrepo import PACKAGE, abprof_afresh, tiny_repo

ROOT = str(Path(__file__).parents[1])
SECRETS = {"GITHUB_TOKEN": "ghp_open", "MY_SECRET": "open" * 2000}
# A parent with secrets, and the child that it starts and that looks for them.
PARENT = """
import json, os, subprocess, sys
from abprof.builds import environment
environment.scrub_secrets()
child = subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True, check=True)
print(json.dumps({"left": os.environ.get("GITHUB_TOKEN"),
                  "child": json.loads(child.stdout)}))
"""
CHILD = """
import json, os
seen = {}
try:
    with open(f"/proc/{os.getppid()}/environ", "rb") as file:
        seen["environ"] = file.read(1 << 20).decode(errors="replace")
except OSError as error:
    seen["environ"] = f"refused: {error.errno}"
print(json.dumps(seen))
"""


def looked() -> dict[str, dict[str, str]]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": ROOT, **SECRETS, "LAST": "kept"}
    done = subprocess.run(
        [sys.executable, "-c", PARENT, CHILD], env=env, cwd="/", capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def test_a_child_that_reads_its_parents_environment_finds_no_secret() -> None:
    found = looked()
    assert found["left"] == SECRETS["GITHUB_TOKEN"]
    seen = found["child"]["environ"]
    assert not [value for value in SECRETS.values() if value in seen]
    if not seen.startswith("refused"):  # root may read it
        assert "LAST=kept" in seen, "what comes after what was wiped is whole"
        assert f"PATH={os.environ['PATH']}" in seen


# Looks at the environment of every process that it can see.
LOOKS = (
    PACKAGE
    + """
from pathlib import Path as _Path
_seen = []
for _process in _Path("/proc").glob("[0-9]*"):
    try:
        if b"PLANTED" in (_process / "environ").read_bytes():
            _seen.append((_process / "cmdline").read_bytes().replace(b"\\0", b" ").decode())
    except OSError:
        pass
print("SECRETS IN", _seen, flush=True)
"""
)


@pytest.mark.slow
def test_a_package_that_looks_for_the_token_of_its_run_finds_none(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo")
    repo.commit("looks", {"kernels/tiny/__init__.py": LOOKS})
    options = ("--quick", "--device", "cpu", "--no-peers", "--json", "--contain", "never")
    done = abprof_afresh(
        "run", "main", *options, cwd=repo.path, home=tmp_path, GITHUB_TOKEN="PLANTED", MY_API_KEY="PLANTED"
    )
    log = (Path(done.run["run_dir"]) / "logs" / "worker-base-tiny.log").read_text()
    assert "SECRETS IN []" in log, log


MINE = {
    "PATH": "/bin", "HOME": "/home/me", "EDITOR": "vi", "GITHUB_TOKEN": "x", "MY_API_KEY": "x",
    "DB_URL": "postgres://me:secret@host/db", "SOME": "ghp_0123456789", "PYTHONPATH": "/other/tree",
    "GIT_DIR": "/repo/.git", "CUDA_HOME": "/usr/local/cuda",
}  # fmt: skip


def test_by_hand_everything_but_secrets() -> None:
    kept, withheld = environment.clean(MINE, "user")
    assert set(kept) == {"PATH", "HOME", "EDITOR", "CUDA_HOME"}
    assert withheld == ("DB_URL", "GITHUB_TOKEN", "MY_API_KEY", "SOME")


def test_clean_is_an_allow_list() -> None:
    kept, withheld = environment.clean(MINE, "clean", allow=("EDITOR",))
    assert set(kept) == {"PATH", "EDITOR", "CUDA_HOME"}
    assert {"GITHUB_TOKEN", "HOME"} <= set(withheld)
    assert "EDITOR" not in environment.clean(MINE, "clean")[0]


def test_places_are_filled_in_and_others_refused() -> None:
    assert fill({"A": "{build_dir}/x"}, "abprof.toml", build_dir="/b") == {"A": "/b/x"}
    with pytest.raises(AbprofError) as error:
        fill({"A": "{home}"}, "abprof.toml", build_dir="/b")
    assert error.value.line == (
        "abprof.toml: A = '{home}': the only placeholders are {build_dir} (write {{ and }} for literal braces)"
    )
    assert fill({"A": "${{HOME}}"}, "abprof.toml", build_dir="/b") == {"A": "${HOME}"}
