"""The executors without a cluster: their options, their files, and a missing cluster."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from abprof.fleet import read_options
from abprof.fleet.executors import Executor, Lost, SlurmExecutor
from abprof.fleet.messages import Shard, read_news
from abprof.records.errors import AbprofError
from tests import runs
from tests.simulated.lab import Lab
from tests.simulated.scenario import Scenario, Time, Workload


def place(kind: str, **given: str) -> Any:
    file = SimpleNamespace(environment=SimpleNamespace(allow=()))
    options = SimpleNamespace(executor=kind, executor_options=given)
    return SimpleNamespace(options=options, file=file, device=SimpleNamespace(kind="cuda"))


def read(kind: str, **given: str) -> Any:
    return read_options(place(kind, **given))


def test_options() -> None:
    assert read("") is None
    assert read("slurm", parallel="3", gres="", exclusive="true").parallel == 3
    assert read("ray://head:10001", gpu="H200", cpus="0.5").cpus == 0.5


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("slurm", {"gpus": "1"}, "unknown field `gpus`"),
        ("slurm", {"parallel": "0"}, "parallel and cpus must be positive"),
        ("slurm", {"cpus": "many"}, "Expected `int | null`"),
        ("ray", {"zone": "a"}, "unknown field `zone` (options: gpu, cpus)"),
        ("ray", {"cpus": "0"}, "parallel and cpus must be positive"),
    ],
)
def test_an_option_that_there_is_not_is_one_line(kind: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(AbprofError) as refused:
        read(kind, **given)
    assert said in refused.value.line
    assert refused.value.where == f"--executor {kind}"


def shard(folder: Path) -> Shard:
    given = {"repository": str(folder), "logs": str(folder / "logs" / "shard-7")}
    return Shard(number=7, run=runs.run(), arms={}, budget=1.0, **given)


class Here(Executor):
    """Programs of this machine, which nothing holds a lease for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(place(""), folder / "logs", print)
        self.ran: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, shard: Shard, slot: str, argv: Any, log: Path) -> None:
        del slot
        home = str(self.folder)
        env = {**os.environ, "ABPROF_STATE_DIR": home, "ABPROF_CACHE_DIR": home}
        with log.open("ab") as out:
            self.ran[shard.number] = subprocess.Popen(argv, env=env, stdout=out, stderr=out)

    def gone(self) -> dict[int, str]:
        return {number: f"code {code}" for number, each in self.ran.items() if (code := each.poll()) is not None}

    def close(self) -> None:
        for each in self.ran.values():
            each.kill()


def all_news(executor: Executor) -> Iterator[bytes | Lost]:
    while True:
        for number, message in executor.news(1.0):
            assert number == 7
            yield message
            if isinstance(message, Lost):
                return


def test_news_come_by_a_file_and_what_is_printed_is_in_the_log(tmp_path: Path) -> None:
    """No repository here."""
    with Here(tmp_path) as executor:
        executor.submit(shard(tmp_path), "")
        *news, lost = all_news(executor)
    assert isinstance(news[-1], bytes)
    ended = read_news(news[-1]).ended
    assert ended
    assert ended.why == "refused"
    assert lost == Lost("code 2: " + (tmp_path / "logs/shard-7/program.log").read_text().splitlines()[-1])
    assert "not a git repository" in ended.reason
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["shard-7"]


def test_lines_are_given_out_once_and_whole(tmp_path: Path) -> None:
    with Here(tmp_path) as executor:
        executor._read[7] = 0
        assert executor._new_lines(7) == []
        with (executor.folder / "7.jsonl").open("ab", buffering=0) as file:
            file.write(b"one\ntw")
            assert executor._new_lines(7) == [b"one"]
            assert executor._new_lines(7) == []
            file.write(b"o\n\nthree\n")
            assert executor._new_lines(7) == [b"two", b"", b"three"]


def test_a_job_gets_what_the_options_and_the_environment_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PLAIN": "1", "A-B": "2", "NIGHTLY_TOKEN": "ghp_0123456789"})
    executor = SlurmExecutor(place("slurm", cpus="2", time="10m", exclusive="true"), tmp_path, print)
    argv = executor._sbatch(60.0, tmp_path / "a%j")
    given = {"--gres=gpu:1", "--cpus-per-task=2", "--time=10", "--exclusive", "--export=PLAIN", "--no-requeue"}
    assert given <= set(argv)
    assert f"--output={tmp_path}/a%%j" in argv


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AbprofError, match=r"Slurm would refuse a job with these options: .*sbatch"):
        SlurmExecutor(place("slurm"), tmp_path / "logs", print).__enter__()
    assert not list((tmp_path / "logs").iterdir())


def test_without_ray_a_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, Scenario(workloads={"w": Workload("k", {"default": {"n": [1]}})}, times=[Time(ns=1e6)]))
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "ray.py").write_text("raise ImportError('No module named ray')\n")
    known = lab.environment()
    path = f"{tmp_path / 'without'}:{known['PYTHONPATH']}"
    monkeypatch.setattr(lab, "environment", lambda: {**known, "PYTHONPATH": path})
    done = lab.finish(lab.start("main", "fast", "--executor", "ray"))
    assert done.code == 2
    assert "--executor ray: Ray is not installed (No module named ray) (pip install 'abprof[ray]')" in done.err
    assert "Traceback" not in done.err
    assert lab.left_behind() == []
