"""The worker process: serve requests, fork workers, or run a job under a profiler."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from abprof.records import messages as wire
from abprof.worker import adapters, package
from abprof.worker.api import Unsupported
from abprof.worker.bench import Bench, versions
from abprof.worker.faults import classify

_TO_STOP = 5.0  # most seconds until all processes of a sandbox are stopped
_UNSEEN = 10_000_000  # ns that a process counts which began or ended while it should have been stopped
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
sys.modules.setdefault("abprof.adapters", adapters)  # workloads import this name
UNUSABLE = 70  # exit code: the device no longer answers this process


def main(argv: list[str] | None = None) -> int:
    """Answer a parent process (--in, --out), fork workers (--fork), or run one job under a profiler (--cell)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--in", dest="source", type=int)
    parser.add_argument("--out", dest="sink", type=int)
    parser.add_argument("--cell", type=Path)
    parser.add_argument("--fork", type=int)
    parser.add_argument("--beside", type=int, default=-1)
    parser.add_argument("--no-preload", action="store_true")
    parser.add_argument("--walled", action="store_true")
    options = parser.parse_args(argv)
    die_with_parent()
    _make_home()
    if not options.cell:
        versions()  # imports Triton
    if options.source and not select.select([options.source], [], [], 0)[0]:
        for step in PRELOAD:
            _preload(*step)
    # run_worker.py disabled the garbage collector: collecting during the import of torch and Triton takes a third
    # of a worker's start and frees nothing.
    gc.freeze()
    gc.enable()
    if options.cell:
        return foreground(options.cell)
    if options.fork:
        return fork_workers(options.fork, [] if options.no_preload else PRELOAD, walled=options.walled)
    code = serve(options.source, options.sink, beside=options.beside)
    if code:
        sys.stdout.flush()
        os._exit(code)  # with a broken device a normal exit may hang or abort
    return code


def _preload(module: str, function: str = "") -> None:
    with contextlib.suppress(Exception):
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()


# Work of a first call that needs no device: Triton hashes its files, 0.4 s; torch.autograd.grad imports sympy, 2 s.
PRELOAD = [
    ("triton.runtime.cache", "triton_key"),
    ("torch.fx.experimental.symbolic_shapes",),
    ("abprof.worker.package", "find_real_paths"),
]


def serve(source: int, sink: int, make: Callable[[wire.Start], Bench] = Bench, beside: int = -1) -> int:
    """Answer requests from descriptor `source` on descriptor `sink`. Return the exit code. `beside`: Bench.beside.

    If the device no longer works, as after an illegal memory access, the worker exits without a reply. The parent then
    fails this arm only, and continues in a new worker.
    """
    for fd in (source, sink) if beside < 0 else (source, sink, beside):
        os.set_inheritable(fd, False)  # processes that code under test forks must not keep the parent's pipes open
    bench: Bench | None = None
    with open(source, "rb") as requests, open(sink, "wb", buffering=0) as replies:
        for line in requests:
            message = wire.load(line)
            verb, request = message["do"], wire.unpack(wire.VERBS[message["do"]][0], message["args"])
            try:
                reply: Any = wire.Done()
                if verb == "start":
                    bench = make(request)
                    bench.beside = beside
                    reply = bench.ready()
                elif verb != "stop":
                    reply = getattr(bench, verb)(request)
                payload = wire.dump({"id": message["id"], "reply": wire.pack(reply)})
            except BaseException as error:  # noqa: BLE001 - any exception of a workload is an outcome, exit() included
                fault = _printed(error, bench)
                if bench is not None and not bench.usable():
                    print(fault.reason, flush=True)
                    return UNUSABLE
                payload = wire.dump({"id": message["id"], "fault": wire.pack(fault)})
            sys.stdout.flush()
            replies.write(payload)
            if verb == "stop":
                break
    return 0


def _printed(error: BaseException, bench: Bench | None) -> wire.Fault:
    """Print an exception, with a traceback unless it is Unsupported, and return it as a wire.Fault."""
    fault = classify(error, bench.imported if bench else None)
    if fault.status == "unsupported":
        traceback.print_tb(None if isinstance(error, Unsupported) else error.__traceback__)
        print(f"unsupported: {fault.reason}", flush=True)
    else:
        traceback.print_exception(error)
    return fault


