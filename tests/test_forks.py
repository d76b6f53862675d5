"""Workers are forked off servers that have imported torch (abprof/system/processes/forks.py, abprof/worker/main.py)."""

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from abprof.builds.worker_factory import ForkServers, install_bundle
from abprof.records import messages as wire
from abprof.system.processes import ForkServer, Worker, WorkerDied, WorkerFault, WorkerHung
from tests.sandboxes import needs_sandbox, sandbox
from tests.simulated.processes import alive


@pytest.fixture(scope="module")
def argv(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [sys.executable, "-P", str(install_bundle(tmp_path_factory.mktemp("cache")))]


@pytest.fixture(scope="module")
def server(argv: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    folder = tmp_path_factory.mktemp("server")
    made = ForkServer.of(argv, env=dict(os.environ), cwd=folder, log=folder / "forks.log")
    yield made
    made.kill()


def worker(
    argv: list[str], folder: Path, *servers: ForkServer | None, walled: bool = False, paused: bool = False, **env: str
) -> Worker:
    folder.mkdir(exist_ok=True)
    return Worker(
        argv, env={**os.environ, **env}, cwd=folder, log=folder / "log", walled=walled, paused=paused,
        servers=[one for one in servers if one],
    )  # fmt: skip


def test_forked_workers_answer_as_a_fresh_one_does(argv: list[str], server: ForkServer, tmp_path: Path) -> None:
    """The first one waits until the server has imported torch; then each is a process, a session and a folder of its own."""
    start = wire.Start("cpu", "base")
    first = worker(argv, tmp_path / "a", server)
    first.call(start, 120)
    second = worker(argv, tmp_path / "b", server, HOME=str(tmp_path / "home"))
    ready: wire.Ready = second.call(start, 120)
    fresh = worker(argv, tmp_path / "c", None)
    assert fresh.call(start, 120).versions == ready.versions
    assert len({first.pid, second.pid, fresh.pid}) == 3
    assert os.getsid(second.pid) == second.pid
    assert Path(f"/proc/{second.pid}/cwd").readlink() == tmp_path / "b"
    assert (tmp_path / "home").is_dir(), "the worker's own environment counts"
    for one in (first, second, fresh):
        one.stop()
        assert not alive(one.pid, wait=60)


def test_a_killed_worker_is_named_and_a_stopped_one_leaves_the_server_alive(
    argv: list[str], server: ForkServer, tmp_path: Path
) -> None:
    one = worker(argv, tmp_path / "a", server)
    one.call(wire.Start("cpu", "base"), 120)
    os.kill(one.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="killed by SIGKILL"):
        one.call(wire.Inventory(), 60)
    one.restart()
    one.call(wire.Start("cpu", "base"), 120)
    one.stop()
    assert server.alive


def test_workers_end_with_their_server_and_a_dead_server_is_done_without(argv: list[str], tmp_path: Path) -> None:
    server = ForkServer.of(argv, env=dict(os.environ), cwd=tmp_path, log=tmp_path / "forks.log")
    one = worker(argv, tmp_path / "a", server)
    one.call(wire.Start("cpu", "base"), 120)
    pid = one.pid
    server.kill()
    assert not alive(pid, wait=60)
    with pytest.raises(WorkerDied):
        one.call(wire.Inventory(), 60)
    one.restart()
    assert one.call(wire.Start("cpu", "base"), 120).versions
    one.stop()


@pytest.mark.parametrize(
    ("code", "later", "imports"),
    [("", "", 3), ("import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n", "", 7),
     ("raise OSError('not here')\n", "", 3),
     ("", "import contextlib, torch\nwith contextlib.suppress(Exception):\n    torch.cuda.init()\n", 4)],
)  # fmt: skip
def test_a_package_is_imported_once_for_all_workers_where_that_is_safe(
    argv: list[str], server: ForkServer, tmp_path: Path, code: str, later: str, imports: int
) -> None:
    """Each worker lists the package's files as the side's own. After an import that starts a thread, or fails, workers import.
    A later module is tried first: if it starts CUDA, workers import that module alone."""
    package = tmp_path / "kernels" / "pack" / "__init__.py"
    package.parent.mkdir(parents=True)
    counted = f"open({str(tmp_path / 'count')!r}, 'a').write('x')\n"
    package.write_text(f"{counted}import os\nos.environ['SET'] = '1'\n{code}")
    module = package.with_name("later.py")
    module.write_text(counted + later)
    load = tmp_path / "load.py"
    load.write_text("import os\nfrom abprof.kit import Op\nAPI, KERNEL = 1, 'pack'\nPRESETS = {'default': {'n': [1]}}\n"
                    "def inputs(case, device, seed): return ()\n"
                    "def prepare(kernel, variant, case, inputs):\n"
                    "    from abprof_side.pack import later\n    return Op(lambda: os.environ['SET'])\n")  # fmt: skip
    mount = wire.Mount(
        "pack", str(tmp_path / "kernels"), "abprof_side.pack", str(tmp_path), [str(tmp_path / "kernels")]
    )
    start = wire.Start("cpu", "base", mount, {"load": str(load)}, str(tmp_path))
    first = dataclasses.replace(start, modules=["abprof_side.pack.later"])
    own = server.with_package(first, env=os.environ, cwd=tmp_path, log=tmp_path / "forks.log")
    for name in ("a", "b"):
        one = worker(argv, tmp_path / name, own, server)
        one.call(start, 120)
        if "raise" in code:
            with pytest.raises(WorkerFault, match="not here"):
                one.call(wire.Open("load", {"n": 1}, "base"), 60)
        else:
            one.call(wire.Open("load", {"n": 1}, "base"), 60)
            proved: wire.Proved = one.call(wire.Prove(), 60)
            assert (proved.ok, [each.path for each in proved.artefacts]) == (True, [str(package), str(module)])
        one.stop()
    assert len((tmp_path / "count").read_text()) == imports
    assert own.alive == (not code)
    own.kill()


def test_a_server_that_cannot_start_or_is_one_too_many_is_no_error(tmp_path: Path) -> None:
    servers = ForkServers(dict(os.environ), tmp_path, tmp_path / "forks.log")
    assert servers.server(["/no/such/python"], 0) is None
    gone = servers.server([sys.executable, "-c", "raise SystemExit(3)"], 1)
    one = worker([sys.executable, "-c", "print('fresh')"], tmp_path / "a", gone)
    with pytest.raises(WorkerDied, match="ended with exit code 0"):
        one.call(wire.Inventory(), 60)
    assert servers.server([sys.executable, "-c", "raise SystemExit(3)"], 1) is None, "it ended before it forked"
    waits, room = [sys.executable, "-c", "import time; time.sleep(99)"], servers.room
    waiting = [servers.server(waits, 1, {"N": str(number)}) for number in range(14)]
    assert [one is not None and one.alive for one in waiting] == [False] * 2 + [True] * 12, "the oldest make room"
    assert servers.server(waits, 1, {"N": "2"}) is waiting[2]
    servers.server(waits, 1, {"N": "14"})
    assert [one is not None and one.alive for one in waiting[2:5]] == [True, False, True], "used last of these"
    assert (room, servers.room) == (True, False)
    servers.close()


# Code under test: try to reach the server, its parent, in each way that would change workers forked later. `stay` leaves
# a process behind.
ATTACKS = """
import ctypes, json, os, time
from pathlib import Path
from abprof.kit import Op
API, KERNEL, PRESETS = 1, "pack", {"default": {"do": ["attack", "stay", "hang", "burn"]}}

def inputs(case, device, seed):
    return ()

def attempts():
    libc, server = ctypes.CDLL(None, use_errno=True), os.getppid()
    for what in ("mem", "environ", "map_files", "fd/1"):
        yield what, os.access(f"/proc/{server}/{what}", os.R_OK) and opened(f"/proc/{server}/{what}")
    yield "attach", libc.ptrace(16, server, 0, 0) == 0
    handle = os.pidfd_open(server)
    yield "descriptors", any(libc.syscall(438, handle, fd, 0) >= 0 for fd in range(20))
    here = ctypes.create_string_buffer(8)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)
    yield "write", libc.process_vm_writev(server, vector, 1, vector, 1, 0) >= 0

def opened(path):
    try:
        Path(path).iterdir().__next__() if Path(path).is_dir() else open(path, "rb").close()
    except OSError:
        return False
    return True

def prepare(kernel, variant, case, inputs):
    if case["do"] == "attack":
        raise RuntimeError(json.dumps([what for what, reached in attempts() if reached]))
    if case["do"] == "hang":
        time.sleep(600)
    if not os.fork():
        os.setsid()
        while case["do"] == "burn":
            pass
        time.sleep(600)
    return Op(lambda: None)
"""


Contained = tuple[list[str], dict[str, str]]


@pytest.fixture
def contained(argv: list[str], tmp_path: Path) -> Contained:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "pack.py").touch()
    (tmp_path / "attacks.py").write_text(ATTACKS)
    return sandbox().around([*argv, "--walled"], os.environ, own=tmp_path, network=False)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[ForkServers]:
    made = ForkServers({}, tmp_path, tmp_path / "forks.log")
    yield made
    made.close()


def started(contained: Contained, servers: ForkServers, folder: Path, *, paused: bool = False) -> Worker:
    """A worker, forked in the sandbox, whose epoch takes the first server of three."""
    made = worker(contained[0], folder, servers.server(contained[0], 4, contained[1]), walled=True, paused=paused)
    root = folder.parent
    mount = wire.Mount("pack", str(root / "kernels"), "abprof_side.pack", str(root), [str(root / "kernels")])
    made.call(wire.Start("cpu", "base", mount, {"attacks": str(root / "attacks.py")}, str(root)), 120)
    assert made.forked
    return made


def running() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True) if alive(each.pid)}


