"""`--contain always`: ways out of the sandbox, tried by a kernel package while it is built and while it is measured."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandboxes import needs_sandbox, sandbox
from tests.simulated.processes import alive
from tests.tinyrepo import PACKAGE, abprof_afresh, source, tiny_repo

SECRET = "abprof-secret-4711"
# Secrets in the home folder, and what is written there to be run later.
READ = (".ssh/id_ed25519", ".netrc", ".cache/huggingface/token", ".oci/config", ".terraform.d/credentials.tfrc.json")
READ += (".bash_history", ".config/gh/hosts.yml", ".aws/credentials", "notes.txt")
WRITTEN = (".bashrc", ".config/systemd/user/a.service", ".config/autostart/a.desktop", ".ssh/authorized_keys")
# Services on sockets in /tmp, /run and the home folder; those of abstract names begin with @.
SOCKETS = ("tmux-0/default", "screen/S-u/1.a", "ssh-a/agent.1", "gnupg/S.gpg-agent", "user/bus", "docker.sock")
SOCKETS += ("user/systemd/private", ".X11-unix/X7", "user/wayland-0", "pulse/native", "@dbus", "@.X11-unix/X7")

# name -> a statement, which raises if the way is closed. M: folder of what the test prepared; V: a process of the user.
ATTACKS = {
    **{f"read ~/{name}": f"holds(open(M + '/home/{name}'))" for name in READ},
    **{f"write ~/{name}": f"plant(M + '/home/{name}')" for name in WRITTEN},
    **{f"socket {name}": f"connect({name!r})" for name in SOCKETS},
    "TCP of localhost": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "a FIFO": "os.open(M + '/fifo', os.O_WRONLY | os.O_NONBLOCK)",
    "/dev/shm": "holds(open('/dev/shm/' + ID))",
    "System V shared memory": "ok(libc.shmget(PORT, 0, 0))",
    "hard link to a secret": "os.link(M + '/home/.netrc', os.environ['ABPROF_BUILD_DIR'] + '/x')",
    "token in .git/config": "holds(open(M + '/repo/.git/config'))",
    "token in the clone": "[glob.glob(M + '/cache/*/*/config')[0]]",
    "git hook": "plant(M + '/repo/.git/hooks/planted')",
    "the repository": "plant(M + '/repo/planted.py')",
    "base's worktree": "plant(glob.glob(M + '/cache/worktrees/**/kernels/tiny/tiny.c', recursive=True)[0])",
    "base's build": "plant(next(p for p in glob.glob(M + '/cache/builds/*/*/out/tiny.so') if not p.startswith(OWN)))",
    "an object of its own build": "open(glob.glob(OWN + '/out/*.so')[0], 'ab')",  # in the builder there is none yet
    "a source of its own build": "glob.glob(OWN + '/out/*.so')[0], open(OWN + '/src/kernels/tiny/tiny.c', 'r+b')",
    "the key that seals builds": "open(glob.glob(M + '/**/build-key', recursive=True, include_hidden=True)[0], 'rb')",
    "the workers' code": "open(glob.glob(M + '/cache/worker/*/run_worker.py')[0], 'ab')",
    "the workloads": "open(glob.glob(M + '/cache/worktrees/**/workloads/tiny.py', recursive=True)[0], 'ab')",
    "record of the build": "open(os.path.dirname(OWN) + '/lock', 'r+b')",
    "the run's folder": "open(glob.glob(M + '/repo/runs/*/logs/*')[0], 'ab')",
    "site-packages": "os.unlink(plant(SITE + '/' + ID + '.pth'))",
    "/proc/PID/environ": "holds(open(f'/proc/{V}/environ'))",
    "/proc/PID/root": "holds(open(f'/proc/{V}/root{M}/home/.netrc'))",
    "/proc/PID/cwd": "holds(open(f'/proc/{V}/cwd/.netrc'))",
    "signal": "os.kill(V, 0)",
    "stop of every process": "os.kill(-1, 0) if V in map(int, filter(str.isdigit, os.listdir('/proc'))) else 1 / 0",
    "priority": "os.setpriority(os.PRIO_PROCESS, V, 5)",
    "affinity": "os.sched_setaffinity(V, {0})",
    "limits": "resource.prlimit(V, resource.RLIMIT_CORE)",
    "pidfd": "os.pidfd_open(V)",
    "ptrace": "ok(child(lambda: libc.ptrace(0x4206, V, 0, 0)))",  # PTRACE_SEIZE
    "ptrace of a child": "ok(child(lambda: libc.ptrace(0, 0, 0, 0)))",
    "memory of a child": "ok(libc.process_vm_readv(os.getpid(), 0, 0, 0, 0, 0))",
    "new user namespace": "ok(child(lambda: libc.unshare(0x10000000)))",
    "userfaultfd": "ok(libc.syscall({'x86_64': 323}.get(os.uname().machine, 282), 1))",
    "keyring": "ok(libc.syscall({'x86_64': 250}.get(os.uname().machine, 219), 0, -4, 1))",
    "io_uring": "ok(libc.syscall(425, 1, ctypes.create_string_buffer(120)))",
    "vsock": "socket.socket(socket.AF_VSOCK)",
    "disks": "[n for n in os.listdir('/dev') if n.startswith(('sd', 'vd', 'nvme', 'mem', 'kmsg'))][0]",
    "the user's session": "os.environ['DBUS_SESSION_BUS_ADDRESS']",
    "other network interfaces": "socket.if_nameindex()[1]",
    "core dumps": "1 / resource.getrlimit(resource.RLIMIT_CORE)[1]",
    "descriptors": "[fd for fd in map(os.readlink, LINKS) if fd.startswith('/') and not fd.startswith(('/dev', '/proc'))][0]",
    "a password": "open('/etc/shadow')",
    "settings of the system": "open('/etc/passwd', 'ab')",
    "settings of the kernel": "open('/proc/sys/kernel/core_pattern', 'ab')",
    "control groups": "open('/sys/fs/cgroup/cgroup.procs', 'ab')",
    "capabilities": "1 / int(open('/proc/self/status').read().split('CapEff:')[1].split()[0], 16)",
}
# Not open without the sandbox either: for abprof closes it, for users but root, or in some kernels and machines.
CLOSED = {"descriptors"}
NOT_ROOT = {
    "a password", "settings of the system", "settings of the kernel", "control groups", "capabilities", "ptrace",
}  # fmt: skip
NOT_EVERYWHERE = {"keyring", "userfaultfd", "io_uring", "vsock", "disks", "other network interfaces", "control groups"}
NOT_EVERYWHERE |= {"new user namespace", "core dumps"}

TRIES = """
import ctypes, glob, json, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
OWN, LINKS = os.path.dirname(os.environ["ABPROF_BUILD_DIR"]), [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
def ok(result): assert result >= 0
def holds(file): assert SECRET in file.read()
def plant(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file: file.write(SECRET)
    return path
def connect(name):
    with socket.socket(socket.AF_UNIX) as end: end.connect(f"\\0{M}{name}" if name[0] == "@" else f"{M}/{name}")
def child(call):
    if not (pid := os.fork()): os._exit(call() & 1)
    return -os.waitpid(pid, 0)[1]
did = {}
for name, attack in ATTACKS.items():
    try: did[name] = exec(attack) or "out"
    except Exception as error: did[name] = repr(error)
print("TRIED", json.dumps(did), flush=True)
"""


@pytest.fixture
def machine() -> Iterator[Path]:
    """A folder with a short name, for sockets; what a user has on a machine: files, services and a process."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    for name in (*READ, *SOCKETS[:-2]):
        (folder / "home" / name if name in READ else folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name in READ:
        (folder / "home" / name).write_text(f"it is {SECRET}\n")
    yield folder
    shutil.rmtree(folder)


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("contain", ["always", "never"])
def test_no_way_leads_out_of_the_sandbox_and_each_does_without(machine: Path, contain: str) -> None:
    repo, shared = tiny_repo(machine / "repo", 100), Path("/dev/shm", machine.name)
    subprocess.run(["git", "remote", "add", "o", f"https://u:{SECRET}@h/r"], cwd=repo.path, check=True)
    listening = [socket.create_server(("127.0.0.1", 0)), *(socket.socket(socket.AF_UNIX) for _ in SOCKETS)]
    for each, name in zip(listening[1:], SOCKETS, strict=True):
        each.bind(f"\0{machine}{name}" if name[0] == "@" else f"{machine}/{name}")
        each.listen()
    port = listening[0].getsockname()[1]
    victim = subprocess.Popen([sys.executable, "-c", "input()"], env={"A": SECRET}, cwd=machine / "home", stdin=-1)
    os.mkfifo(machine / "fifo")
    reader = os.open(machine / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    memory = ctypes.CDLL(None).shmget(port, 4096, 0o1600)  # IPC_CREAT
    shared.write_text(SECRET)
    names = {"M": str(machine), "ID": machine.name, "V": victim.pid, "PORT": port, "SECRET": SECRET, "ATTACKS": ATTACKS}
    names["SITE"] = sysconfig.get_path("purelib")
    code = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + TRIES
    repo.branch("hostile")
    repo.commit("hostile", {"kernels/tiny/__init__.py": PACKAGE + code, "kernels/tiny/tiny.c": source(50)})
    options = ("--quick", "--device", "cpu", "--no-peers", "--json", "--contain", contain, "--check", "outside")
    session = {"HOME": str(machine / "home"), "DBUS_SESSION_BUS_ADDRESS": f"unix:path={machine}/user/bus"}
    try:
        done = abprof_afresh("main", "hostile", *options, cwd=repo.path, home=machine, **session)
        assert alive(victim.pid)
    finally:
        victim.kill()
        victim.wait()
        shared.unlink()
        ctypes.CDLL(None).shmctl(memory, 0, None)
        for each in (*listening, victim.stdin):
            each.close()  # type: ignore[union-attr]
        os.close(reader)
    places = {f"write ~/{name}": machine / "home" / name for name in WRITTEN}
    places |= {"git hook": repo.path / ".git/hooks/planted", "the repository": repo.path / "planted.py"}
    private = {name for name, file in places.items() if not file.exists()}  # written in the sandbox's /tmp
    logs = [Path(done.run["run_dir"]) / "logs" / name for name in ("build-target-tiny.log", "worker-target-tiny.log")]
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("TRIED ")]
    tries = [json.loads(line.removeprefix("TRIED ")) for line in lines]
    out = {name for did in tries for name, how in did.items() if how == "out"} - private
    assert len(tries) >= 2, "the builder, and the worker"
    if contain == "never":
        closed = CLOSED | NOT_EVERYWHERE | (NOT_ROOT if os.geteuid() else set())
        assert set(ATTACKS) - out <= closed, tries
        return
    assert out == set()
    assert done.run["options"]["sandbox"] == sandbox().version
    assert done.statuses("base") == done.statuses("target") == {"tiny/n=4096": "ok"}
    assert {proof["forked"] for proof in done.run["proofs"]} == {True}
    assert len(ATTACKS) >= 40


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "does", "status"),
    [("", "connect", "build_failed"), ("network = true\n", "connect", "ok"), ("", "open('made', 'w')", "ok")],
)
def test_a_build_writes_to_its_folder_and_has_the_network_if_it_declares_that(
    tmp_path: Path, table: str, does: str, status: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connect = f"import socket; socket.create_connection({listening.getsockname()}, 5)"
        repo = tiny_repo(tmp_path / "repo", 100)
        build = json.dumps(["python3", "-c", connect if does == "connect" else does])
        repo.write({"abprof.toml": f"[kernels.tiny]\npath = 'kernels/tiny'\nbuild = {build}\n{table}"})
        options = ("--quick", "--device", "cpu", "--no-peers", "--json", "--contain", "always")
        done = abprof_afresh("main", ".", *options, cwd=repo.path, home=tmp_path)
    assert done.statuses("base") == done.statuses("target") == {"tiny/n=4096": status}
