"""What happens to abprof from outside while it runs: signals, memory and disks that end, clocks that jump, files that another
program spoils. Each returns what the command left; a moment is told by how many workers had begun, not by the clock."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.simulated.lab import Lab, Result

JUMPING = Path(__file__).with_name("jumping.py")
LONGEST = (
    240.0  # seconds that a run of a round may take, whatever goes wrong: all of its time limits together are fewer
)


class CannotPlay(Exception):
    """This machine does not let the trouble happen: it says why."""


@dataclass(frozen=True)
class Moment:
    """When it strikes: so many workers have begun, and a part of a second has passed since."""

    workers: int
    after: float

    def wait(self, lab: Lab, process: subprocess.Popen[str]) -> bool:
        """Until then. False: abprof ended before. What it prints meanwhile is read, or it would wait for a reader."""
        while process.poll() is None:
            if lab.begun(process) >= self.workers:
                _listen(process, self.after)
                return process.poll() is None
            _listen(process, 0.01)
        return False


def _listen(process: subprocess.Popen[str], seconds: float) -> None:
    """Let it print for so long; what it printed is kept for a later communicate()."""
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


def child(how: str) -> Trouble:
    """A worker or builder that lives at that moment is killed, crashes, is stopped for good, or gets no more memory."""

    def strike(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
        process = lab.start(*command)
        while moment.wait(lab, process):
            found = sorted(_workers(lab, process.pid), key=lambda one: one.pid)
            if found:
                hit(rng.choice(found), how)
                break
            _listen(process, 0.005)
        return lab.finish(process, LONGEST)

    return strike


def _workers(lab: Lab, parent: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(word.startswith(lab.worker) for word in one.cmdline()):
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
    """From that moment on abprof, and what it starts, gets hardly any more address space."""
    process = lab.start(*command)
    # Before a worker has begun abprof may still be loading numpy, whose OpenBLAS spins for ever where it gets no memory.
    if replace(moment, workers=max(1, moment.workers)).wait(lab, process):
        with contextlib.suppress(psutil.Error, OSError):
            _no_more_memory(psutil.Process(process.pid), rng.choice((0, 1 << 16, 1 << 20, 1 << 22, 1 << 24)))
    return lab.finish(process, LONGEST)


def clock(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """abprof's wall clock jumps, by minutes and by years, back and forth, every few times that it is read."""
    env = {"JUMPS": str(rng.randrange(1 << 30))}
    return lab.finish(lab.start(*command, program=("-P", str(JUMPING)), env=env), LONGEST)


# ---------------------------------------------------------------- disks


@contextlib.contextmanager
def disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of that size at `folder`, with what lay there as far as it fits. Raises CannotPlay."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "none", str(folder))
    try:
        yield
    finally:
        kept = folder.with_name(f"{folder.name}.kept")
        shutil.copytree(folder, kept, symlinks=True)
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        shutil.rmtree(folder)
        kept.rename(folder)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """`folder` and what lies in it cannot be written. Raises CannotPlay."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotPlay(f"no file system can be mounted here: {done.stderr.strip()}")


def full(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """The disk under runs, cache or state is small from the beginning."""
    folder, sizes = rng.choice(((lab.runs, (4, 400)), (lab.cache, (4, 1500)), (lab.state, (4, 64))))
    with disk(folder, f"{rng.randrange(*sizes)}k"):
        return lab.abprof(*command, seconds=LONGEST)


def filled(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """Another program fills the disk under runs, cache or state at that moment, but for a few bytes."""
    folder = rng.choice((lab.runs, lab.cache, lab.state))
    with disk(folder, "8m"):
        process = lab.start(*command)
        if moment.wait(lab, process):
            ballast = folder / "ballast"
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 12))
            os.truncate(ballast, max(0, ballast.stat().st_size - (rng.randrange(4) << 12)))
        result = lab.finish(process, LONGEST)
        (folder / "ballast").unlink(missing_ok=True)
        return result


def unwritable(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """The user's repository, runs, cache or state can be read alone; half of the time after a run that could write."""
    folder = rng.choice((lab.repo.path, lab.runs, lab.cache, lab.state))
    if rng.random() < 0.5:
        lab.abprof(*command, seconds=LONGEST)
    with read_only(folder):
        return lab.abprof(*command, seconds=LONGEST)


# ---------------------------------------------------------------- files of abprof's own


def spoilt(what: str) -> Trouble:
    """Files that an earlier run left in abprof's cache or state are cut short, emptied, filled with something else, or gone."""

    def strike(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
        lab.abprof(*command, seconds=LONGEST)
        folder = {"cache": lab.cache, "state": lab.state}[what]
        files = sorted(path for path in folder.rglob("*") if path.is_file() and "harness" not in path.parts)
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
    """Locks, notes and git's own lock files lie there that nobody holds: what kill -9 leaves, and with other content."""
    lab.abprof(*command, seconds=LONGEST)
    nobody = rng.choice((b"", b'{"pid": 999999999, "what": "gone"}', b"\xff\xfe\0", b"[]", b"/nowhere/at/all"))
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
        place.write_bytes(nobody)
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
    "SIGKILL": signalled(signal.SIGKILL),
    "SIGINT": signalled(signal.SIGINT),
    "SIGTERM": signalled(signal.SIGTERM),
    "stopped": stopped,
    "memory": memory,
    "child SIGKILL": child("SIGKILL"),
    "child SIGSEGV": child("SIGSEGV"),
    "child SIGSTOP": child("SIGSTOP"),
    "child memory": child("memory"),
    "disk full": full,
    "disk filled": filled,
    "read-only": unwritable,
    "clock": clock,
    "spoilt cache": spoilt("cache"),
    "spoilt state": spoilt("state"),
    "stale locks": stale,
    "torn rounds": torn("rounds.jsonl"),
    "torn run": torn("run.json"),
}


CUTTING = Path(__file__).with_name("cutting.py")


def shard(how: str) -> Trouble:
    """The program of a shard that is out at that moment is sent a signal, or gets no more memory."""

    def struck(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
        process = lab.start(*command)
        while moment.wait(lab, process):
            if found := sorted(_programs(process.pid), key=lambda one: one.pid):
                hit(rng.choice(found), how)
                break
        return lab.finish(process, LONGEST)

    return struck


def _programs(parent: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(parent).children():
            with contextlib.suppress(psutil.Error):
                if "abprof.fleet" in one.cmdline():
                    yield one


def news_cut(lab: Lab, command: Command, moment: Moment, rng: random.Random) -> Result:
    """Of what the programs of shards say a line is lost, torn, spoilt or said twice."""
    env = {"CUTS": str(rng.randrange(1 << 30))}
    return lab.finish(lab.start(*command, program=("-P", str(CUTTING)), env=env), LONGEST)


SHARD_TROUBLES: dict[str, Trouble] = {
    "shard SIGKILL": shard("SIGKILL"),
    "shard SIGSEGV": shard("SIGSEGV"),
    "shard SIGTERM": shard("SIGTERM"),
    "shard SIGSTOP": shard("SIGSTOP"),
    "shard memory": shard("memory"),
    "news cut": news_cut,
}
