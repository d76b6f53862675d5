"""Code under test behind a wall (`--contain`): bubblewrap starts it where the file system is read-only.

Behind it a process writes to its own build, its own folder of the run's scratch and a private place for temporary files. It sees
no process but its own, no network (a builder has it), no device but GPUs, and of the home folder not what holds keys. Nothing is
between it and the processor or the GPU while it runs, so a wall changes no timing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.system import processes as proc

ADVICE = "install bubblewrap (bwrap) and allow user namespaces, or --contain never"
# What a profiler counts, it counts with rights that a wall takes away.
NOT_FOREGROUND = "{} is started by or for a profiler, outside of the wall: it may write what the user may"
# The devices of a GPU. All others (disks!) are not there.
_GPUS = ("nvidia*", "nvidia-caps", "nvidia-caps-imex-channels", "dri", "kfd")
# Of the home folder: what holds keys and tokens.
_KEYS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".docker",
    ".kube",
    ".config",
    ".netrc",
    ".git-credentials",
    ".pypirc",
    ".npmrc",
    ".kaggle",
    ".ngc",
    ".pgpass",
    ".vault-token",
)
_KEYS_DEEPER = (
    ".cache/huggingface/token",
    ".huggingface/token",
    ".local/share/keyrings",
    ".cargo/credentials",
    ".cargo/credentials.toml",
)
# Of a folder of GitHub's runner: its own keys. Below it lies its work, the repository too.
_RUNNER = (".credentials*", ".runner", ".env")
_RUNNERS = ("/actions-runner", "/opt/actions-runner", "/home/runner/actions-runner")
# Sockets by which a service would do what the process itself may not, and where a container finds what it is entrusted with.
_SERVICES = (
    "/run/user",
    "/run/dbus",
    "/run/systemd/private",
    "/run/docker.sock",
    "/run/containerd",
    "/run/k3s",
    "/run/crio",
    "/run/podman",
    "/run/buildkit",
    "/run/libvirt",
    "/run/secrets",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
    "/var/lib/incus/unix.socket",
)
# Variables that name such a place, or a session's. What they name is hidden, and they are not passed on.
_SESSION = (
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "GPG_AGENT_INFO",
    "TMUX",
    "TMUX_TMPDIR",
    "STY",
    "KUBECONFIG",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "CONTAINER_HOST",
    "WAYLAND_DISPLAY",
    "DISPLAY",
    "XAUTHORITY",
)
_NAMING = ("XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "KUBECONFIG", "DOCKER_CONFIG", "XAUTHORITY")  # by its path alone
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - mounted privately


class Refused(Exception):
    """There is no wall here; the text says why."""


@dataclass(frozen=True)
class Wall:
    """A bubblewrap that starts here."""

    tool: str
    version: str  # "bubblewrap 0.8.0"

    def around(
        self, argv: Sequence[str], env: Mapping[str, str], *, own: Path, writable: Iterable[Path] = (), network: bool
    ) -> tuple[list[str], dict[str, str]]:
        """The command and environment that start `argv` behind the wall. `own` (made if need be) and `writable` are what it
        may write to. Temporary files lie in `own`/caches/tmp, by a name that is short enough for sockets if possible."""
        temporary = own / "caches" / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        given = [*argv, *(value for name, value in env.items() if name != "TMPDIR"), str(own), *map(str, writable)]
        free = [
            place for place in _TEMPORARY if Path(place).is_dir() and not any(f"{place}/" in text for text in given)
        ]
        env = {name: value for name, value in env.items() if name not in _SESSION}
        # Of the variables none may say what is not hidden: they are the user's session's, and of the sides' settings.
        interpreter = Path(argv[0])
        mounts = [*_everything(), *_hidden([interpreter, interpreter.resolve(), own, *writable])]
        for place in (str(own), *map(str, writable)):
            mounts += ["--bind", place, place]
        for place in free:
            mounts += ["--bind", str(temporary), place]
        spaces = ["--unshare-pid", "--unshare-ipc", *([] if network else ["--unshare-net"])]
        wrapped = [self.tool, *spaces, "--die-with-parent", "--cap-drop", "ALL", *mounts, "--", *argv]
        return wrapped, {**env, "TMPDIR": free[0] if free else str(temporary)}


def find() -> Wall:
    """bubblewrap, tried out: it is asked to start something. Raises Refused."""
    tool = shutil.which("bwrap")
    if tool is None:
        raise Refused("bwrap is not there")
    spaces = ["--unshare-pid", "--unshare-ipc", "--unshare-net", "--cap-drop", "ALL"]
    started, said = proc.tried([tool, *spaces, *_everything(), "--", "/bin/sh", "-c", ":"])
    if not started:
        raise Refused(f"bwrap does not start: {said or 'it says nothing'}")
    return Wall(tool, (proc.output([tool, "--version"]) or "bubblewrap").strip())


def chosen(asked: str, environment: str) -> tuple[Wall | None, str]:
    """The wall of a run, and where `auto` would have one and cannot, why not. `auto` is for code that may be a stranger's: it
    goes with the clean environment. Raises AbprofError for `always` where there is none."""
    if asked == "never" or (asked == "auto" and environment != "clean"):
        return None, ""
    try:
        return find(), ""
    except Refused as refused:
        if asked == "always":
            raise AbprofError(str(refused), where="--contain always", advice=ADVICE) from None
        return None, str(refused)


def refuse_foreground(asked: str, what: str) -> None:
    """Raises AbprofError where a wall was demanded for `what`, which is never behind one."""
    if asked == "always":
        advice = "leave one of the two out: --contain auto contains what it can, and says what it does not"
        raise AbprofError(NOT_FOREGROUND.format(what), where="--contain always", advice=advice)


def foreground_notes(wall: Wall | None, what: str) -> tuple[str, ...]:
    """A line where a run stands behind a wall, and `what` does not."""
    return (f"not contained: {NOT_FOREGROUND.format(what)}",) if wall is not None else ()


def _everything() -> list[str]:
    """All files read-only, new /proc and /dev, and of the devices the GPUs."""
    mounts = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    for pattern in _GPUS:
        for device in sorted(Path("/dev").glob(pattern)):
            mounts += ["--dev-bind-try", str(device), str(device)]
    return mounts


def _hidden(given: Sequence[Path]) -> list[str]:
    """Nothing in the place of what holds keys or asks services; but for folders that hold what the process is given."""
    places = [home / name for home in _homes() for name in (*_KEYS, *_KEYS_DEEPER)]
    places += [Path(os.environ[name]) for name in _NAMING if os.environ.get(name, "").startswith("/")]
    places += [file for runner in _runners() for pattern in _RUNNER for file in sorted(runner.glob(pattern))]
    mounts: list[str] = []
    for place in dict.fromkeys([*places, *map(Path, _SERVICES)]):
        real = place.resolve()
        if not _there(real) or any(path.is_relative_to(folder) for path in given for folder in (place, real)):
            continue
        mounts += ["--tmpfs", str(real)] if real.is_dir() else ["--ro-bind", "/dev/null", str(real)]
    return mounts


def _there(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # it may not even be looked at: then nothing behind the wall may either
        return False


def _runners() -> list[Path]:
    """Folders of GitHub's runners: the one that this is a step of, and those in the usual places."""
    work = os.environ.get("RUNNER_TEMP", "")  # ROOT/_work/_temp
    mine = [Path(work).parents[1]] if work.startswith("/") and len(Path(work).parents) > 1 else []
    found = [folder for home in _homes() for folder in sorted(home.glob("actions-runner*"))]
    return [*mine, *found, *map(Path, _RUNNERS)]


def _homes() -> list[Path]:
    """The home folder by the environment, and by the system's list of users."""
    homes = [Path(os.environ["HOME"])] if os.environ.get("HOME") else []
    with contextlib.suppress(RuntimeError):
        homes.append(Path(f"~{_user()}").expanduser())
    return homes


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