@needs_sandbox
def test_a_worker_forked_in_a_sandbox_dies_and_hangs_as_a_fresh_one_and_cannot_change_its_server(
    contained: Contained, servers: ForkServers, tmp_path: Path
) -> None:
    one = started(contained, servers, tmp_path / "a")
    assert os.getsid(one.pid) == one.pid, "the id that it has outside of the sandbox"
    os.kill(one.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="killed by SIGKILL"):
        one.call(wire.Inventory(), 60)
    one = started(contained, servers, tmp_path / "b")
    with pytest.raises(WorkerFault, match=r"^RuntimeError: \[\]$"):
        one.call(wire.Open("attacks", {"do": "attack"}, "base"), 60)
    with pytest.raises(WorkerHung):
        one.call(wire.Open("attacks", {"do": "hang"}, "base"), 2)
    server = running()
    one = started(contained, servers, tmp_path / "c")
    one.call(wire.Open("attacks", {"do": "stay"}, "base"), 60)
    left = running() - server
    assert len(left) == 2, "the worker, and the process that it started"
    one.stop()
    assert not any(alive(each, wait=60) for each in left)
    assert running() == server


def test_servers_have_settled_once_they_use_no_cpu_time(argv: list[str], tmp_path: Path) -> None:
    servers = ForkServers(dict(os.environ), tmp_path, tmp_path / "forks.log")
    try:
        servers.settle(60)  # there are none
        server = servers.server(argv, 1)
        assert server is not None
        one = worker(argv, tmp_path / "a", server)  # forked after the import of torch: others follow
        one.stop()
        servers.settle(60)
        used = server.cpu_seconds
        time.sleep(0.3)
        assert 0.5 < used <= server.cpu_seconds < used + 0.1
    finally:
        servers.close()
    assert server.cpu_seconds == 0


