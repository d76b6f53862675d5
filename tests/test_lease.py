"""One measuring run at a time on a device, across processes, however they end."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from abprof.devices import lease
from abprof.records.errors import AbprofError

HOLD = """
import sys, time
from pathlib import Path
from abprof.devices import lease
with lease(Path(sys.argv[1]), sys.argv[2], wait=True, label=sys.argv[3], say=print):
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(state: Path, device: str = "cpu", label: str = "abprof main fast in /repo") -> subprocess.Popen[str]:
    """Another process that holds the device until it reads a line."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state), device, label],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "held\n"
    return child


def take(
    state: Path, device: str = "cpu", *, wait: bool = False, say: Callable[[str], None] | None = None
) -> list[str]:
    """The lines printed while the device is leased and released."""
    message: list[str] = []
    with lease(state, device, wait=wait, label="mine", say=say or message.append):
        assert (state / "locks" / f"{device}.lock").read_text() == f"mine (process {os.getpid()})"
    return message


def test_a_busy_device_is_refused_with_its_holder(tmp_path: Path) -> None:
    child = hold(tmp_path)
    try:
        with pytest.raises(AbprofError) as refused:
            take(tmp_path)
        assert refused.value.line == (
            f"cpu is in use by abprof main fast in /repo (process {child.pid}) (run without --no-wait to wait for it)"
        )
        assert take(tmp_path, "GPU-1") == [], "another device is free"
    finally:
        child.communicate("\n", timeout=120)
    assert take(tmp_path) == []


def test_a_busy_device_is_waited_for(tmp_path: Path) -> None:
    child = hold(tmp_path)
    message: queue.SimpleQueue[str] = queue.SimpleQueue()
    waiting = threading.Thread(target=take, args=(tmp_path,), kwargs={"wait": True, "say": message.put})
    waiting.start()
    assert message.get(timeout=120) == f"waiting for cpu, in use by abprof main fast in /repo (process {child.pid})"
    assert waiting.is_alive()
    child.communicate("\n", timeout=120)
    assert message.get(timeout=120).startswith("cpu is free after ")
    waiting.join(120)
    assert message.empty()


def test_the_lease_ends_with_its_holder_also_by_kill_9(tmp_path: Path) -> None:
    child = hold(tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert take(tmp_path) == []


def test_a_holders_note_that_cannot_be_read_is_another_abprof(tmp_path: Path) -> None:
    child = hold(tmp_path)
    try:
        for text, shown in (("", "another abprof"), ("a\x1b[31m\nb" + 999 * "x", "a")):
            (tmp_path / "locks" / "cpu.lock").write_text(text)
            with pytest.raises(AbprofError, match=f"cpu is in use by {shown}") as refused:
                take(tmp_path)
            assert refused.value.line.isprintable()
            assert len(refused.value.line) < 300
    finally:
        child.communicate("\n", timeout=120)
