"""Making the programmed failures happen, for real: exits, signals, floods, children left behind, broken lines."""

import os
import resource
import signal
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from abprof.records import messages as wire
from tests.simulated.scenario import SPOIL, STATUS, Fault


def gone(scenario: Path, device: str) -> Path:
    """The mark that says that this device has disappeared."""
    return scenario.with_name(f"{scenario.name}.gone.{device}")


class Faults:
    """The scenario's faults as one worker process meets them."""

    def __init__(self, faults: list[Fault], scenario: Path, parent: int) -> None:
        self._parent = parent
        self._faults = faults
        self._seen = [0] * len(faults)
        self._scenario = scenario
        self._device = ""

    @property
    def gone(self) -> bool:
        """Whether the device has disappeared: no process of this run will see it again."""
        return gone(self._scenario, self._device).exists()

    def strike(self, verb: str, side: str, epoch: int, place: str, arm: str, device: str = "") -> list[Fault]:
        """Count this request and return the faults that are due."""
        self._device = device
        due = []
        for index, fault in enumerate(self._faults):
            if fault.verb != verb or fault.epoch not in (None, epoch) or not fnmatchcase(side, fault.side):
                continue
            if not all(map(fnmatchcase, (place, arm, device), (fault.cell, fault.arm, fault.device))):
                continue
            self._seen[index] += 1
            late = self._seen[index] - fault.after
            if late >= 0 and (not fault.times or late < fault.times) and (not fault.once or self._first(index)):
                due.append(fault)
        return due

    def _first(self, index: int) -> bool:
        """Whether no process of this run was here before."""
        try:
            self._scenario.with_name(f"{self._scenario.name}.once.{index}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def note(self, pid: int, what: str) -> None:
        """Record a process beside the scenario, so that a test can see that it is gone."""
        with self._scenario.with_name(f"{self._scenario.name}.pids").open("a") as file:
            file.write(f"{pid} {what}\n")

    def before(self, fault: Fault, out: int, request: int) -> None:
        """What a fault does to the process or the wire before the request is answered. May not return. Raises Typed for
        the typed outcomes."""
        word = fault.word
        if word in STATUS:
            raise Typed(STATUS[word], fault.text or f"simulated {word}")
        if word in ("exit", "crash", "kill", "partial"):
            _die(fault, out, request)
        elif word in ("hang", "stubborn", "close"):
            _hang(word, out)
        elif word in ("sigstop", "slow", "wait"):
            _pause(fault, self._scenario.parent)
        elif word in ("kill_parent", "stop_parent"):
            os.kill(self._parent, signal.SIGKILL if word == "kill_parent" else signal.SIGSTOP)
        elif word == "print":
            _flood(int(fault.number(1 << 20)))
        elif word == "write":
            _write(self._scenario.parent, fault.text)
        elif word == "eat":
            _eat()
        elif word == "gone":
            gone(self._scenario, self._device).touch()
        elif word in ("fork", "daemon"):
            self.note(_child(word == "daemon"), word)


def _pause(fault: Fault, folder: Path) -> None:
    """Answer later."""
    if fault.word == "sigstop":
        _stop(fault.number(0))
    elif fault.word == "slow":
        time.sleep(fault.number(1))
    while fault.word == "wait" and not (folder / fault.text).exists():
        time.sleep(0.02)


def _write(folder: Path, text: str) -> None:
    if text.endswith("+"):
        (folder / text.removesuffix("+")).write_text("planted")
        return
    found = list(folder.glob(text.removesuffix("-")))
    assert found, f"nothing is called {text}"
    for file in found:
        if text.endswith("-"):
            file.unlink()
            continue
        with file.open("ab") as out:
            out.write(b"\n")


class Typed(Exception):
    """A fault that is answered with a status."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def line(request: int, reply: dict[str, Any], due: list[Fault]) -> bytes:
    """The reply's line, as a fault (if any) spoils it."""
    message: dict[str, Any] = {"id": request, "reply": reply}
    fault = next((fault for fault in due if fault.word in SPOIL), None)
    if fault is None:
        return wire.dump(message)
    word = fault.word
    if word == "garbage":
        return (fault.text or "this is no JSON").encode() + b"\n"
    if word == "nan":
        key = next((key for key, value in reply.items() if isinstance(value, float)), "value")
        return wire.dump({**message, "reply": {**reply, key: "@"}}).replace(b'"@"', b"NaN")
    if word == "wrong_id":
        return wire.dump({**message, "id": request - 1})
    return wire.dump(message)[:-2] + b" " * int(fault.number(1 << 20)) + b"}\n"


def write(descriptor: int, data: bytes) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _die(fault: Fault, out: int, request: int) -> None:
    """End this process at once."""
    if fault.word == "partial":
        write(out, b'{"id":%d,"repl' % request)
    if fault.word in ("crash", "kill"):
        os.kill(os.getpid(), signal.SIGSEGV if fault.word == "crash" else signal.SIGKILL)
    os._exit(int(fault.number(0 if fault.word == "partial" else 3)))


def _hang(word: str, out: int) -> None:
    """Never answer."""
    if word == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if word == "close":
        os.close(out)
    while True:
        time.sleep(3600)


def _flood(count: int) -> None:
    """`count` bytes to standard output, in lines."""
    block = (b"x" * 99 + b"\n") * 1000
    sys.stdout.flush()
    while count > 0:
        write(1, block[:count])
        count -= len(block)


def _eat() -> None:
    """All the memory that this process may have, which then ends as Python does without memory."""
    limit = 256 << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    eaten = []
    try:
        while True:
            eaten.append(bytearray(1 << 20))
    except MemoryError:
        eaten.clear()
        os.write(2, b"MemoryError\n")
        os._exit(1)


def _child(own_session: bool) -> int:
    """Leave a sleeping child that inherits every descriptor. Returns its process id once it sleeps."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        os.read(ready, 1)
        os.close(ready)
        return pid
    try:
        if own_session:
            os.setsid()
        os.write(tell, b"1")
        os.close(tell)
        time.sleep(600)
    finally:
        os._exit(0)


def _continued(process: int, seconds: float) -> None:
    """Wait until the process has stopped, then continue it: an earlier SIGCONT has no effect."""
    stat = Path(f"/proc/{process}/stat")
    while (state := stat.read_text().rpartition(")")[2].split()[0]) != "T":
        if state in "ZX":
            return
        time.sleep(0.005)
    time.sleep(seconds)
    os.kill(process, signal.SIGCONT)


def _stop(seconds: float) -> None:
    """Stop this process, as `kill -STOP` does; a child continues it after `seconds` (0: never)."""
    me, helper = os.getpid(), 0
    if seconds:
        helper = os.fork()
        if not helper:
            try:
                _continued(me, seconds)
            finally:
                os._exit(0)
    os.kill(me, signal.SIGSTOP)
    if helper:
        os.waitpid(helper, 0)
