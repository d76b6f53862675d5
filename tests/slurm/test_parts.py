"""What the Slurm executor is made of, without a Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from abprof.fleet.messages import Shard
from abprof.fleet.slurm import Mailbox, Options, SlurmExecutor, read_options
from abprof.records.errors import AbprofError
from abprof.system import checksummed as sealed
from tests import runs
from tests.tinyrepo import ROOT


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": "1"}, "unknown field `gpus`"),
        ({"parallel": "0"}, "parallel and cpus must be 1 or more"),
        ({"cpus": "many"}, "Expected `int | null`"),
        ({"time": "soon"}, "'soon' is not a duration"),
        ({"partition": "gpus\ntouch pwned"}, "invalid job option"),
        ({"constraint": "é"}, "invalid job option"),
    ],
)
def test_what_is_no_option_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(AbprofError) as refused:
        read_options(given, "[executor.slurm]")
    assert said in refused.value.line
    assert refused.value.where.startswith("[executor.slurm]")


# ---------------------------------------------------------------- the shared folder


def test_lines_are_given_out_once_and_whole(tmp_path: Path) -> None:
    box = Mailbox(tmp_path, "7")
    assert box.new_lines() == []
    with box.lines.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert box.new_lines() == [b"one"]
        assert box.new_lines() == []
        file.write(b"o\n\nthree\n")
        assert box.new_lines() == [b"two", b"", b"three"]


# ---------------------------------------------------------------- what a job runs


def job(folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ABPROF_STATE_DIR": str(folder), "ABPROF_CACHE_DIR": str(folder)}
    argv = [sys.executable, "-P", "-m", "abprof.fleet.slurm", str(folder), "7"]
    return subprocess.Popen(argv, env={**env, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def posted(folder: Path) -> Mailbox:
    box = Mailbox(folder, "7")
    shard = Shard(number=7, run=runs.run(), arms={}, budget=1.0, repository=str(folder), logs=str(folder / "logs"))
    box.post(sealed.text(shard))
    (folder / "alive").touch()
    return box


def test_a_job_that_is_started_a_second_time_measures_nothing(tmp_path: Path) -> None:
    box = posted(tmp_path)
    assert job(tmp_path, SLURM_RESTART_COUNT="1").communicate(timeout=120) == (b"", b"")
    assert box.new_lines() == []
    assert box.last_words().startswith("started a second time by the queue")


def test_a_job_that_begins_when_abprof_is_long_gone_measures_nothing(tmp_path: Path) -> None:
    box = posted(tmp_path)
    before = (tmp_path / "alive").stat().st_mtime - 3600
    os.utime(tmp_path / "alive", (before, before))
    ran = job(tmp_path)
    assert ran.communicate(timeout=120) == (b"", b"")
    assert ran.returncode == 1
    assert box.new_lines() == []
    assert box.last_words().endswith("nothing is measured")


def test_a_jobs_news_are_lines_of_its_file_and_what_is_printed_is_in_its_log(tmp_path: Path) -> None:
    box = posted(tmp_path)
    ran = job(tmp_path)
    assert ran.communicate(timeout=120) == (b"", b"")
    assert ran.returncode == 2, "no repository here"
    (last,) = box.new_lines()
    assert b'"why":"refused"' in last
    assert "not a git repository" in box.last_words()


# ---------------------------------------------------------------- what is not there


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AbprofError, match="sbatch is not on PATH"):
        SlurmExecutor(Options(), tmp_path, tmp_path / "logs", [], print).__enter__()
    assert not (tmp_path / "logs").exists()


def test_without_submitit_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "srun", "squeue", "scancel"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(AbprofError, match=r"submitit is not installed \(pip install 'abprof\[slurm\]'\)"):
        SlurmExecutor(Options(), tmp_path, tmp_path / "logs", [], print).__enter__()
