"""`--contain`: what code under test can reach in the sandbox. It starts and ends as it does without one."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.programs import program
from tests.sandboxes import needs_sandbox
from tests.simulated.lab import Lab
from tests.simulated.planted import load
from tests.simulated.scenario import Scenario, Time
from tests.tinyrepo import begun, source, tiny_repo


def fake(folder: Path, text: str) -> str:
    return str(program(folder / "bwrap", text).parent)


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
    clashes = {
        ("--contain", "never"): "--untrusted needs --contain always",
        ("--timer", "graph"): "--timer graph: --untrusted changes the inputs",
        ("--regime", "sustained"): "--regime sustained: --untrusted changes the inputs",
    }
    for words, why in clashes.items():
        clash = lab.abprof("main", "fast", "--untrusted", *words, "--quick")
        assert (clash.code, why in clash.err) == (2, True), clash.err


# A bubblewrap that starts everything, and contains nothing.
LETS = (
    'case "$1" in --version) echo "bubblewrap 9"; exit;; esac; while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
)


def test_what_a_profiler_starts_is_never_contained_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = fake(tmp_path / "bin", LETS)
    program(tmp_path / "bin" / "ncu", "echo Nsight Compute Command Line Profiler\necho Version 2025.1.0")
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


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly), (signal.SIGKILL, -signal.SIGKILL)]
)
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