@needs_sandbox
def test_a_sandbox_is_stopped_while_its_worker_has_no_request(
    contained: Contained, servers: ForkServers, tmp_path: Path
) -> None:
    one, before = started(contained, servers, tmp_path / "a", paused=True), running()
    one.call(wire.Open("attacks", {"do": "burn"}, "base"), 60)
    (child,) = running() - before
    ran, used = one.ran, psutil.Process(child).cpu_times()
    time.sleep(0.2)
    assert psutil.Process(child).cpu_times() == used
    assert one.observed(0.2) > 20_000_000, "it goes on with the next request"
    one.call(wire.Inventory(), 60)
    assert one.ran == ran
    os.kill(child, signal.SIGCONT)
    time.sleep(0.2)
    one.call(wire.Inventory(), 60)
    assert one.ran > ran + 20_000_000, "what goes on is seen"
    one.stop()
    assert not alive(child, wait=60)
    with pytest.raises(WorkerDied, match="no fork server"):
        worker(contained[0], tmp_path / "b", walled=True, paused=True)


@needs_sandbox
def test_a_dead_server_of_a_sandbox_is_replaced_and_nothing_of_it_is_left(
    contained: Contained, servers: ForkServers, tmp_path: Path
) -> None:
    before = running()
    one = started(contained, servers, tmp_path / "a")
    server = psutil.Process(one.pid).ppid()
    os.kill(server, signal.SIGKILL)
    assert not alive(one.pid, wait=60), "the sandbox ends with its server, and every worker with the sandbox"
    with pytest.raises(WorkerDied):
        one.call(wire.Inventory(), 60)
    again = started(contained, servers, tmp_path / "b")
    assert psutil.Process(again.pid).ppid() != server
    servers.close()
    assert running() == before
