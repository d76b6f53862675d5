"""Run code under test in a sandbox (`--contain`): bubblewrap starts the code in a file system of its own.

That file system is empty except for the system's programs and libraries, the interpreter with its packages, folders
that variables for compilers name, and what the process needs of the run, all read-only. The process may write to its
own build, its own scratch folder and private folders for temporary files, which end with the sandbox. It sees no process
outside of the sandbox, no network (unless the package declares that its build needs it), no devices except GPUs, no
home folder, no sockets of services. A filter refuses system calls that lead out of a sandbox or that no kernel needs. The
sandbox does not change timing: calls to the processor or the GPU are not intercepted, and the filter costs nanoseconds.

Workers of an epoch are forked in the sandbox, by a fork server that runs no code under test. One sandbox holds the
workers of one build and one part of the scratch folder: those of a target, or those of base and of the peers; the
control is among them if it shares base's build. Workers in one sandbox can signal each other and change each other's
memory; changing their own build would give them as much. The fork server's memory and descriptors are closed to all of
them (worker/main.py); a worker that kills or stops it ends its own side's epoch. When the last worker ends, it kills what
they left behind; with --untrusted it stops all of them while none has a request. Another side, the judge of --check
outside and builders are in sandboxes of their own. Landlock is not used: it would hide no more files than are hidden so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import pwd
import shutil
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from abprof.builds import environment
from abprof.records.errors import AbprofError
from abprof.system import files, paths
from abprof.system import processes as proc

ADVICE = "install bubblewrap (bwrap) and allow user namespaces, or --contain never if you trust the code under test"
# Profilers need rights that the sandbox removes.
NOT_FOREGROUND = "{} runs for a profiler, outside of the sandbox, and can write all files of the user"
_GPUS = ("nvidia*", "dri", "kfd")  # the only device files (no disks!) in the sandbox
# Programs, libraries, drivers and their settings. Of /etc only what holds no keys; of /sys what describes the machine.
_SYSTEM = (
    "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix/store", "gnu/store", "cvmfs", ".singularity.d/libs",
    "home/linuxbrew/.linuxbrew", "opt/rocm*", "opt/nvidia", "opt/cuda*", "opt/intel", "opt/rh", "run/opengl-driver",
    "etc/ld.so.*", "etc/alternatives", "etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/hosts", "etc/localtime",
    "etc/os-release", "etc/python3*", "etc/ssl/certs", "etc/ssl/openssl.cnf", "etc/pki/tls/certs", "etc/pki/ca-trust/extracted",
    "etc/OpenCL", "etc/vulkan", "etc/glvnd", "sys/bus", "sys/class", "sys/dev", "sys/devices", "sys/module",
)  # fmt: skip
# Root could change them.
_SETTINGS = (
    "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/asound", "/proc/driver",
    "/proc/mtrr", "/proc/scsi",
)  # fmt: skip
_NETWORK = ("etc/resolv.conf", "etc/services", "etc/protocols", "etc/gai.conf")
_PRIVATE = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - empty folders in memory
# Not shown because a variable, an argument or the import path names it.
_WITHHELD = ("/run", "/dev", "/etc", "/proc", "/sys")
_READ, _WRITE = "--ro-bind-try", "--bind"
# Folders beside bin/ that programs of bin/ read.
_BESIDE = ("bin", "lib", "lib64", "libexec", "include", "nvvm", "targets", "extras", "*-linux-gnu")
_PREFIX = (*_BESIDE, "share", "ssl", "pyvenv.cfg", "conda-meta")  # of an interpreter, without its pip.conf
# Variables of the user's session that name sockets or keys, which --env user keeps.
_SESSION = (
    "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "KUBECONFIG", "DOCKER_CONFIG", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS", "SSH_AGENT_PID", "GPG_AGENT_INFO", "TMUX", "TMUX_TMPDIR", "STY", "DOCKER_HOST",
    "CONTAINER_HOST", "WAYLAND_DISPLAY", "DISPLAY",
)  # fmt: skip
# Against fork bombs, full disks and core dumps, which a program outside of the sandbox would read.
_LIMITS = ("--core=0", f"--nproc={1 << 14}", f"--fsize={64 << 30}")
_ASKS = """import json, sys
finders = [vars(sys.modules.get(getattr(finder, "__module__", ""), sys)).get("MAPPING", {}) for finder in sys.meta_path]
editable = [place for mapping in finders for place in mapping.values()]
print(json.dumps([[sys.prefix, sys.base_prefix], [place for place in [*sys.path, *editable] if place]]))"""


@dataclass(frozen=True)
class Sandbox:
    """The bubblewrap program that starts code under test. `tool`: its path; `rules`: the filter's file, "" for none."""

    tool: str
    version: str  # "bubblewrap 0.8.0"
    rules: str = ""

    def around(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        own: Path,
        writable: Iterable[Path] = (),
        readable: Iterable[Path] = (),
        fixed: Iterable[Path] = (),
        names: Collection[str] = (),
        network: bool,
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment that start `argv` in the sandbox. `network`: allow network access.

        The process may write to `own` (created if missing) without `fixed`, `writable`, $HOME, a folder in `own`, and $TMPDIR, which is
        in memory. It may read `readable`, and what `argv`, variables for compilers and the variables `names` name.
        Raises AbprofError if a folder to write to is a link, which code under test may have made.
        """
        home = own / "caches" / "home"
        for place in (own, home.parent, home, *writable):
            if place.is_symlink():
                raise AbprofError("a link, not a folder", where=str(place), advice="remove it")
        home.mkdir(parents=True, exist_ok=True)
        env = {name: value for name, value in env.items() if name not in _SESSION}
        env |= {"TMPDIR": _PRIVATE[0], "HOME": str(home)}
        given = [*readable, own, *writable]
        names_files = _outside([*argv[1:], *environment.places(env, names)], given)
        path = os.pathsep.join(_outside(env.get("PATH", os.defpath).split(os.pathsep), given))
        program = argv[0] if "/" not in argv[0] or _outside(argv[:1], given) else ""
        shown = _programs(program, path, tuple(names_files)).copy()
        for place in readable:
            shown.add(place)
        for place in (own, *writable):
            shown.add(place, _WRITE)
        shown.fixed += map(str, fixed)
        if network:
            shown.system(_NETWORK)
        return self.started([*_limits(), *argv], shown, network=network), env

    def started(self, argv: Sequence[str], shown: _Shown, *, network: bool) -> list[str]:
        """Return the command that starts `argv` in a sandbox with the files `shown`."""
        spaces = ["--unshare-user-try", "--unshare-pid", "--unshare-ipc", *([] if network else ["--unshare-net"])]
        gpus = [str(device) for pattern in _GPUS for device in sorted(Path("/dev").glob(pattern))]
        binds = [word for device in gpus for word in ("--dev-bind-try", device, device)]
        binds += [word for place in _SETTINGS for word in (_READ, place, place)]
        # The first process is bubblewrap: its /proc/1/exe is the file outside of the sandbox, whose owner could change it.
        mounts = ["--proc", "/proc", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1", "--dev", "/dev", *binds]
        mounts += [*shown.mounts(), "--remount-ro", "/"]
        command = [self.tool, *spaces, "--die-with-parent", "--cap-drop", "ALL", *mounts]
        if not self.rules:
            return [*command, "--", *argv]
        # The filter is read from standard input: any other descriptor may be one that the process inherits.
        opens = ["/bin/sh", "-c", 'rules=$1; shift; exec "$@" <"$rules"', "sh", self.rules]
        closes = ["/bin/sh", "-c", 'exec "$@" </dev/null', "sh"]
        return [*opens, *command, "--seccomp", "0", "--", *closes, *argv]


def find() -> Sandbox:
    """Find bubblewrap and start a test process in it. Raises AbprofError if bubblewrap is missing or does not start."""
    tool, where = shutil.which("bwrap"), "--contain always"
    if tool is None:
        raise AbprofError("bwrap is not installed", where=where, advice=ADVICE)
    sandbox = Sandbox(tool, (proc.output([tool, "--version"]) or "bubblewrap").strip(), _rules_file())
    started, error = proc.tried(sandbox.started([*_limits(), "true"], _programs("true", os.defpath, ()), network=False))
    if not started:
        raise AbprofError(f"bwrap does not start: {error or 'no message'}", where=where, advice=ADVICE)
    return sandbox


def chosen(contain: str, environment: str) -> tuple[Sandbox | None, str]:
    """Return the run's sandbox (None: no sandbox), and a message if --contain auto found that bubblewrap does not work.

    `contain`: the value of --contain. "auto" tries bubblewrap only if `environment` is "clean". "always" raises
    AbprofError if bubblewrap does not work.
    """
    if contain == "never" or (contain == "auto" and environment != "clean"):
        return None, ""
    try:
        return find(), ""
    except AbprofError as refused:
        if contain == "always":
            raise
        return None, refused.what


def refuse_foreground(contain: str, what: str) -> None:
    """Raise AbprofError if `contain` is "always", because `what` runs under a profiler, which fails in a sandbox."""
    if contain == "always":
        advice = "leave out one of the two, or use --contain auto, which sandboxes all other processes"
        raise AbprofError(NOT_FOREGROUND.format(what), where="--contain always", advice=advice)


def foreground_notes(sandbox: Sandbox | None, what: str) -> tuple[str, ...]:
    """Return a note that `what` runs outside the run's sandbox; () if the run has no sandbox."""
    return (f"not contained: {NOT_FOREGROUND.format(what)}",) if sandbox is not None else ()


# ---------------------------------------------------------------- files in the sandbox


@dataclass
class _Shown:
    """The files that a sandbox shows, each at its own path."""

    binds: dict[str, str] = field(default_factory=dict)  # real path -> bwrap's option
    links: dict[str, str] = field(default_factory=dict)  # link on the way to such a path -> its target
    fixed: list[str] = field(default_factory=list)  # paths that are read-only in a folder to write to

    def add(self, place: Path | str, how: str = _READ) -> None:
        """Show the file or folder `place`, which may lie behind links. Ignores one that does not exist."""
        path = os.path.abspath(place)  # noqa: PTH100 - Path.absolute() keeps ".."
        for _ in range(40):  # like the kernel
            link = next((str(p) for p in (*reversed(Path(path).parents), Path(path)) if os.path.islink(p)), "")  # noqa: PTH114
            if not link:
                break
            self.links[link] = os.readlink(link)  # noqa: PTH115
            path = os.path.normpath(os.path.join(os.path.dirname(link), self.links[link], path[len(link) + 1 :]))  # noqa: PTH118, PTH120
        if _exists(path) and self.binds.get(path) != _WRITE:
            self.binds[path] = how

    def named(self, place: str) -> None:
        """Show a folder or regular file that a variable, an argument or the import path names, unless that would show too
        much. Of a repository shows the entries without hidden ones."""
        real = Path(place).resolve()
        wide = any(
            Path(other).is_relative_to(real) for other in (*_homes(), *_PRIVATE, *_WITHHELD, str(paths.state_dir()))
        )
        withheld = any(real.is_relative_to(other) for other in _WITHHELD)
        if wide or withheld or not _exists(real):
            return
        if os.path.lexists(real / ".git"):
            for entry in real.iterdir():
                if not entry.name.startswith(".") and not entry.is_symlink():
                    self.add(entry)
        else:
            self.add(place)

    def with_prefix(self, folder: str, parts: Sequence[str] = _BESIDE) -> None:
        """Show a folder of programs, and the `parts` beside it if it is a bin/."""
        if not folder.startswith("/"):
            return
        self.named(folder)
        if Path(folder).name in {"bin", "sbin"}:
            for place in (place for part in parts for place in sorted(Path(folder).parent.glob(part))):
                self.named(str(place))

    def system(self, patterns: Sequence[str]) -> None:
        """Show the files of the system that match."""
        for place in (place for pattern in patterns for place in sorted(Path("/").glob(pattern))):
            self.add(place)

    def copy(self) -> _Shown:
        return _Shown({**self.binds}, {**self.links})

    def mounts(self) -> list[str]:
        """Return the arguments of bwrap: private folders, then links, then files, with a folder before what it contains."""
        around = {path: [str(above) for above in Path(path).parents if str(above) in self.binds] for path in self.binds}
        homes = [home for home in _homes() if not any(Path(home).is_relative_to(path) for path in self.binds)]
        arguments = [word for place in (*_PRIVATE, *homes) for word in ("--tmpfs", place)]
        for link, target in sorted(self.links.items()):
            if not any(str(above) in self.binds for above in Path(link).parents):
                arguments += ["--symlink", target, link]
        for path, how in sorted(self.binds.items()):
            if not around[path] or self.binds[around[path][0]] == _READ != how:
                arguments += [how, path, path]
        return [*arguments, *(word for path in self.fixed for word in ("--ro-bind", path, path))]


def _exists(path: Path | str) -> bool:
    """Whether `path` is a folder or a regular file that this user can reach."""
    with contextlib.suppress(OSError):
        return Path(path).is_dir() or Path(path).is_file()
    return False


def _outside(places: Iterable[str], given: Sequence[Path]) -> list[str]:
    """Return the absolute paths of `places` that are in none of the folders `given`: those may contain links and programs
    that code under test made, which are not followed or started outside of the sandbox."""
    absolute = [place for place in places if place.startswith("/")]
    return [p for p in absolute if not any(Path(os.path.normpath(p)).is_relative_to(folder) for folder in given)]


def _homes() -> list[str]:
    """Return the real paths of the user's home folders: $HOME's, and that of the user database."""
    homes = [os.environ.get("HOME", "")]
    with contextlib.suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    real = (os.path.realpath(home) for home in homes if home.startswith("/"))
    return [home for home in dict.fromkeys(real) if home != "/"]


@functools.lru_cache(64)
def _programs(program: str, path: str, places: tuple[str, ...]) -> _Shown:
    """Return the files of the system, those of `program`, of Python and of the folders of `path` (PATH), and `places`."""
    shown = _Shown()
    shown.system(_SYSTEM)
    for found in filter(None, (shutil.which(name, path=path) for name in (program, "python3", "python"))):
        shown.with_prefix(str(Path(found).absolute().parent))
        if Path(found).name.startswith(("python", "pypy")):
            prefixes, imports = _asked(found)
            for prefix in prefixes:
                shown.with_prefix(f"{prefix}/bin", _PREFIX)
            for place in imports:
                shown.named(place)
    for folder in path.split(os.pathsep):
        shown.with_prefix(folder)
    for place in places:
        shown.named(place)
    return shown


@functools.cache
def _limits() -> list[str]:
    tool = shutil.which("prlimit", path=os.defpath)
    return [tool, *_LIMITS] if tool else []


@functools.cache
def _asked(python: str) -> tuple[list[str], list[str]]:
    """Return the prefixes of an interpreter, and its import path with the sources of editable installs."""
    prefixes, imports = json.loads(proc.output([python, "-I", "-c", _ASKS]) or "[[], []]")
    return prefixes, imports


# ---------------------------------------------------------------- refused system calls

_CALLS = {  # name -> numbers on x86_64 and aarch64
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280), "userfaultfd": (323, 282),
    "perf_event_open": (298, 241), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116), "io_uring_setup": (425, 425),
}  # fmt: skip
_CLONE3, _OPENAT2, _IOCTL, _SOCKET = (435, 435), (437, 437), (16, 29), (41, 198)
_NEW_SPACES = 0x7E02_0000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_SETUID, _CREATE = 0o4000, 0x40_0040  # O_CREAT, and the bit that only O_TMPFILE has
# Refused if each of these arguments has one of these bits. A program left outside must not give others the user's rights.
_BITS: tuple[tuple[tuple[int, int], dict[int, int]], ...] = (
    ((56, 220), {0: _NEW_SPACES}),  # clone
    ((90, -1), {1: _SETUID}), ((91, 52), {1: _SETUID}), ((268, 53), {2: _SETUID}), ((452, 452), {2: _SETUID}),  # chmod
    ((85, -1), {1: _SETUID}), ((133, -1), {1: _SETUID}), ((259, 33), {2: _SETUID}),  # creat, mknod
    ((2, -1), {1: _CREATE, 2: _SETUID}), ((257, 56), {2: _CREATE, 3: _SETUID}),  # open
)  # fmt: skip
_TYPES_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: not AF_VSOCK, which a network namespace may not hide.
_FAMILIES = (1, 2, 10, 16)
_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of classic BPF
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97


