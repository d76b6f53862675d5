"""`--contain`: what code under test can reach in the sandbox. It starts and ends as it does without one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from abprof.system import paths
from tests.sandboxes import needs_sandbox, sandbox
from tests.simulated.lab import Lab
from tests.simulated.planted import load
from tests.simulated.scenario import Scenario, Time
from tests.tinyrepo import PACKAGE, abprof_afresh, begun, source, tiny_repo

# Try the attacks of hostile code, and print the results as JSON.
HOSTILE = """
import json, os, socket, sys
from pathlib import Path
asked = json.loads(sys.argv[1])
did = {}
for path in asked["write"]:
    try:
        Path(path).write_text("mine")
        did[path] = "written"
    except OSError as error:
        did[path] = "refused"
for path in asked["read"]:
    try:
        did[f"read {path}"] = [p.name for p in Path(path).iterdir()] if Path(path).is_dir() else Path(path).read_text()
    except OSError as error:
        did[f"read {path}"] = "refused"
try:
    os.kill(asked["parent"], 0)
    did["kill"] = "reached"
except ProcessLookupError:
    did["kill"] = "no process"
try:
    socket.create_connection(("127.0.0.1", asked["port"]), 2).close()
    did["network"] = "reached"
except OSError:
    did["network"] = "refused"
did["processes"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
did["secrets"] = [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 1
                  and b"PARENTS_OWN" in Path(f"/proc/{name}/environ").read_bytes()]
did["disks"] = [name for name in os.listdir("/dev") if name.startswith(("sd", "vd", "nvme", "mem", "kmsg"))]
did["capabilities"] = Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0]
did["temporary"] = os.environ["TMPDIR"]
print(json.dumps(did))
"""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def tried(argv: list[str], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert not done.returncode, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


@needs_sandbox
@pytest.mark.parametrize("network", [False, True])
def test_hostile_code_reaches_its_own_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, network: bool
) -> None:
    home, own, others, room = (tmp_path / name for name in ("home", "own", "others", "room"))
    for folder in (home / ".ssh", own / "src", others, room):
        folder.mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("a key")
    (home / ".netrc").write_text("a password")
    for kept in (others / "kernel.so", own / "kernel.so"):
        kept.write_text("base's")
    fixed = [own / "src", own / "kernel.so"]  # of a worker, which another wrote before
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ABPROF_STATE_DIR", str(tmp_path / "state"))
    key = paths.build_key_file()
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, 32)
    monkeypatch.setenv("PARENTS_OWN", "a token")
    writes = [own / "a", room / "b", others / "kernel.so", others / "new", home / ".bashrc", Path("/etc/abprof-test")]
    writes += [own / "src" / "k.py", own / "kernel.so", tmp_path / "state" / "build-key"]
    asked = {
        "write": [str(path) for path in writes],
        "read": [str(home / ".ssh"), str(home / ".netrc"), str(others / "kernel.so"), str(key)],
        "parent": os.getpid(),
        "port": port,
    }
    env = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command = [sys.executable, "-c", HOSTILE, json.dumps(asked)]
    argv, behind = sandbox().around(
        command, env, own=own, temporary=tmp_path / "t", writable=[room], fixed=fixed, network=network
    )
    did = tried(argv, behind)
    assert [did[str(path)] for path in writes] == ["written", "written", *["refused"] * 7]
    assert did[f"read {home}/.ssh"] == []
    assert {did[f"read {home}/.netrc"], did[f"read {key}"]} <= {"", "refused"}
    assert did[f"read {others}/kernel.so"] == "base's", "what others built can be read and not written"
    assert (did["kill"], did["network"]) == ("no process", "reached" if network else "refused")
    assert did["processes"] == [1, 2]
    assert (did["secrets"], did["disks"], int(did["capabilities"], 16)) == ([], [], 0)
    assert (others / "kernel.so").read_text() == "base's"


# ---------------------------------------------------------------- when there is one


def fake(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "bwrap").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bwrap").chmod(0o755)
    return str(folder)


REFUSES = "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"
# Run trial commands but no worker, like a machine whose driver fails in a namespace.
NO_WORKERS = 'case "$*" in *simulated*|*run_worker*) echo "no device in here"; exit 9;; esac'


SPEEDS = Scenario(workloads={"w": load(["a"])}, times=[Time(ns=1e6)])


@pytest.mark.parametrize(
    ("tool", "why"), [(REFUSES, "does not start"), (NO_WORKERS, "cannot use simulated")], ids=["a", "b"]
)
def test_where_it_does_not_start_the_run_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, why: str
) -> None:
    monkeypatch.setenv("PATH", fake(tmp_path / "bin", tool), prepend=os.pathsep)
    lab = Lab(tmp_path, SPEEDS)
    result = lab.abprof("main", "fast", "--env", "clean", "--quick")
    assert result.run.status == "complete"
    assert (result.run.options.contain, result.run.options.sandbox) == ("auto", "")
    (said,) = [line for line in result.run.notes if line.startswith("not contained: ")]
    assert why in said
    for words in (("--contain", "always"), ("--untrusted",)):
        refused = lab.abprof("main", "fast", *words, "--quick")
        assert refused.code == 2
        assert why in refused.err
    clash = lab.abprof("main", "fast", "--untrusted", "--contain", "never", "--quick")
    assert (clash.code, "--untrusted needs --contain always" in clash.err) == (2, True)


# A bubblewrap that starts everything, and contains nothing.
LETS = (
    'case "$1" in --version) echo "bubblewrap 9"; exit;; esac; while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
)


def test_what_a_profiler_starts_is_never_contained_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = fake(tmp_path / "bin", LETS)
    (tmp_path / "bin" / "ncu").write_text(
        "#!/bin/sh\necho Nsight Compute Command Line Profiler\necho Version 2025.1.0\n"
    )
    (tmp_path / "bin" / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", tools, prepend=os.pathsep)
    lab = Lab(tmp_path, SPEEDS)
    refused = lab.abprof("main", "fast", "--contain", "always", "--probe", "ncu", "--quick")
    assert refused.code == 2
    assert "--contain always: what --probe ncu looks at runs for a profiler, outside of the sandbox" in refused.err
    by_itself = lab.abprof("main", "fast", "--env", "clean", "--probe", "ncu", "--quick")
    assert by_itself.run.options.sandbox == "bubblewrap 9", by_itself.err
    (said,) = [line for line in by_itself.run.notes if line.startswith("not contained: ")]
    assert said.startswith("not contained: what --probe ncu looks at")


def test_a_continued_run_was_in_a_sandbox_if_all_its_parts_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake(tmp_path / "bin", LETS), prepend=os.pathsep)
    lab = Lab(tmp_path, SPEEDS)
    first = lab.abprof("main", "fast", "--env", "clean", "--quick")
    assert first.run.options.sandbox == "bubblewrap 9"
    (tmp_path / "bin" / "bwrap").write_text(f"#!/bin/sh\n{REFUSES}\n")
    again = lab.command("rerun", str(first.folder), "--repo", str(lab.repo.path))
    assert again.run.status == "complete", again.err
    assert again.run.options.sandbox == ""
    assert any(line.startswith("not contained: ") for line in again.run.notes)


# ---------------------------------------------------------------- a whole run

SPOILS = """
import json as _json
from pathlib import Path as _Path
_done = {}
for _path in ([p for p in _Path(os.environ["ABPROF_BUILD_DIR"]).parents[2].glob("*/*/out/*.so")]
              + [_Path("REPO/planted"), _Path("REPO/.git/hooks/planted")]):
    if str(_path.parents[2]) == str(_Path(os.environ["ABPROF_BUILD_DIR"]).parents[1]):
        continue
    try:
        with open(_path, "ab") as _file:
            _file.write(b"spoilt")
        _done[str(_path)] = "written"
    except OSError:
        _done[str(_path)] = "refused"
