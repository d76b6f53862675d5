"""Run code under test in a sandbox (`--contain`): bubblewrap starts the code on a read-only file system.

A sandboxed process may write to its own build, its own scratch folder and a private folder for temporary files. The
process sees no processes outside of the sandbox, no network (except builders), no devices except GPUs, and no keys in
the home folder. The sandbox does not change timing, because it intercepts no calls to the processor or the GPU.

Workers of an epoch are forked in the sandbox, by a fork server that runs no code under test. One sandbox holds the
workers of one build and one part of the scratch folder: those of a target, or those of base and of the peers; the
control is among them if it shares base's build. What a worker could do to others there is what it can do to later ones by changing its own
build: signal them, read or change their memory, leave processes behind while a worker of its epoch lives. The fork
server's memory and descriptors are closed to all of them (worker/main.py); a worker that kills or stops it ends its own
side's epoch. Another side, the judge of --check outside and builders are in sandboxes of their own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.records.errors import AbprofError
from abprof.system import paths
from abprof.system import processes as proc

ADVICE = "install bubblewrap (bwrap) and allow user namespaces, or --contain never"
# Profilers need rights that the sandbox removes.
NOT_FOREGROUND = "{} runs for a profiler, outside of the sandbox, and can write all files of the user"
_GPUS = ("nvidia*", "dri", "kfd")  # the only device files (no disks!) in the sandbox
# Files and folders of the home folder that hold keys and tokens.
_KEYS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".docker", ".kube", ".config", ".netrc", ".git-credentials", ".pypirc", ".npmrc",
    ".kaggle", ".ngc", ".pgpass", ".vault-token", ".cache/huggingface/token", ".huggingface/token", ".local/share/keyrings",
    ".cargo/credentials", ".cargo/credentials.toml",
)  # fmt: skip
# Keys of a GitHub runner, in its folder, which also contains the repository.
_RUNNER_KEYS = (".credentials*", ".runner", ".env")
_RUNNERS = ("/actions-runner", "/opt/actions-runner", "/home/runner/actions-runner")
# Sockets of services that act on behalf of a process, with more rights, and folders of container secrets.
_SERVICES = (
    "/run/user", "/run/dbus", "/run/systemd/private", "/run/docker.sock", "/run/containerd", "/run/k3s", "/run/crio",
    "/run/podman", "/run/buildkit", "/run/libvirt", "/run/secrets", "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket", "/var/lib/incus/unix.socket",
)  # fmt: skip
# Variables withheld in the sandbox: paths of hidden keys and sockets, and variables of the user's session.
_KEY_PATHS = ("XDG_RUNTIME_DIR", "SSH_AUTH_SOCK", "KUBECONFIG", "DOCKER_CONFIG", "XAUTHORITY")
_SESSION = (
    *_KEY_PATHS, "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS", "SSH_AGENT_PID", "GPG_AGENT_INFO", "TMUX",
    "TMUX_TMPDIR", "STY", "DOCKER_HOST", "CONTAINER_HOST", "WAYLAND_DISPLAY", "DISPLAY",
)  # fmt: skip
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - mounted privately


@dataclass(frozen=True)
class Sandbox:
    """The bubblewrap program that starts code under test. `tool`: its path."""

    tool: str
    version: str  # "bubblewrap 0.8.0"

    def around(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        own: Path,
        temporary: Path,
        writable: Iterable[Path] = (),
        fixed: Iterable[Path] = (),
        network: bool,
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment that start `argv` in the sandbox. `network`: allow network access.

        The process may write to `own` without `fixed`, and `temporary` ($TMPDIR), created if missing, and to `writable`.
        None may lie in another: code under test could put a link in its place.
        """
        for folder in (own, temporary):
            folder.mkdir(parents=True, exist_ok=True)
        own_folders = [str(own), *map(str, writable)]
        given = [*argv, *(value for name, value in env.items() if name != "TMPDIR"), *own_folders]
        free = [top for top in _TEMPORARY if Path(top).is_dir() and not any(f"{top}/" in text for text in given)]
        env = {name: value for name, value in env.items() if name not in _SESSION}
        interpreter = Path(argv[0])
        mounts = [*_everything(), *_hidden([interpreter, interpreter.resolve(), *map(Path, own_folders)])]
        for place in own_folders:
            mounts += ["--bind", place, place]
        mounts += [word for place in fixed for word in ("--ro-bind", str(place), str(place))]
        for place in free or [str(temporary)]:
            mounts += ["--bind", str(temporary), place]
        spaces = ["--unshare-pid", "--unshare-ipc", *([] if network else ["--unshare-net"])]
        wrapped = [self.tool, *spaces, "--die-with-parent", "--cap-drop", "ALL", *mounts, "--", *argv]
        return wrapped, {**env, "TMPDIR": free[0] if free else str(temporary)}


def find() -> Sandbox:
    """Find bubblewrap and start a test process in it. Raises AbprofError if bubblewrap is missing or does not start."""
    tool, where = shutil.which("bwrap"), "--contain always"
    if tool is None:
        raise AbprofError("bwrap is not installed", where=where, advice=ADVICE)
    spaces = ["--unshare-pid", "--unshare-ipc", "--unshare-net", "--cap-drop", "ALL"]
    started, error = proc.tried([tool, *spaces, *_everything(), "--", "/bin/sh", "-c", ":"])
    if not started:
        raise AbprofError(f"bwrap does not start: {error or 'no message'}", where=where, advice=ADVICE)
    return Sandbox(tool, (proc.output([tool, "--version"]) or "bubblewrap").strip())


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


def _everything() -> list[str]:
    """Return the arguments of bwrap that mount all files read-only, a new /proc and /dev, and the GPUs' devices."""
    gpus = [str(device) for pattern in _GPUS for device in sorted(Path("/dev").glob(pattern))]
    binds = [word for device in gpus for word in ("--dev-bind-try", device, device)]
    return ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", *binds]


def _hidden(needed: Sequence[Path]) -> list[str]:
    """Return the arguments of bwrap that hide keys and sockets, except folders that contain a `needed` path."""
    homes = [Path(os.environ["HOME"])] if os.environ.get("HOME") else []
    with contextlib.suppress(KeyError):  # home folder in the user database
        homes.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    work = Path(os.environ.get("RUNNER_TEMP", ""))  # ROOT/_work/_temp of the runner that runs this step
    runners = [*work.parents[1:2], *(folder for home in homes for folder in home.glob("actions-runner*"))]
    places = [home / name for home in homes for name in _KEYS]
    places.append(paths.build_key_file())
    places += [Path(os.environ[name]) for name in _KEY_PATHS if os.environ.get(name, "").startswith("/")]
    places += [file for root in (*runners, *map(Path, _RUNNERS)) for keys in _RUNNER_KEYS for file in root.glob(keys)]
    mounts: list[str] = []
    for place in dict.fromkeys([*places, *map(Path, _SERVICES)]):
        real = place.resolve()
        try:
            exists = real.exists()
        except OSError:  # unreadable here, so unreadable in the sandbox
            exists = False
        if not exists or any(path.is_relative_to(folder) for path in needed for folder in (place, real)):
            continue
        mounts += ["--tmpfs", str(real)] if real.is_dir() else ["--ro-bind", "/dev/null", str(real)]
    return mounts
