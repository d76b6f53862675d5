"""Processes of a test: those that simulated workers noted, those that still run, and a command's output."""

import ctypes
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_MOST = 4000  # letters shown of each stream
_TGKILL = 234  # Linux on x86-64


def noted(scenario: Path, what: str = "") -> list[int]:
    """Process ids that workers noted beside the scenario: their own (`worker`), what they forked (`fork`, `daemon`)."""
    notes = scenario.with_name(f"{scenario.name}.pids")
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [int(line.split()[0]) for line in lines if line.split()[1].startswith(what)]


def alive(pid: int, wait: float = 0.0) -> bool:
    """Whether the process still runs after at most `wait` seconds. One that only waits to be reaped is dead."""
    end = time.monotonic() + wait
    while (living := _state(pid) not in ("", "Z", "X")) and time.monotonic() < end:
        time.sleep(0.01)
    return living


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_for(what: Callable[[], object], process: subprocess.Popen[str], seconds: float = 240) -> None:
    """Wait until it is so. The process may have got there and ended between two looks."""
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None or what(), (process.returncode, process.communicate())
        assert time.monotonic() < end, f"it never happened\n{thread_states(process.pid)}"
        time.sleep(0.02)


def stopped(scenario: Path) -> list[int]:
    """Return the stopped workers (fault `sigstop`), which hold a run in its middle."""
    return [pid for pid in noted(scenario, "worker") if _state(pid) == "T"]


def signal_another_thread(pid: int, number: int) -> None:
    """Signal a thread of the process other than its first: the system may choose any thread."""
    others = sorted(thread for task in Path(f"/proc/{pid}/task").iterdir() if (thread := int(task.name)) != pid)
    send = ctypes.CDLL(None, use_errno=True).syscall
    # The newest is most likely one that waits for what the first waits for; it may end between two looks.
    assert any(send(_TGKILL, pid, other, int(number)) == 0 for other in reversed(others)), f"threads: {others}"


def thread_states(pid: int) -> str:
    """Describe a process that does not end: its signals, and the kernel function in which each thread waits."""
    said = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            lines = (task / "status").read_text().splitlines()
            where = (task / "wchan").read_text()
        except OSError:  # it has ended since
            continue
        kept = [line.replace("\t", " ") for line in lines if line.startswith(("Name:", "State:", "Sig", "ShdPnd:"))]
        said.append("; ".join([task.name, *kept, f"in {where}"]))
    return "\n".join(said)


def show(argv: Sequence[str], code: int, out: str, err: str) -> None:
    """Print a command's exit code and output: pytest shows them if the test fails."""
    print(f"$ abprof {shlex.join(argv)}\nexit code {code}")
    for name, text in (("stdout", out), ("stderr", err)):
        if text.strip():
            cut = len(text) > _MOST
            print(f"{name}: {text[: _MOST // 2] + ' [...] ' + text[-_MOST // 2 :] if cut else text}")
