"""`--untrusted`: ways out of the sandbox, tried by a kernel package while it is built and while it is measured."""

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
SOCKETS += ("user/systemd/private", ".X11-unix/X7", "user/wayland-0", "pulse/native", "podman/podman.sock")
SOCKETS += ("nvidia-mps/control", "repo/server.sock", "@dbus", "@.X11-unix/X7")
# System calls that no kernel needs: numbers on x86_64 and elsewhere.
CALLS = {
    "mount": (165, 40), "umount": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428), "fsopen": (430, 430),
    "mount_setattr": (442, 442), "perf_event_open": (298, 241), "bpf": (321, 280), "add_key": (248, 217),
    "request_key": (249, 218), "kernel module": (313, 273), "kexec": (246, 104), "swap": (167, 224), "accounting": (163, 89),
    "file handle": (304, 265), "kernel log": (103, 116), "writing of memory": (311, 271),
}  # fmt: skip

# name -> a statement, which raises if the way is closed. M: folder of what the test prepared; V: a process of the user.
ATTACKS = {
    **{f"read ~/{name}": f"holds(open(M + '/home/{name}'))" for name in READ},
    **{f"write ~/{name}": f"plant(M + '/home/{name}')" for name in WRITTEN},
    **{f"socket {name}": f"connect({name!r})" for name in SOCKETS},
    **{f"system call: {name}": f"asks{numbers}" for name, numbers in CALLS.items()},
    "TCP of localhost": "socket.create_connection(('127.0.0.1', PORT), 2)",
    "a FIFO": "os.open(M + '/fifo', os.O_WRONLY | os.O_NONBLOCK)",
    "/dev/shm": "holds(open('/dev/shm/' + ID))",
    "System V shared memory": "ok(libc.shmget(PORT, 0, 0))",
    "System V messages": "ok(libc.msgget(PORT, 0))",
    "System V semaphores": "ok(libc.semget(PORT, 0, 0))",
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
    "the workers' code": "open(glob.glob(M + '/cache/worktrees/**/run_worker.py', recursive=True)[0], 'ab')",
    "the workloads": "open(glob.glob(M + '/cache/worktrees/**/workloads/tiny.py', recursive=True)[0], 'ab')",
    "record of the build": "open(os.path.dirname(OWN) + '/lock', 'r+b')",
    "the run's folder": "open(glob.glob(M + '/repo/runs/*/logs/*')[0], 'ab')",
    "site-packages": "os.unlink(plant(SITE + '/' + ID + '.pth'))",
    "/proc/PID/environ": "holds(open(f'/proc/{V}/environ'))",
    "/proc/PID/root": "holds(open(f'/proc/{V}/root{M}/home/.netrc'))",
    "/proc/PID/cwd": "holds(open(f'/proc/{V}/cwd/.netrc'))",
    "the program that starts the sandbox": "os.chmod('/proc/1/exe', os.stat('/proc/1/exe').st_mode & 0o7777)",
    "/proc/1/environ": "open('/proc/1/environ').read()",
    "a program with the user's rights": "os.chmod(plant(HOME + '/a'), 0o4755)",
    "the same by open": "1 / (os.fstat(os.open(HOME + '/b', os.O_CREAT | os.O_WRONLY, 0o4755)).st_mode & 0o4000)",
    "programs with root's rights": "1 / ('NoNewPrivs:\\t0' in open('/proc/self/status').read())",
    "signal": "os.kill(V, 0)",
    "stop of every process": "os.kill(-1, 0) if V in map(int, filter(str.isdigit, os.listdir('/proc'))) else 1 / 0",
    "priority": "os.setpriority(os.PRIO_PROCESS, V, 5)",
    "affinity": "os.sched_setaffinity(V, {0})",
    "limits": "resource.prlimit(V, resource.RLIMIT_CORE)",
    "raised limits": "resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))",
    "files of any size": "1 / (resource.getrlimit(resource.RLIMIT_FSIZE)[1] == -1)",
    "real-time priority": "ok(child(lambda: libc.sched_setscheduler(0, 1, ctypes.byref(ctypes.c_int(1)))))",
    "pidfd": "os.pidfd_open(V)",
    "ptrace": "ok(child(lambda: libc.ptrace(0x4206, V, 0, 0)))",  # PTRACE_SEIZE
    "ptrace of a child": "ok(child(lambda: libc.ptrace(0, 0, 0, 0)))",
    "memory of a child": "ok(libc.process_vm_readv(os.getpid(), 0, 0, 0, 0, 0))",
    "new user namespace": "ok(child(lambda: libc.unshare(0x10000000)))",
    "clone": "ok(child(lambda: min(0, libc.syscall(56 if X86 else 220, 0x10000011, 0, 0, 0, 0))))",
    "clone3": "ok(child(lambda: min(0, libc.syscall(435, struct.pack('88Q', 0x10000000, *[0] * 87), 88))))",
    "own namespace": "ok(libc.setns(os.open('/proc/self/ns/ipc', 0), 0))",
    "32-bit system call": "X86 or 1 / 0; ok(child(code(b'\\xb8\\x9e\\0\\0\\0\\xcd\\x80\\xc3')))",  # sched_yield
    "typed into a terminal": "fcntl.ioctl(os.openpty()[1], termios.TIOCSTI, b'x')",
    "userfaultfd": "ok(libc.syscall(323 if X86 else 282, 1))",
    "keyring": "ok(libc.syscall(250 if X86 else 219, 0, -4, 1))",
    "io_uring": "ok(libc.syscall(425, 1, ctypes.create_string_buffer(120)))",
    "vsock": "socket.socket(socket.AF_VSOCK)",
    "the kernel's ciphers": "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
    "raw packets": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "other machines": "socket.socket(type=socket.SOCK_DGRAM).connect(('192.0.2.1', 53))",
    "disks": "[n for n in os.listdir('/dev') if n.startswith(('sd', 'vd', 'nvme', 'mem', 'kmsg'))][0]",
    "the user's session": "os.environ['DBUS_SESSION_BUS_ADDRESS']",
    "a token in a variable": "os.environ['GITHUB_TOKEN']",
    "other network interfaces": "socket.if_nameindex()[1]",
    "core dumps": "1 / resource.getrlimit(resource.RLIMIT_CORE)[1]",
    "descriptors": "[fd for fd in map(os.readlink, LINKS) if not fd.startswith(('/dev', '/proc', 'pipe:', 'ipc:'))][0]",
    "a password": "open('/etc/shadow')",
    "settings of the system": "open('/etc/passwd', 'ab')",
    "settings of the kernel": "open('/proc/sys/kernel/core_pattern', 'ab')",
    "control groups": "open('/sys/fs/cgroup/cgroup.procs', 'ab')",
    "settings of devices": "open(glob.glob('/sys/class/net/*/mtu')[0], 'ab')",
    "settings of drivers": "os.open([p for p in ('/proc/mtrr', '/proc/acpi/wakeup') if os.path.exists(p)][0], os.O_WRONLY)",
    "commands of the kernel": "open('/proc/sysrq-trigger', 'ab')",
    "programs of all users": "os.unlink(plant('/usr/local/bin/' + ID))",
    "logs of the system": "os.listdir('/var/log')",
    "capabilities": "1 / int(open('/proc/self/status').read().split('CapEff:')[1].split()[0], 16)",
    "capabilities of a program": "1 / int(os.popen('cat /proc/self/status').read().split('CapEff:')[1].split()[0], 16)",
}
# Not open without the sandbox either: for abprof closes it, for users but root, or in some kernels and machines.
CLOSED = {"descriptors", "a token in a variable"}
NOT_ROOT = {
    "a password", "settings of the system", "settings of the kernel", "control groups", "capabilities", "ptrace",
    "capabilities of a program", "real-time priority", "own namespace",
    "raw packets", "settings of devices", "settings of drivers", "commands of the kernel", "programs of all users",
}  # fmt: skip
NOT_EVERYWHERE = {
    "keyring", "userfaultfd", "io_uring", "vsock", "disks", "other network interfaces", "control groups", "clone", "clone3",
    "new user namespace", "core dumps", "own namespace", "32-bit system call", "typed into a terminal", "the kernel's ciphers",
    "other machines", "settings of devices", "settings of drivers", "raised limits", "commands of the kernel",
    "logs of the system", "programs with root's rights", "real-time priority", "the program that starts the sandbox",
    "/proc/1/environ",
}  # fmt: skip
NOT_EVERYWHERE |= {f"system call: {name}" for name in CALLS}

