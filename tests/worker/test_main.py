"""The worker's loop: which faults it survives, how it classifies them, and the foreground run."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from abprof.builds.worker_factory import install_bundle
from abprof.records import messages as wire
from abprof.system import processes as proc
from abprof.worker import main
from abprof.worker.api import Unsupported
from abprof.worker.faults import MissingPackage, classify, running

PACKAGE = ModuleType("abprof_side.tiny")
PART = ModuleType("abprof_side.tiny.part")
OTHER = ModuleType("abprof_side.tiny_two")


def caught(code: str) -> BaseException:
    """Return the exception of this line of Python."""
    names = {"PACKAGE": PACKAGE, "PART": PART, "OTHER": OTHER, "torch": torch, "Unsupported": Unsupported}
    try:
        exec(code, names)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("code", "status", "line"),
    [
        ("raise Unsupported('needs sm_90')", "unsupported", "needs sm_90"),
        ("raise Unsupported", "unsupported", "unsupported"),
        ("bytearray(1 << 60)", "oom", "MemoryError"),
        ("torch.empty(1 << 60, dtype=torch.uint8)", "oom", "RuntimeError: "),
        ("raise torch.OutOfMemoryError('CUDA out of memory')", "oom", "OutOfMemoryError: CUDA out of memory"),
        ("PACKAGE.no_such_kernel", "missing", "AttributeError: module 'abprof_side.tiny' has no attribute 'no_such_kernel'"),
        ("PART.no_such_kernel", "missing", "AttributeError: "),
        ("OTHER.anything", "crash", "AttributeError: "),
        ("torch.no_such_function", "crash", "AttributeError: "),
        ("raise ImportError('no', name='abprof_side.tiny.gone')", "missing", "ImportError: no"),
        ("import no_such_dependency", "crash", f"ModuleNotFoundError: No module named 'no_such_dependency' ({sys.executable} lacks it)"),
        ("raise ValueError", "crash", "ValueError"),
        ("raise ValueError('two\\n  lines')", "crash", "ValueError: two lines"),
        ("raise SystemExit(3)", "crash", "called exit(3)"),
        ("raise KeyboardInterrupt", "crash", "KeyboardInterrupt"),
    ],
)  # fmt: skip
def test_faults_are_classified(code: str, status: str, line: str) -> None:
    fault = classify(caught(code), PACKAGE)
    assert fault.status == status
    assert fault.reason.startswith(line)
    assert "\n" not in fault.reason


def test_without_a_package_only_its_absence_is_missing() -> None:
    assert classify(MissingPackage("tiny does not exist on this side"), None).status == "missing"
    assert classify(caught("PACKAGE.no_such_kernel"), None).status == "crash"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Sealed(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("sealed")


class Nameless(ImportError):
    name = 3


@pytest.mark.parametrize(
    "error",
    [
        Nameless("x"),
        type("N" * 5000, (Exception,), {})("x"),
        Mute(),
        Sealed("x"),
        SystemExit(Mute()),
        Unsupported("a\nb\x1b" + "c" * 5000),
    ],
)
def test_any_exception_has_a_short_printable_line(error: BaseException) -> None:
    fault = classify(error, PACKAGE)
    assert 0 < len(fault.reason) < 500
    assert fault.reason.isprintable()


@pytest.mark.parametrize("file", ["/w/good.py", "/w/" + "x\n\x1b" * 2000, None, 3])
def test_the_workloads_function_is_named_for_the_exception_that_left_it_last(file: object) -> None:
    module = ModuleType("good")
    module.__dict__["__file__"] = file
    error = ValueError("x" * 5000)
    with pytest.raises(ValueError, match="x"), running(module, "inputs"):
        raise error
    assert not vars(error), "code under test could read and write it there"
    fault = classify(error, PACKAGE)
    assert fault.at.startswith("inputs() of ")
    assert fault.at.isprintable()
    assert fault.reason.endswith(f" ({fault.at})")
    assert len(fault.reason) < 700
    assert classify(error, PACKAGE).at == "", "once"
    with pytest.raises(ValueError, match="x"), running(module, "inputs"):
        raise error
    with running(module, "check"):
        pass
    assert classify(error, PACKAGE).at == ""


WORKLOAD = """
from abprof.kit import Check, Op
API, KERNEL, PRESETS = 1, "k", {"default": {"bad": [False, True]}}
def inputs(case, device, seed):
    import torch
    return torch.zeros(8, device=device), torch.full((1,), 1 << 20 if case["bad"] else 1, device=device)
def prepare(kernel, variant, case, inputs):
    return Op(lambda: kernel.take(*inputs))
def reference(case, inputs):
    return inputs[0][:1]
def check(case, outputs, expected):
    return Check(True)
"""


@contextlib.contextmanager
def real(tmp_path: Path, device: str, body: str) -> Iterator[tuple[proc.Worker, wire.Start]]:
    """Make a worker for a kernel `take(table, index)` with this body, and its start request."""
    (tmp_path / "w.py").write_text(WORKLOAD)
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "__init__.py").write_text(f"import gc\ndef take(table, index):\n    {body}\n")
    mount = wire.Mount("k", str(tmp_path), "abprof_side.k", str(tmp_path), [str(tmp_path)])
    argv = (sys.executable, "-P", str(install_bundle(tmp_path / "cache")))
    worker = proc.Worker(argv, env=dict(os.environ), cwd=tmp_path, log=tmp_path / "log")
    try:
        yield worker, wire.Start(device, "base", mount, {"w": str(tmp_path / "w.py")}, str(tmp_path))
    finally:
        worker.kill()


@pytest.mark.gpu
def test_an_illegal_access_ends_the_worker_and_not_the_next_one(tmp_path: Path) -> None:
    with real(tmp_path, "cuda", "return table[index]") as (worker, start):
        worker.call(start, 120)
        with pytest.raises(proc.WorkerDied, match=f"exit code {main.UNUSABLE}"):
            worker.call(wire.Open("w", {"bad": True}, "base"), 120)
        worker.restart()
        worker.call(start, 120)
        assert worker.call(wire.Open("w", {"bad": False}, "base"), 120).call_ns > 0


def test_a_process_counts_whose_first_thread_has_ended() -> None:
    """Its state is a zombie's, but its other threads work."""
    ends = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\nctypes.CDLL(None).pthread_exit(0)"
    with subprocess.Popen([sys.executable, "-c", ends]) as process:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            time.sleep(0.01)
        assert process.pid in main._cpu_times("T")[0]
        process.kill()
