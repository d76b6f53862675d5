"""--untrusted: a package that works outside its turns is broken, by whatever thread or process; in its turns it may use
threads and processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from abprof.store import read
from abprof.worker.clocks import CudaClock
from tests.test_out_of_process_check import target_outcome
from tests.tinyrepo import PACKAGE, WORKLOAD, abprof, abprof_afresh, tiny_repo

# The kernel's work is done by somebody else, later: long before anybody looks at the outputs of a turn's last call.
THREAD = """
import threading, time
_honest = double
def double(x):
    out = torch.empty_like(x)
    threading.Thread(target=lambda: (time.sleep(0.002), out.copy_(_honest(x)))).start()
    return out
"""
BURNS = {
    "a thread": "import threading\nthreading.Thread(target={}, daemon=True).start()\n",
    "a child process": "import os\nif os.fork() == 0:\n    {}()\n",
    "a child of its own session": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        {}()\n    os._exit(0)\n",
}
# Honest: its work is done by threads of OpenBLAS, which spin when idle, and by processes of a pool.
OPENBLAS = """
import numpy
def double(x):
    a = numpy.full((128, 128), 1.0)
    a @ a
    return torch.from_numpy(x.numpy() * numpy.float32(2.0))
"""
POOL = """
import multiprocessing
_pool = None
def _work(n):
    return sum(range(n))
def double(x):
    global _pool
    if _pool is None:
        _pool = multiprocessing.get_context("fork").Pool(2)
    _pool.map(_work, [30000, 30000])
    return x * 2
"""
# As honest: threads that sleep, which take processor time only when the sandbox stops and goes on.
SLEEPERS = """
import threading
for _ in range(400):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
# After the last call its thread spins for 0.3 s, or less.
SPINS = """
import threading, time
_honest, _called = double, threading.Event()
def _spin():
    while _called.wait():
        _called.clear()
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
threading.Thread(target=_spin, daemon=True).start()
def double(x):
    _called.set()
    return _honest(x)
"""
LOOP = "\ndef _burn():\n    while True:\n        sum(range(10000))\n_honest, _begun = double, []\n"
FIRST_CALL = "def double(x):\n    if not _begun:\n        _begun.append(1)\n{}\n    return _honest(x)\n"


def outcome(tmp_path: Path, more: str, of_base: str = "") -> tuple[str, str]:
    repo = tiny_repo(tmp_path / "repo", 100)
    if of_base:
        repo.commit("base", {"kernels/tiny/__init__.py": PACKAGE + of_base})
    repo.branch("other")
    repo.commit("honest or not", {"kernels/tiny/__init__.py": PACKAGE + more})
    options = ("--untrusted", "--device", "cpu", "--no-peers", "--quick", "--json")
    return target_outcome(abprof("main", "other", *options, cwd=repo.path, home=tmp_path / "home"))


def test_a_sandbox_that_cannot_be_stopped_measures_nothing(tmp_path: Path) -> None:
    """Its fork server starts a thread, so that it cannot fork."""
    repo = tiny_repo(tmp_path / "repo", 100)
    files = {
        "abprof.toml": '[kernels.tiny.env]\nPYTHONPATH = "{worktree}/kernels/tiny"\n',
        "kernels/tiny/sitecustomize.py": "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n",
    }
    repo.commit("a thread", files)
    repo.branch("other")
    repo.commit("other", {"kernels/tiny/__init__.py": PACKAGE + "# other\n"})
    options = ("--untrusted", "--device", "cpu", "--no-peers", "--epochs", "4", "--json")
    done = abprof_afresh("main", "other", *options, cwd=repo.path, home=tmp_path / "home")
    assert (done.code, "no fork server can start it" in done.err + done.out) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [OPENBLAS, POOL, SLEEPERS], ids=["threads of OpenBLAS", "a pool of processes", "threads that sleep"]
)
def test_an_honest_package_may_work_in_threads_and_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert outcome(tmp_path, more) == ("ok", "")


@pytest.mark.slow
def test_the_parents_clock_does_not_read_how_long_inputs_take(tmp_path: Path) -> None:
    repo = tiny_repo(tmp_path / "repo", 100)
    slow = "\nimport time\n_made = inputs\ndef inputs(*args):\n    time.sleep(0.5)\n    return _made(*args)\n"
    repo.commit("inputs take half a second", {"workloads/tiny.py": WORKLOAD + slow})
    repo.branch("other")
    repo.commit("other", {"kernels/tiny/__init__.py": PACKAGE + "# other\n"})
    options = ("--untrusted", "--device", "cpu", "--no-peers", "--quick", "--json")
    done = abprof("main", "other", *options, cwd=repo.path, home=tmp_path / "home")
    _, blocks, _ = read(Path(done.run["run_dir"]))
    waits = [turn.waited for block in blocks for row in block.rounds for turn in row]
    assert waits
    assert max(waits) < 5e8


@pytest.mark.slow
@pytest.mark.parametrize("base_spins", [True, False])
def test_what_bases_threads_do_outside_turns_the_targets_may_do(tmp_path: Path, base_spins: bool) -> None:
    status, reason = outcome(tmp_path, f"{SPINS}# other", SPINS if base_spins else "")
    assert status == ("ok" if base_spins else "outside_turn"), reason


@pytest.mark.slow
def test_a_thread_that_ends_soon_after_the_turn_is_found_too(tmp_path: Path) -> None:
    status, reason = outcome(tmp_path, SPINS.replace("0.3", "0.04"))
    assert status == "outside_turn", reason


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["a thread", "a child of its own session", pytest.param("a child process", marks=pytest.mark.nightly)]
)
def test_a_package_that_burns_while_base_has_its_turn(tmp_path: Path, how: str) -> None:
    body = "".join(f"        {line}\n" for line in BURNS[how].format("_burn").splitlines())
    status, reason = outcome(tmp_path, LOOP + FIRST_CALL.format(body))
    assert status == "outside_turn", reason
    assert reason.startswith("CPU time outside its turns: ")


@pytest.mark.slow
def test_work_that_a_thread_does_after_the_turn(tmp_path: Path) -> None:
    assert outcome(tmp_path, THREAD)[0] in {"outside_turn", "wrong"}


SPIN = "import torch\nprint('up', flush=True)\nwhile True:\n    torch.cuda._sleep(20_000_000)\n    torch.cuda.synchronize()\n"


@pytest.mark.gpu
@pytest.mark.alone
def test_a_kernel_of_another_process_is_seen() -> None:
    gpu = CudaClock()
    assert gpu.busy(20_000_000) == 0
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        busy = [gpu.busy(20_000_000) for _ in range(20)]
        other.kill()
    assert max(busy) > 2_000_000
