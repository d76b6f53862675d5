"""The doorway to child processes, against a worker that goes wrong on purpose."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from abprof.records import messages as wire
from abprof.system import processes as proc
from tests.simulated.client import CASE, WORKER, faulty
from tests.simulated.processes import alive, noted
from tests.simulated.scenario import Fault

Begin = Callable[..., proc.Worker]
TURN = wire.Turn("a", 1, "cpu_clock")
LONG = 120.0  # seconds that nothing here takes on the busiest machine


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """begin(fault, ...) starts a worker with these faults and opens an arm on it."""
    workers: list[proc.Worker] = []

    def make(*faults: Fault) -> proc.Worker:
        path = faulty(*faults).write(tmp_path / "scenario.json")
        worker = proc.Worker(
            [sys.executable, "-P", str(WORKER)],
            env={"PATH": os.environ["PATH"], "ABPROF_SIMULATED": str(path)},
            cwd=tmp_path,
            log=tmp_path / "log",
        )
        workers.append(worker)
        worker.call(wire.Start("cpu", "base"), LONG)
        worker.call(wire.Open("w", CASE, "a"), LONG)
        return worker

    yield make
    for worker in workers:
        worker.kill()


@pytest.mark.parametrize(
    ("do", "reason"),
    [
        ("exit:3", "ended with exit code 3"), ("crash", "killed by SIGSEGV"), ("kill", "killed by SIGKILL"),
        ("partial", "ended with exit code 0"), ("close", "closed its channel without ending"),
        ("garbage", "unreadable answer"), ("nan", "unreadable answer: JSON is malformed"),
        ("wrong_id", "answer to request 2, expected 3"), ("null", "Expected `float`, got `null`"),
        ("bigreply:70000000", "an answer of more than 64 MiB"),
    ],
)  # fmt: skip
def test_deaths(begin: Begin, do: str, reason: str) -> None:
    worker = begin(Fault(do, "turn"))
    with pytest.raises(proc.WorkerDied, match=reason) as caught:
        worker.call(TURN, LONG)
    assert not isinstance(caught.value, proc.WorkerHung)
    assert "\n" not in caught.value.reason
    assert not alive(worker.pid)
    with pytest.raises(proc.WorkerDied, match="has ended"):
        worker.call(TURN, LONG)


@pytest.mark.parametrize("do", ["hang", "stubborn", "sigstop"])
def test_hangs(begin: Begin, do: str) -> None:
    worker = begin(Fault(do, "turn"))
    began = time.monotonic()
    with pytest.raises(proc.WorkerHung, match="no answer for 1 s"):
        worker.call(TURN, 1)
    assert 1 <= time.monotonic() - began < LONG
    assert not alive(worker.pid)


def test_a_child_that_stopped_reading_does_not_stop_its_parent(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe holds (64 KiB): the cases of a large matrix in one `screen`."""
    monkeypatch.setattr(proc.worker, "READ_REQUEST", 1.0)
    worker = begin(Fault("sigstop", "turn"))
    worker.send(TURN)
    with pytest.raises(proc.WorkerHung, match="did not read its request"):
        worker.send(wire.Screen("w", [CASE] * 20_000))
    assert not alive(worker.pid)


def test_large_requests_and_replies_pass(begin: Begin) -> None:
    worker = begin(Fault("bigreply:50000000", "turn"))
    assert len(worker.call(wire.Screen("w", [CASE] * 20_000), LONG).skips) == 20_000
    assert worker.call(TURN, LONG).value == 1e6


@pytest.mark.parametrize("do", ["fork", "daemon"])
def test_what_a_worker_forks_dies_with_it(begin: Begin, tmp_path: Path, do: str) -> None:
    worker = begin(Fault(do, "turn"))
    worker.call(TURN, LONG)
    [child] = noted(tmp_path / "scenario.json", do)
    assert alive(child)
    worker.stop()
    assert not alive(child, wait=LONG)
    assert not alive(worker.pid)


@pytest.mark.parametrize("do", ["fork", "daemon"])
def test_a_death_is_seen_though_a_child_holds_the_pipe(begin: Begin, do: str) -> None:
    worker = begin(Fault(do, "phases"), Fault("crash", "turn"))
    worker.call(wire.Phases("a", 1), LONG)
    with pytest.raises(proc.WorkerDied, match="SIGSEGV"):  # and not: no answer for 120 s
        worker.call(TURN, LONG)


def test_a_flood_of_output_is_read_and_its_log_stays_small(begin: Begin, tmp_path: Path) -> None:
    worker = begin(Fault("print:200000000", "turn"))
    assert worker.call(TURN, LONG).value == 1e6
    worker.stop()
    assert proc.LOG_LIMIT <= (tmp_path / "log").stat().st_size < proc.LOG_LIMIT + 1000
    assert (tmp_path / "log").read_bytes().rstrip().endswith(b"the rest was thrown away]")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_nothing_is_left_open(begin: Begin) -> None:
    before = descriptors()
    for fault in (Fault("crash", "turn"), Fault("hang", "turn"), Fault("daemon", "turn")):
        worker = begin(fault)
        try:
            worker.call(TURN, 0.3)
        except proc.WorkerDied:
            pass
        worker.stop()
    end = time.monotonic() + LONG
    while descriptors() > before:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_cannot_be_started_is_a_death(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(proc.WorkerDied, match="could not be started"):
        proc.Worker([str(tmp_path / "nothing")], env={}, cwd=tmp_path, log=tmp_path / "log")
    assert descriptors() == before


def test_lines_of_a_tool_are_read_as_it_prints_them_and_it_ends_with_their_reader(tmp_path: Path) -> None:
    def lines(script: str, timeout: float = LONG) -> Iterator[str]:
        return proc.output_lines(["/bin/sh", "-c", script], timeout=timeout, env={"PATH": os.environ["PATH"]})

    printed = lines(f"echo $$ >{tmp_path}/pid; yes")
    assert [next(printed) for _ in range(3)] == ["y\n"] * 3
    printed.close()  # type: ignore[attr-defined]
    assert not alive(int((tmp_path / "pid").read_text()))
    with pytest.raises(proc.WorkerDied, match="sh ended with exit code 3"):
        list(lines("echo half; exit 3"))
    with pytest.raises(proc.WorkerHung, match=r"sh took more than 0\.2 s"):
        list(lines("sleep 1000", 0.2))
    with pytest.raises(proc.WorkerDied, match="could not be started"):
        list(proc.output_lines(["/nowhere"], timeout=1, env={}))
