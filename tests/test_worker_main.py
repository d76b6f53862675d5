"""The worker's loop: which faults it survives."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abprof.builds.worker_bundle import install
from abprof.records import messages as wire
from abprof.system import processes as proc
from abprof.worker import main
from abprof.worker.api import Unsupported

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


class Stub:
    """A bench whose every request raises `fault`; `broken` says that its device is gone."""

    broken = False
    fault: Exception = RuntimeError("CUDA error: an illegal memory access was encountered")
    mounted = None

    def __init__(self, start: wire.Start) -> None:
        del start

    def ready(self) -> wire.Ready:
        return wire.Ready(wire.PROTOCOL, 1, "cuda", "stub")

    def close(self, request: wire.Close) -> wire.Closed:
        raise self.fault

    def usable(self) -> bool:
        return not self.broken


def serve(monkeypatch: pytest.MonkeyPatch, *, broken: bool) -> tuple[int, list[dict[str, Any]]]:
    """(exit code, answers) to start, a request that fails, and stop."""
    monkeypatch.setattr(Stub, "broken", broken)
    monkeypatch.setattr(main, "Bench", Stub)
    asked = [wire.Start("cuda", "base"), wire.Close(), wire.Stop()]
    lines = [
        wire.dump({"id": number, "do": wire.NAMES[type(request)], "args": wire.pack(request)})
        for number, request in enumerate(asked, 1)
    ]
    replies = io.BytesIO()
    code = main.serve(io.BytesIO(b"".join(lines)), replies)
    return code, [wire.load(line) for line in replies.getvalue().splitlines()]


def test_a_fault_is_answered_and_the_worker_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    code, answers = serve(monkeypatch, broken=False)
    assert code == 0
    assert [set(answer) - {"id"} for answer in answers] == [{"reply"}, {"fault"}, {"reply"}]
    assert answers[1]["fault"]["status"] == "crash"


def test_a_device_that_is_gone_ends_the_worker_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An illegal access would else be every later cell's fault too."""
    code, answers = serve(monkeypatch, broken=True)
    assert code == main.UNUSABLE
    assert [answer["id"] for answer in answers] == [1]
    assert capsys.readouterr().out.rstrip().endswith("illegal memory access was encountered"), "the log's last line"


def test_what_is_unsupported_is_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said on purpose, and a build calls every variant; what crashed shows where."""
    serve(monkeypatch, broken=False)
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setattr(Stub, "fault", Unsupported("cuTile is not installed"))
    _, answers = serve(monkeypatch, broken=False)
    assert answers[1]["fault"] == {"status": "unsupported", "reason": "cuTile is not installed", "at": ""}
    printed = capsys.readouterr()
    assert printed.out + printed.err == "unsupported: cuTile is not installed\n"


@contextlib.contextmanager
def real(tmp_path: Path, device: str, body: str) -> Iterator[tuple[proc.Worker, wire.Start]]:
    """A worker of its own for a kernel `take(table, index)` of this body, and what starts it."""
    (tmp_path / "w.py").write_text(WORKLOAD)
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "__init__.py").write_text(f"import gc\ndef take(table, index):\n    {body}\n")
    mount = wire.Mount("k", str(tmp_path), "abprof_side.k", str(tmp_path), [str(tmp_path)])
    argv = (sys.executable, "-P", str(install(tmp_path / "cache")))
    worker = proc.Worker(argv, env=dict(os.environ), cwd=tmp_path, log=tmp_path / "log", name="base")
    try:
        yield worker, wire.Start(device, "base", mount, {"w": str(tmp_path / "w.py")}, str(tmp_path))
    finally:
        worker.kill()


def test_garbage_is_collected_once_a_worker_serves(tmp_path: Path) -> None:
    """While it imports torch it is not: that took a third of a worker's start."""
    with real(
        tmp_path, "cpu", "return table[index] if gc.isenabled() and gc.get_freeze_count() > 100_000 else 1/0"
    ) as made:
        worker, started = made
        worker.call(started, 120)
        assert worker.call(wire.Open("w", {"bad": False}, "base"), 120).status == "ok"


@pytest.mark.gpu
def test_an_illegal_access_ends_the_worker_and_not_the_next_one(tmp_path: Path) -> None:
    """The real thing: an index out of bounds on the device, then a good call in the worker's successor."""
    with real(tmp_path, "cuda", "return table[index]") as (worker, started):
        worker.call(started, 120)
        with pytest.raises(proc.WorkerDied, match=f"exit code {main.UNUSABLE}"):
            worker.call(wire.Open("w", {"bad": True}, "base"), 120)
        worker.restart()
        worker.call(started, 120)
        assert worker.call(wire.Open("w", {"bad": False}, "base"), 120).status == "ok"


AHEAD = """
import os, sys, torch
from abprof.worker import ahead
wants = "torch.fx.experimental.symbolic_shapes"
assert wants not in sys.modules, "torch imports it by itself: nothing is left to do ahead"
source, parent = os.pipe()
if sys.argv[1] == "asked":
    os.write(parent, b"a request")
ahead.unless_asked(source)
print(wants in sys.modules)
from triton.runtime.cache import triton_key
print(triton_key.cache_info().misses)
"""


@pytest.mark.parametrize(("waits", "told"), [("nobody", ["True", "1"]), ("asked", ["False", "0"])])
def test_a_worker_loads_ahead_what_a_first_call_needs_while_nobody_waits_for_it(waits: str, told: list[str]) -> None:
    command = [sys.executable, "-c", AHEAD, waits]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == told, done.stderr
