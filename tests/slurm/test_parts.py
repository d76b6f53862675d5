"""What the Slurm executor is made of, without a Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from abprof.fleet import batch, slurm_jobs
from abprof.fleet.mailbox import Mailbox, sign_of_life
from abprof.fleet.messages import Shard
from abprof.fleet.slurm import SlurmExecutor
from abprof.fleet.slurm_jobs import Options, Seen, options, parameters
from abprof.records.errors import AbprofError
from abprof.system import checksummed as sealed
from tests import runs
from tests.tinyrepo import ROOT


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": "1"}, "unknown field `gpus`"),
        ({"parallel": "0"}, "parallel and cpus begin at 1"),
        ({"cpus": "many"}, "Expected `int | null`"),
        ({"time": "soon"}, "'soon' is not a duration"),
        ({"partition": "gpus\ntouch pwned"}, "is no option of a job"),
        ({"constraint": "é"}, "is no option of a job"),
    ],
)
def test_what_is_no_option_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(AbprofError) as refused:
        options(given, "[executor.slurm]")
    assert said in refused.value.line
    assert refused.value.where.startswith("[executor.slurm]")


def test_the_words_of_a_command_line_are_options() -> None:
    given = {"gres": "gpu:h200:1", "cpus": "8", "exclusive": "true", "parallel": "16", "memory": "64G", "time": "2h"}
    found = options(given, "here")
    assert found == Options(gres="gpu:h200:1", cpus=8, exclusive=True, parallel=16, memory="64G", time="2h")
    asked = parameters(found, "abprof-1", 120, Path("/shared"), ["HOME", "PATH"])
    assert (asked["gres"], asked["exclusive"], asked["cpus_per_task"], asked["mem"]) == ("gpu:h200:1", True, 8, "64G")
    assert asked["additional_parameters"] == {"chdir": "/shared", "export": "HOME,PATH", "ntasks": 1}
    assert "constraint" not in asked, "what is not said is the site's"
    assert "gres" not in parameters(options({"gres": ""}, "here"), "n", 1, Path("/"), [])


@pytest.mark.parametrize(
    ("seen", "over", "living"),
    [
        (Seen("PENDING", 0, "", "Priority"), "", True),
        (Seen("RUNNING", 0, "n1", "None"), "", True),
        (Seen("COMPLETING", 0, "n1", "None"), "", True),
        (Seen("COMPLETED", 0, "n1", "None"), "COMPLETED", False),
        (Seen("TIMEOUT", 0, "n1", "TimeLimit"), "TIMEOUT on n1", False),
        (Seen("CANCELLED", 0, "", "None"), "CANCELLED on no node", False),
        (Seen("PENDING", 1, "", "BeginTime"), "queued a second time", True),
        (Seen("RUNNING", 1, "n2", "None"), "queued a second time", True),
    ],
)
def test_when_a_job_is_over(seen: Seen, over: str, living: bool) -> None:
    assert seen.over.startswith(over)
    assert bool(seen.over) == bool(over)
    assert seen.living == living


def test_a_line_of_squeue_is_read_by_its_columns() -> None:
    cells = ("12_3", "PENDING", "1", "", "launch failed requeued held")
    line = "".join(cell.ljust(width) for cell, width in zip(cells, slurm_jobs._COLUMNS.values(), strict=True))
    assert dict(slurm_jobs._rows(line + "\n")) == {"12_3": Seen("PENDING", 1, "", "launch failed requeued held")}


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


def test_a_shard_is_posted_once(tmp_path: Path) -> None:
    box = Mailbox(tmp_path, "7")
    box.post(b"{}")
    with pytest.raises(FileExistsError):
        box.post(b"{}")


def test_the_last_words_are_the_last_that_say_anything(tmp_path: Path) -> None:
    box = Mailbox(tmp_path, "7")
    assert box.last_words() == ""
    box.log.write_bytes(b"Traceback\nMemoryError: \xff no room\n\n")
    assert box.last_words() == "MemoryError: \ufffd no room"


# ---------------------------------------------------------------- what a job runs


def job(folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ABPROF_STATE_DIR": str(folder), "ABPROF_CACHE_DIR": str(folder)}
    argv = [sys.executable, "-P", "-m", "abprof.fleet.batch", str(folder), "7"]
    return subprocess.Popen(argv, env={**env, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def posted(folder: Path) -> Mailbox:
    box = Mailbox(folder, "7")
    shard = Shard(number=7, run=runs.run(), arms={}, budget=1.0, repository=str(folder), logs=str(folder / "logs"))
    box.post(sealed.dump(shard))
    sign_of_life(folder)
    return box


def test_a_job_that_is_started_a_second_time_measures_nothing(tmp_path: Path) -> None:
    box = posted(tmp_path)
    assert job(tmp_path, SLURM_RESTART_COUNT="1").communicate(timeout=120) == (b"", b"")
    assert box.new_lines() == []
    assert box.last_words() == batch.AGAIN


def test_a_job_that_begins_when_abprof_is_long_gone_measures_nothing(tmp_path: Path) -> None:
    box = posted(tmp_path)
    before = (tmp_path / "alive").stat().st_mtime - 3600
    os.utime(tmp_path / "alive", (before, before))
    ran = job(tmp_path)
    assert ran.communicate(timeout=120) == (b"", b"")
    assert ran.returncode == 1
    assert box.new_lines() == []
    assert box.last_words() == batch.LEFT


def test_a_jobs_news_are_lines_of_its_file_and_what_is_printed_is_in_its_log(tmp_path: Path) -> None:
    box = posted(tmp_path)
    ran = job(tmp_path)
    assert ran.communicate(timeout=120) == (b"", b"")
    assert ran.returncode == 2, "no repository here"
    (last,) = box.new_lines()
    assert b'"why":"refused"' in last
    assert "not a git repository" in box.last_words()


def test_a_job_ends_ten_minutes_after_the_last_sign_of_abprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By this machine's clock, whatever that of the folder's server shows; here the server's stands still once abprof is gone."""
    alive, ended = tmp_path / "alive", list[float]()

    class Clock:
        now = 1000.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds
            if self.now < 4600:
                alive.touch()
                os.utime(alive, (self.now - 900, self.now - 900))

    clock = Clock()
    monkeypatch.setattr(batch, "time", clock)
    monkeypatch.setattr(batch.os, "kill", lambda pid, number: ended.append(clock.now))
    batch._end_when_alone(alive)
    assert len(ended) == 1
    assert 5190 <= ended[0] <= 5210


def test_a_job_that_is_alone_is_told_to_end(tmp_path: Path) -> None:
    code = f"""
import threading, time
from pathlib import Path
from abprof.shards import batch
batch._ALONE_AFTER, batch._LOOKS_EVERY = 0.1, 0.05
threading.Thread(target=batch._end_when_alone, args=(Path({str(tmp_path / "alive")!r}),), daemon=True).start()
time.sleep(600)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False, timeout=120)
    assert done.returncode == -15
    assert done.stderr == b"nothing was heard of abprof for 0 s: ended\n"


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