def rules(machine: str) -> bytes:
    """Return the filter for `machine` (platform.machine()) as a program of classic BPF (seccomp(2)); b"" if unknown."""
    if machine not in _ARCHITECTURES:
        return b""
    which, program = list(_ARCHITECTURES).index(machine), list[tuple[int, int, int, int]]()

    def refuse(test: int, value: int, error: int = _EPERM) -> None:
        program.extend([(test, 0, 1, value), (_RETURN, 0, 0, _REFUSE | error)])

    program += [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _ARCHITECTURES[machine])]
    program += [(_RETURN, 0, 0, _REFUSE | _EPERM), (_LOAD, 0, 0, _NUMBER)]
    refuse(_AT_LEAST, 0x4000_0000)  # x32
    for numbers in _CALLS.values():
        refuse(_EQUAL, numbers[which])
    for numbers in (_CLONE3, _OPENAT2):  # their flags lie in memory; callers then use clone and openat
        refuse(_EQUAL, numbers[which], _ENOSYS)
    for numbers, bits in _BITS:
        if numbers[which] >= 0:
            program += [(_EQUAL, 0, 2 * len(bits) + 2, numbers[which])]
            for left, (argument, mask) in zip(range(len(bits), 0, -1), bits.items(), strict=True):
                program += [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_ANY_BIT, 0, 2 * left - 1, mask)]
            program += [(_RETURN, 0, 0, _REFUSE | _EPERM), (_RETURN, 0, 0, _ALLOW)]
    program += [(_EQUAL, 0, 6, _IOCTL[which]), (_LOAD, 0, 0, _ARGUMENTS + 8)]
    for request in _TYPES_INPUT:
        refuse(_EQUAL, request)
    program += [(_RETURN, 0, 0, _ALLOW)]
    program += [(_EQUAL, 0, 2 + len(_FAMILIES), _SOCKET[which]), (_LOAD, 0, 0, _ARGUMENTS)]
    program += [(_EQUAL, len(_FAMILIES) - number, 0, family) for number, family in enumerate(_FAMILIES)]
    program += [(_RETURN, 0, 0, _REFUSE | _EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *step) for step in program)


def _rules_file() -> str:
    """Write the filter to the cache, which no sandbox shows. Return the file's path; "" if there is no filter."""
    program = rules(platform.machine())
    if not program:
        return ""
    file = paths.cache_dir() / "worker" / f"rules-{hashlib.sha256(program).hexdigest()[:16]}.bpf"
    if not file.is_file() or file.read_bytes() != program:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.put(file, program)
    return str(file)
