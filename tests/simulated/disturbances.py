"""Disturbances of a running abprof: signals, full memory and disks, jumping clocks, files that another program spoils.
Each returns the command's result. A moment is a count of started workers, not a time."""

import contextlib
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.simulated.lab import Lab, Result

LONGEST = 240.0  # most seconds of a run of a round; the sum of its time limits is less


@dataclass(frozen=True)
class Moment:
    """When a disturbance starts: `after` seconds after `workers` workers have started."""

    workers: int
    after: float

    def wait(self, lab: Lab, process: subprocess.Popen[str]) -> bool:
        """Wait for the moment; False if abprof ended before. Reads abprof's output, or a full pipe would block it."""
        while process.poll() is None:
            if lab.begun(process) >= self.workers:
                _listen(process, self.after)
                return process.poll() is None
            _listen(process, 0.01)
        return False


def _listen(process: subprocess.Popen[str], seconds: float) -> None:
    """Read its output for `seconds`, and keep it for a later communicate()."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds)


Command = tuple[str, ...]
Trouble = Callable[[Lab, Command, Moment, random.Random], Result]


def none(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """Nothing happens to abprof itself."""
    return lab.abprof(*command, seconds=LONGEST)


def signalled(number: signal.Signals) -> Trouble:
    """abprof is sent a signal."""

    def strike(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
        process = lab.start(*command)
        if moment.wait(lab, process):
            process.send_signal(number)
        return lab.finish(process, LONGEST)

    return strike


def stopped(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """abprof is stopped for a second, and goes on: its workers wait for it."""
    process = lab.start(*command)
    if moment.wait(lab, process):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        process.send_signal(signal.SIGCONT)
    return lab.finish(process, LONGEST)


def child(how: str, command_word: str = "") -> Trouble:
    """A worker or builder that lives at that moment, or the program of a shard, is sent a signal, or gets no more memory."""

    def strike(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
        process = lab.start(*command)
        while moment.wait(lab, process):
            found = sorted(_children(process.pid, command_word or lab.worker), key=lambda one: one.pid)
            if found:
                hit(rng.choice(found), how)
                break
            _listen(process, 0.005)
        return lab.finish(process, LONGEST)

    return strike


def _children(parent: int, word: str) -> Iterator[psutil.Process]:
    """The descendants in whose command line a word begins so."""
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(each.startswith(word) for each in one.cmdline()):
                    yield one


def hit(process: psutil.Process, how: str) -> None:
    """Send it the signal of that name; `memory`: it gets no more."""
    with contextlib.suppress(psutil.Error, OSError):
        if how == "memory":
            _no_more_memory(process, 0)
        else:
            process.send_signal(signal.Signals[how])


def _no_more_memory(process: psutil.Process, more: int) -> None:
    limit = process.memory_info().vms + more
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))


def memory(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """From that moment abprof and its children get almost no more address space."""
    process = lab.start(*command)
    # Before a worker has begun abprof may still be loading numpy, whose OpenBLAS spins for ever where it gets no memory.
    if replace(moment, workers=max(1, moment.workers)).wait(lab, process):
        with contextlib.suppress(psutil.Error, OSError):
            _no_more_memory(psutil.Process(process.pid), rng.choice((0, 1 << 16, 1 << 20, 1 << 22, 1 << 24)))
    return lab.finish(process, LONGEST)


def spoilt(what: str) -> Trouble:
    """Files that an earlier run left in abprof's cache or state are cut short, emptied, filled with something else, or gone."""

    def strike(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
        lab.abprof(*command, seconds=LONGEST)
        folder = {"cache": lab.cache, "state": lab.state}[what]
        files = sorted(path for path in folder.rglob("*") if path.is_file() and "worker" not in path.parts)
        for path in rng.sample(files, min(len(files), 5)):
            spoil(path, rng)
        return lab.abprof(*command, seconds=LONGEST)

    return strike


def spoil(path: Path, rng: random.Random) -> None:
    how = rng.choice(("cut", "empty", "other", "gone"))
    if how == "gone":
        path.unlink()
        return
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "other": rng.randbytes(64)}[how])


def stale(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """Leave lock files, notes and git's lock files without a holder, as kill -9 does, with odd content."""
    lab.abprof(*command, seconds=LONGEST)
    content = rng.choice((b"", b'{"pid": 999999999, "what": "gone"}', b"\xff\xfe\0", b"[]", b"/nowhere/at/all"))
    stores = sorted((lab.cache / "repos").glob("*.git"))
    of_git = ("config", "packed-refs", "HEAD", "shallow", "refs/heads/main", "index")
    places = [
        lab.state / "locks" / "simulated.lock",
        lab.state / "unfinished" / "note",
        lab.cache / "worktrees" / f"{rng.randrange(1 << 48):012x}.lock",
        *(
            home / name
            for home in sorted((lab.cache / "builds").glob("*"))
            if home.is_dir()
            for name in ("owner", "lock")
        ),
        *(store / f"{name}.lock" for store in stores for name in of_git),
    ]
    for place in rng.sample(places, min(len(places), 5)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    dead = lab.cache / "worktrees" / f"{rng.randrange(1 << 48):012x}" / "s0"
    dead.mkdir(parents=True)
    (dead / "left").touch()
    return lab.abprof(*command, seconds=LONGEST)


def torn(name: str) -> Trouble:
    """The run's own file is cut, or a byte in it is another; then it is reported again."""

    def strike(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
        result = lab.abprof(*command, seconds=LONGEST)
        if result.folder is None or not (path := result.folder / name).exists() or not (data := path.read_bytes()):
            return result
        if rng.random() < 0.5:
            path.write_bytes(data[: -rng.randint(1, min(len(data), 2000))])
        else:
            at = rng.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
        return lab.command("report", str(result.folder))

    return strike


TROUBLES: dict[str, Trouble] = {
    "none": none,
    **{name: signalled(signal.Signals[name]) for name in ("SIGKILL", "SIGINT", "SIGTERM")},
    "stopped": stopped,
    "memory": memory,
    **{f"child {how}": child(how) for how in ("SIGKILL", "SIGSEGV", "SIGSTOP", "memory")},
    "spoilt cache": spoilt("cache"),
    "spoilt state": spoilt("state"),
    "stale locks": stale,
    "torn rounds": torn("rounds.jsonl"),
    "torn run": torn("run.json"),
}
SHARD_TROUBLES: dict[str, Trouble] = {
    f"shard {how}": child(how, "abprof.fleet") for how in ("SIGKILL", "SIGSEGV", "SIGTERM", "memory")
}
