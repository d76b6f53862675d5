"""`abprof BASE . --watch`: every save is answered by one epoch of a fresh target beside the base that is kept."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simulated.lab import Lab
from tests.simulated.processes import signal_another_thread
from tests.simulated.scenario import Fault, Scenario, Time, Workload

LOAD = Workload(kernel="k", presets={"default": {"case": ["a", "b"]}})
EVEN = Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)])


def slower(factor: float) -> Scenario:
    """A target whose time in one cell is multiplied by this factor."""
    return Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6), Time(factor=factor, side="target", cell="*case=a")])


class Watched:
    """A watching abprof and its output."""

    def __init__(self, lab: Lab, process: subprocess.Popen[str]) -> None:
        self.lab, self.process, self.err = lab, process, ""

    def answer(self) -> list[str]:
        """The lines of the next answer, without the last, which tells the time."""
        assert self.process.stdout
        lines: list[str] = []
        while not lines or not lines[-1].startswith("answered "):
            line = self.process.stdout.readline()
            assert line, (lines, self.process.stderr.read() if self.process.stderr else "")
            lines.append(line.rstrip("\n"))
        return lines[:-1]

    def save(self, text: str, where: str = "kernels/k/__init__.py") -> None:
        """Write the file at once: on a busy machine a slow write could outlast the wait for a save."""
        fresh = self.lab.folder / "saved.py"
        fresh.write_text(text)
        fresh.replace(self.lab.repo.path / where)


@contextmanager
def watched(lab: Lab, *args: str, end: Callable[[int, int], None] = os.kill) -> Iterator[Watched]:
    """`abprof main . --watch`, ended by ^C at the end of the block: then nothing of it is left."""
    process = lab.start("main", ".", "--watch", *args)
    it = Watched(lab, process)
    try:
        yield it
    finally:
        end(process.pid, signal.SIGINT)
        result = lab.finish(process)
        it.err = result.err
    assert result.code == 130, result.err
    assert "Traceback" not in result.err
    assert lab.left_behind() == []
    assert result.folder is None, "no run is kept of it"


def test_every_save_is_answered_beside_the_answer_before(tmp_path: Path) -> None:
    lab = Lab(tmp_path, EVEN)
    lab.repo.write({"kernels/k/__init__.py": "WHO = 'edited'\n"})
    with watched(lab) as it:
        assert it.answer() == [
            "w case=a: ~, one epoch: nothing large seen",
            "w case=b: ~, one epoch: nothing large seen",
        ]
        lab.set(slower(1.2))
        it.save("WHO = 'slower'\n")
        assert it.answer()[0] == (
            "w case=a: 20.0 % slower, one epoch: worth confirming (before: ~, one epoch: nothing large seen)"
        )
        lab.set(EVEN)
        it.save("WHO = 'mended'\n")
        assert it.answer()[0].startswith("w case=a: ~")


def test_a_save_that_breaks_the_kernel_is_answered_and_the_next_one_too(tmp_path: Path) -> None:
    lab = Lab(tmp_path, EVEN)
    lab.repo.write({"kernels/k/__init__.py": "WHO = 'edited'\n"})
    with watched(lab, "--only", "case=a") as it:
        assert len(it.answer()) == 1
        broken = Fault(do="crash_status", verb="open", side="target", text="no such tile")
        lab.set(Scenario(workloads={"w": LOAD}, times=[Time(ns=20e6)], faults=[broken]))
        it.save("WHO = 'broken'\n")
        (line,) = it.answer()
        assert line.startswith("w: broken, crash: no such tile (before: ~")
        lab.set(EVEN)
        it.save("WHO = 'whole'\n")
        (line,) = it.answer()
        assert line.startswith("w: ~, one epoch: nothing large seen (before: broken")


def test_a_saved_workload_is_said_not_to_judge_and_once_and_any_thread_may_take_the_signal(tmp_path: Path) -> None:
    lab = Lab(tmp_path, EVEN)
    lab.repo.write({"kernels/k/__init__.py": "WHO = 'edited'\n"})
    said = "the workloads changed: restart --watch to use the new ones"
    with watched(lab, "--only", "case=a", end=signal_another_thread) as it:
        assert len(it.answer()) == 1
        it.save("raise RuntimeError('broken')\n", "workloads/w.py")
        it.answer()
        it.save("WHO = 'again'\n")
        it.answer()
        it.save("# mended\n", "workloads/w.py")
        it.answer()
        time.sleep(1)  # until it waits for a save
    assert it.err.count(said) == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("main fast --watch", "main fast --watch: target must be the working tree (abprof BASE . --watch)"),
        ("main . --watch --epochs 4", "--epochs: has no effect with --watch"),
        ("main . --watch --json", "--json: has no effect with --watch"),
        ("main . --watch -- echo a,1", "--watch: has no effect on a command"),
    ],
)
def test_what_cannot_be_watched_is_one_line(tmp_path: Path, args: str, said: str) -> None:
    lab = Lab(tmp_path, EVEN)
    words = args.split()
    done = lab.command("--repo", str(lab.repo.path), "--device", "simulated", *words)
    assert done.code == 2
    assert said in done.err