print("TRIED", _json.dumps(_done), flush=True)
"""


@needs_sandbox
@pytest.mark.slow
def test_a_target_that_would_spoil_the_base_gets_nowhere(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo", 100)
    repo.branch("hostile")
    spoils = SPOILS.replace("REPO", str(repo.path))
    repo.commit("hostile", {"kernels/tiny/__init__.py": PACKAGE + spoils, "kernels/tiny/tiny.c": source(50)})
    options = ("--quick", "--device", "cpu", "--no-peers", "--json", "--env", "clean", "--check", "outside")
    done = abprof_afresh("main", "hostile", *options, cwd=repo.path, home=tmp_path)
    assert done.run["options"]["sandbox"] == sandbox().version
    assert done.statuses("base") == done.statuses("target") == {"tiny/n=4096": "ok"}
    log = (Path(done.run["run_dir"]) / "logs" / "worker-target-tiny.log").read_text()
    tries = json.loads(next(line for line in log.splitlines() if line.startswith("TRIED")).removeprefix("TRIED "))
    assert set(tries.values()) == {"refused"}
    assert len(tries) == 3, "base's library, and two files of the repository"
    assert not (repo.path / "planted").exists()
    assert {proof["forked"] for proof in done.run["proofs"]} == {True}
    assert "workers, 2 of them forked" in (Path(done.run["run_dir"]) / "report.md").read_text()


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_run_that_is_ended_leaves_no_process_in_a_sandbox(tmp_path: Path, number: int, code: int) -> None:
    repo = tiny_repo(tmp_path / "repo", 100)
    repo.branch("same")
    repo.commit("same", {"kernels/tiny/tiny.c": source(100) + "// the same\n"})
    options = ("--epochs", "99", "--device", "cpu", "--no-peers", "--contain", "always", "--precision", "0.01")
    process = begun("main", "same", *options, cwd=repo.path, home=tmp_path)
    while not any(path.read_bytes().count(b"\n") > 1 for path in repo.path.glob("runs/*/rounds.jsonl")):
        assert process.poll() is None
        time.sleep(0.1)
    assert len(of(tmp_path)) > 3
    process.send_signal(number)
    assert process.wait(60) == code
    end = time.monotonic() + 60
    while of(tmp_path) and number == signal.SIGKILL and time.monotonic() < end:
        time.sleep(0.1)
    assert of(tmp_path) == []


def of(folder: Path) -> list[list[str]]:
    """Command lines of the processes that work in the folder."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if any(f"{folder}/" in word for word in line)]