def foreground(file: Path) -> int:
    """Run the job in `file` (a wire.Foreground), in a process that a profiler started. Return the exit code.

    Call the arm once, to compile and tune, then `warmup + runs` times in NVTX ranges. The device is idle before and
    after each call. Write the result, a wire.Finished, to the file that the job names.
    """
    job: wire.Foreground = wire.unpack(wire.Foreground, wire.load(file.read_bytes()))
    bench = Bench(job.start)
    try:
        arm = bench.make(job.open, job.open.placement)
        with contextlib.ExitStack() as ranges:
            for number in range(1 + job.warmup + job.runs):
                if number == 1:
                    ranges.enter_context(bench.marked(job.open))
                arm.op.restore()
                bench.clock.sync()
                with torch.profiler.record_function(wire.CALL_RANGE):
                    arm.op.call()
                    bench.clock.sync()
        outcome = wire.Finished("ok", facts=arm.facts() if job.facts else {})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - any exception of a workload is an outcome, exit() included
        fault = _printed(error, bench)
        outcome = wire.Finished(fault.status, fault.reason)
    Path(job.outcome).write_bytes(wire.dump(wire.pack(outcome)))
    return 0 if outcome.status == "ok" else 1


def _make_home() -> None:
    with contextlib.suppress(OSError, KeyError):
        Path(os.environ["HOME"]).mkdir(parents=True, exist_ok=True)  # a private folder in a sandbox


