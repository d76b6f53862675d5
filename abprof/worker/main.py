"""The worker's loop: read a request, answer it, until `stop` or the parent is gone."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from abprof.records import messages as wire
from abprof.worker import adapters, ahead, foreground
from abprof.worker.bench import Bench
from abprof.worker.faults import classify
from abprof.worker.identity import versions

_PR_SET_PDEATHSIG = 1
sys.modules.setdefault("abprof.adapters", adapters)  # the name by which workloads import them
UNUSABLE = 70  # exit code: the device does not answer this process any more


def main(argv: list[str] | None = None) -> int:
    """Serve one parent over two inherited descriptors, or with --cell do what its file says, in the foreground.

    What anything prints goes to standard output: a served worker's log.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--in", dest="source", type=int)
    parser.add_argument("--out", dest="sink", type=int)
    parser.add_argument("--cell", type=Path)
    options = parser.parse_args(argv)
    _die_with_parent()
    with contextlib.suppress(OSError, KeyError):
        Path(os.environ["HOME"]).mkdir(parents=True, exist_ok=True)  # its own, where it may not have the user's
    if options.cell:
        _collect_again()
        return foreground.run(options.cell)
    for fd in (options.source, options.sink):
        os.set_inheritable(fd, False)  # what a kernel forks must not hold the parent's pipe open
    versions()  # whatever takes time and no device, while nobody waits for this worker yet (abprof/measure/prefork.py)
    ahead.unless_asked(options.source)
    _collect_again()
    with open(options.source, "rb") as requests, open(options.sink, "wb", buffering=0) as replies:
        code = serve(requests, replies)
    if code:
        sys.stdout.flush()
        os._exit(code)  # a broken device makes an orderly end hang or abort
    return code


def serve(requests: BinaryIO, replies: Any) -> int:
    """Answer requests in turn. Returns the exit code.

    After an illegal access CUDA answers every later call of the process with the same error. The worker then ends
    without an answer, so that the parent blames this arm alone and goes on in a new worker.
    """
    bench: Bench | None = None
    for line in requests:
        message = wire.load(line)
        verb = message["do"]
        request = wire.unpack(wire.VERBS[verb][0], message["args"])
        answer: dict[str, Any] = {"id": message["id"]}
        try:
            if verb == "start":
                bench = Bench(request)
                reply: Any = bench.ready()
            elif verb == "stop":
                reply = wire.Closed()
            else:
                assert bench is not None, "start comes first"
                reply = getattr(bench, verb)(request)
            answer["reply"] = wire.pack(reply)
            payload = wire.dump(answer)
        except BaseException as error:  # noqa: BLE001 - whatever a workload raises is an outcome, exit() included
            fault = classify(error, bench.mounted if bench else None)
            if fault.status == "unsupported":  # said on purpose: where it was raised tells nobody anything
                print(f"unsupported: {fault.reason}", flush=True)
            else:
                traceback.print_exception(error)
            if bench is not None and not bench.usable():
                print(fault.reason, flush=True)
                return UNUSABLE
            payload = wire.dump({"id": message["id"], "fault": wire.pack(fault)})
        sys.stdout.flush()
        replies.write(payload)
        if verb == "stop":
            return 0
    return 0


def _collect_again() -> None:
    """Have garbage collected, which run_worker.py (abprof/builds/worker_bundle.py) put off until torch and Triton are imported: what they
    make stays for good, and to walk it again and again while it grows is a third of a worker's start."""
    gc.freeze()
    gc.enable()


def _die_with_parent() -> None:
    """Be killed when the parent is, and before it when memory runs out: the parent holds the results."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as adjust:
        adjust.write("800")