TRIES = """
import ctypes, fcntl, glob, json, mmap, os, resource, socket, struct, termios
libc, X86, HOME = ctypes.CDLL(None, use_errno=True), os.uname().machine == "x86_64", os.environ.get("HOME", "")
OWN, LINKS = os.path.dirname(os.environ["ABPROF_BUILD_DIR"]), [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
def ok(result): assert result >= 0
def asks(*numbers): assert libc.syscall(numbers[not X86], *[-1] * 6) >= 0 or ctypes.get_errno() not in (1, 38)
def code(text):
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(text)
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    call.memory = memory
    return call
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
@pytest.mark.parametrize("options", [("--untrusted",), ("--contain", "never", "--check", "outside")], ids=["in", "out"])
def test_no_way_leads_out_of_the_sandbox_and_each_does_without(machine: Path, options: tuple[str, ...]) -> None:
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
    libc = ctypes.CDLL(None)
    memory, messages, flags = libc.shmget(port, 4096, 0o1600), libc.msgget(port, 0o1600), libc.semget(port, 1, 0o1600)
    shared.write_text(SECRET)
    names = {"M": str(machine), "ID": machine.name, "V": victim.pid, "PORT": port, "SECRET": SECRET, "ATTACKS": ATTACKS}
    names["SITE"] = sysconfig.get_path("purelib")
    code = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + TRIES
    repo.branch("hostile")
    repo.commit("hostile", {"kernels/tiny/__init__.py": PACKAGE + code, "kernels/tiny/tiny.c": source(50)})
    given = ("--quick", "--device", "cpu", "--no-peers", "--json", *options)
    session = {"HOME": str(machine / "home"), "DBUS_SESSION_BUS_ADDRESS": f"unix:path={machine}/user/bus"}
    session["GITHUB_TOKEN"] = SECRET
    try:
        done = abprof_afresh("main", "hostile", *given, cwd=repo.path, home=machine, **session)
        assert alive(victim.pid)
    finally:
        victim.kill()
        victim.wait()
        shared.unlink()
        libc.shmctl(memory, 0, None)
        libc.msgctl(messages, 0, None)
        libc.semctl(flags, 0, 0)
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
    if options != ("--untrusted",):
        closed = CLOSED | NOT_EVERYWHERE | (NOT_ROOT if os.geteuid() else set())
        assert set(ATTACKS) - out <= closed, tries
        return
    assert out == set()
    assert done.run["options"]["sandbox"] == sandbox().version
    assert done.statuses("base") == done.statuses("target") == {"tiny/n=4096": "ok"}
    assert {proof["forked"] for proof in done.run["proofs"]} == {True}
    assert len(ATTACKS) >= 100


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