def die_with_parent() -> None:
    """Make the system kill this process when the parent dies, and before the parent when memory runs out."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as adjust:
        adjust.write("800")


# ---------------------------------------------------------------- the fork server, which imports torch and Triton once


def fork_workers(fd: int, steps: Sequence[tuple[str, ...]], *, walled: bool = False) -> int:
    """Fork a worker for each request on the socket `fd`, until the parent closes the socket. In between, preload `steps`.

    A request is JSON with "env" and "cwd", sent with descriptors: requests, replies, perhaps Bench.beside, output. With
    "start", a wire.Start, and two descriptors (a socket, output), the new process imports that package, and forks workers itself.
    With "signal", all other processes of the server's sandbox get this signal, SIGSTOP or SIGCONT.
    Replies: {"pid": N}, which the new process sends, {"why": TEXT} if the fork fails, and {"ended": N, "code": N} when
    a process has ended. Returns 1 at once if a fork would be unsafe, because an import started CUDA or a thread; else 0.

    Workers run code under test as the same user. They can signal the server, but not read or change its memory or its
    descriptors, because it is not dumpable (ptrace(2)): workers that it forks later, and its messages, are as without it.
    """
    if not package.may_fork():
        print("an import started CUDA or a thread: workers start as fresh processes", flush=True)
        return 1
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    channel, idle, workers, sandbox = socket.socket(fileno=fd), [*steps], set[int](), Sandbox(walled=walled)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        at_once = idle and not (walled and workers)  # workers in a sandbox wait for the signal with each request
        ready, _, _ = select.select([fd, woken], [], [], 0 if at_once else None)
        if not ready:
            _preload(*idle.pop(0))
        if woken in ready:
            os.read(woken, 1 << 12)
            _reap(channel, workers, sandbox)
        if fd in ready:
            data, fds, _, _ = socket.recv_fds(channel, 1 << 20, 4)
            if not data:
                return 0
            request = json.loads(data)
            if "signal" in request:
                _send(channel, {"signalled": request["signal"], "ran": sandbox.signal(request["signal"])})
                continue
            try:
                workers.add(_fork(request, fds, channel, (woken, wake)))
                sandbox.used = None
            except OSError as error:
                _send(channel, {"why": error.strerror})
            for each in fds:
                os.close(each)


class Sandbox:
    """What workers of a fork server leave behind, and in a sandbox all of its processes but the first and the server."""

    def __init__(self, *, walled: bool) -> None:
        # The parent of a sandbox's command is its first process. Elsewhere signals would reach all processes of the user.
        self._walled = walled and os.getppid() == 1
        self._helpers = _children()  # started by an import
        self.used: dict[int, int] | None = None  # process -> its CPU time in ns at the last signal; None: unknown

    def signal(self, number: int) -> int:
        """Send SIGCONT, or SIGSTOP until all processes are stopped, since one could continue another. Return the
        ns of CPU time that they used since the signal before. Raises OSError outside of a sandbox, or if one goes on."""
        if not self._walled:
            raise PermissionError("not in a sandbox")
        before, begun = self.used, time.monotonic()
        used, at_rest = _cpu_times("") if number == signal.SIGCONT else ({}, False)
        _kill(-1, number)
        while number == signal.SIGSTOP and not at_rest:
            if (since := time.monotonic() - begun) > _TO_STOP:
                raise TimeoutError("a process of the sandbox does not stop")
            # D: it waits in the kernel, perhaps for a child that is stopped, and stops before it leaves.
            used, at_rest = _cpu_times("T" if since < _TO_STOP / 10 else "TD")
            if not at_rest:
                time.sleep(0.00005)
                _kill(-1, number)
        self.used = used
        if before is None:
            return 0
        changed = before.keys() ^ used.keys()
        return len(changed) * _UNSEEN + sum(used[pid] - before[pid] for pid in before.keys() & used.keys())

    def clear(self) -> None:
        """Kill what workers left behind."""
        for pid in [-1] if self._walled and not self._helpers else _children() - self._helpers:
            _kill(pid, signal.SIGKILL)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _cpu_times(states: str) -> tuple[dict[int, int], bool]:
    """Return the ns of CPU time of each other living process of the sandbox, and whether all their threads are in one of
    `states` ("": not looked at): on a loaded machine some stop later than the first one."""
    found, all_in = dict[int, int](), True
    for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}:  # noqa: PTH208 - quicker
        with contextlib.suppress(OSError):  # it has ended
            if threads := _states(pid, whole=bool(states)):
                found[pid] = time.clock_gettime_ns(-8 * pid - 6)  # the other's clock: clock_getcpuclockid(3)
                all_in &= threads <= {*states}
    return found, all_in


def _states(pid: int, *, whole: bool) -> set[str]:
    """Return the states of a process's living threads, of which the first one may have ended; of one that lives, unless
    `whole`. Raises OSError."""
    found = set[str]()
    for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - quicker, as is what follows
        path = f"/proc/{pid}/task/{thread}/stat"
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:  # OSError: it has ended
            found |= {file.read(1 << 10).rpartition(b") ")[2][:1].decode()} - {"Z", "X"}
        if found and not whole:
            break
    return found


def _fork(request: dict[str, Any], fds: list[int], channel: socket.socket, own: tuple[int, ...]) -> int:
    """Fork a worker, which closes the fork server's `channel` and descriptors (`own`). Return the worker's process id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        os.setsid()
        _send(channel, {"pid": os.getpid()})  # now its process group can be killed; the kernel adds its id outside
        channel.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        *ends, output = fds
        os.dup2(output, 1)
        os.dup2(output, 2)
        for each in (output, *own):
            os.close(each)
        if package.preloaded():  # the environment is the server's: keep what the import changed in it
            os.environ[wire.MARK] = request["env"][wire.MARK]
        else:
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            random.seed()
        die_with_parent()
        _make_home()
        if "start" in request:
            code = _fork_with_package(ends[0], request["start"])
        else:
            code = serve(ends[0], ends[1], beside=[*ends, -1][2])
    finally:
        os._exit(code)


def _fork_with_package(fd: int, start: dict[str, Any]) -> int:
    request: wire.Start = wire.unpack(wire.Start, start)
    try:
        package.preload(request)
    except BaseException:  # noqa: BLE001 - a worker repeats the import, and reports what it raises
        traceback.print_exc()
        return 1
    gc.freeze()
    return fork_workers(fd, PRELOAD)


def _reap(channel: socket.socket, workers: set[int], sandbox: Sandbox) -> None:
    """Report the `workers` that have ended. If none is left, kill the processes that they left behind."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] in workers:
                workers.remove(ended[0])
                sandbox.used = None
                _send(channel, {"ended": ended[0], "code": os.waitstatus_to_exitcode(ended[1])})
    if not workers:
        sandbox.clear()


def _children() -> set[int]:
    with contextlib.suppress(OSError):
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    return set()


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the parent has died, and so will this process
        channel.send(json.dumps(message).encode())
