"""Start the workers and builders of a run: choose their interpreter, environment, sandbox, log and worker bundle.

The worker bundle is the run's copy of the worker's code. Workers import the copy, so that they cannot import other files
of abprof's installation, nor an abprof/ folder of the branch under test.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from abprof.builds import environment
from abprof.builds.sandbox import ADVICE, Sandbox, chosen
from abprof.records import PEERS, STANDING_IN, Build, Checkout, Package
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import File, Options, worker_argv
from abprof.system.config_file import fill
from abprof.system.files import refusals
from abprof.system.processes import ForkServer, Worker, WorkerDied, WorkerFault

_SERVERS = 3  # fork servers per interpreter, or per sandbox
# Of a run, which then ends one that is not in use: each server takes some 200 MB.
_MOST_SERVERS = max(12, min(48, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 32))
_CORES_EACH = 2  # cores that a fork server uses while it imports torch
_LOOK, _IDLE = 0.1, 0.02  # seconds between two looks at the servers; CPU seconds of all between, if they are idle
_SOURCE = Path(__file__).parent.parent
_FILES = ("__init__.py", "kit.py", "records/messages.py")
_RUN = """import gc, os, sys
gc.disable()
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from abprof.worker.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class WorkerSpec:
    """A worker or builder to start, and the build that it loads or makes."""

    id: str  # a side's id, "control" or "peers"
    checkout: Checkout
    package: Package  # as it is on the side (`Package.of`)
    build: Build

    @property
    def place(self) -> Path:
        """Return the build's folder."""
        return Path(self.build.path)


class ForkServers:
    """Starts fork servers: processes that have imported torch and fork workers.

    All workers of one server have their libraries at the same addresses, which can affect times. So successive epochs
    use different servers. Sides with the same interpreter share servers, unless a sandbox or the package's own
    environment (abprof.toml) makes their commands or environments differ.
    """

    def __init__(self, env: Mapping[str, str] | None = None, folder: Path = Path(), log: Path = Path()) -> None:
        """`env`: environment of the servers (None: start no server); `folder`: working folder; `log`: log file."""
        self._env, self._folder, self._log = env, folder, log
        self._servers: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...], int], ForkServer] = {}
        self._with_package: dict[tuple[str, int], ForkServer | None] = {}
        self._fixed: dict[Path, Sequence[Path]] = {}
        self._lock = threading.Lock()  # builds run in threads

    def fixed(self, place: Path) -> Sequence[Path]:
        """Return what workers of the build at `place` may not write to: its sources, and the objects in out/, as they are
        at the first call. The folder out/ is writable, because torch's extension loader takes a lock there."""
        if place not in self._fixed:
            objects = [file for file in (place / "out").rglob("*.so") if file.is_file() and not file.is_symlink()]
            self._fixed[place] = (place / "src", *sorted(objects))
        return self._fixed[place]

    @property
    def room(self) -> bool:
        """Whether one more server may start while all others stay."""
        return len(self._servers) < _MOST_SERVERS

    @property
    def plenty(self) -> bool:
        """Whether this host has enough cores to start all servers at once."""
        return len(os.sched_getaffinity(0)) > _CORES_EACH * _SERVERS

    def server(self, argv: Sequence[str], epoch: int, env: Mapping[str, str] | None = None) -> ForkServer | None:
        """Return a fork server for workers that run `argv` in `epoch`. Starts it if necessary; None if that fails.
        `env`: the server's environment, if it is not that of all workers. A server that has ended is replaced, unless
        one of its three ended before it forked a worker."""
        env = self._env if env is None else env
        if self._env is None or env is None or worker_argv():
            return None
        with self._lock:
            return self._server(argv, epoch, env)

    def _server(self, argv: Sequence[str], epoch: int, env: Mapping[str, str]) -> ForkServer | None:
        key = (tuple(argv), tuple(sorted(env.items())), (epoch - 1) % _SERVERS)
        known, alike = self._servers.pop(key, None), [one for of, one in self._servers.items() if of[:2] == key[:2]]
        if known is not None:
            self._servers[key] = known  # the last one, so that the first has not been used for longest
            alike.append(known)
        if not all(one.alive or one.has_forked for one in alike):
            return None
        if known is None and len(self._servers) >= _MOST_SERVERS:
            idle = next((of for of, one in self._servers.items() if not one.in_use), None)
            if idle is None:
                return None
            self._servers.pop(idle).kill()
        if known is None or not known.alive:
            if known is not None:
                known.kill()  # what is left of it
            # A server that starts with an epoch must not take a core from what is measured next.
            command = argv if env == self._env or self.plenty else [*argv, "--no-preload"]
            try:
                known = self._servers[key] = ForkServer.of(command, env=env, cwd=self._folder, log=self._log)
            except WorkerDied:
                return None
        return known

    def with_package(
        self, plain: ForkServer, place: str, epoch: int, start: wire.Start, env: Mapping[str, str], cwd: Path
    ) -> ForkServer | None:
        """Return a server for `epoch`, forked off `plain`, that imports the build at `place`; None if none can start.
        A server that has ended, because the import is not safe to share, is not started again."""
        key = (place, (epoch - 1) % _SERVERS)
        if key not in self._with_package:
            try:
                self._with_package[key] = plain.with_package(start, env=env, cwd=cwd, log=self._log)
            except (OSError, WorkerDied):
                return None
        if (made := self._with_package[key]) and not made.alive:
            made.kill()  # also what its import started
            self._with_package[key] = None
        return self._with_package[key]

    def close(self) -> None:
        """End all fork servers."""
        for server in (*filter(None, self._with_package.values()), *self._servers.values()):
            server.kill()
        self._with_package.clear()
        self._servers.clear()

    def start(self, argv: Sequence[str]) -> None:
        """Start the fork servers for `argv` without waiting for them."""
        for number in range(_SERVERS):
            self.server(argv, number + 1)

    def settle(self, most: float) -> None:
        """Wait until the fork servers use no CPU time, that is until they have imported, `most` seconds at most. Beside
        their imports, calls on a CPU take several times as long."""
        before, end = 0.0, time.monotonic() + most
        while time.monotonic() < end:
            servers = [*self._servers.values()]
            used = sum(server.cpu_seconds for server in servers)
            if used <= before + _IDLE and all(server.waits for server in servers):
                return
            before = used
            time.sleep(_LOOK)


@dataclass(frozen=True)
class WorkerFactory:
    """Starts a run's workers and builders, with the run's settings."""

    cache: Path
    logs: Path
    scratch: Path  # expected values and sampled outputs, shared by the run's workers
    workers: Mapping[str, Sequence[str]]  # side id -> argv
    env: Mapping[str, str]  # variables of workers, without secrets
    device: str
    timeout: float  # seconds for one reply
    build_timeout: float
    withheld: tuple[str, ...] = ()  # names of variables left out of `env`
    forbidden: tuple[str, ...] = ()  # folders of all sides; a worker may not load files of other sides
    sources: tuple[str, ...] = ()  # folders of the repository; packages installed from them belong to no side
    workloads: Mapping[str, str] = field(default_factory=dict)  # name -> file
    toolchain: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # side id -> versions in the build key
    imports: int = _SERVERS  # fork servers that import a package; 0 with --quick, or where workloads wrap benchmarks
    named: frozenset[str] = frozenset()  # variables that abprof.toml's [environment] sets or allows
    sandbox: Sandbox | None = None  # sandbox for code under test; None: no sandbox
    untrusted: bool = False  # whether that code may be hostile
    token: str = field(default_factory=lambda: secrets.token_hex(8))  # secret part of names
    own: set[int] = field(default_factory=set)  # process ids of all workers, ended workers included
    forks: ForkServers = field(default_factory=ForkServers)
    room: int = 0  # bytes of the judge's GPU memory for the outputs of a worker (--untrusted); 0: they go into a file
    _begun: list[Worker] = field(default_factory=list)  # a judge that imports torch: none or one
    _judges: list[Worker] = field(default_factory=list)  # none or one
    _channels: list[socket.socket] = field(default_factory=list)  # of the judge: on which it sends descriptors
    _descriptors: dict[str, int] = field(default_factory=dict)  # worker id -> descriptor of the judge's memory for it

    @classmethod
    def of(
        cls,
        options: Options,
        cache: Path,
        scratch: Path,
        device: str,
        sides: Sequence[str],
        logs: Path,
        workloads: Mapping[str, Path],
        pythons: Mapping[str, str] = MappingProxyType({}),
    ) -> WorkerFactory:
        """Return a run's factory, with the interpreters and the environment that `options` choose. `sides`: ids of the
        sides; `pythons`: interpreters of those with packages of their own. Raises AbprofError if an interpreter does not
        exist."""
        # Links are not resolved: a venv's python is a link.
        bundle = str(install_bundle(scratch.with_name("worker")))
        below = {id: worker_argv() or (interpreter(options, id), "-P", bundle) for id in sides}
        workers = {id: (pythons.get(id, argv[0]), *argv[1:]) for id, argv in below.items()}
        settings = (options.file or File()).environment
        env, withheld = environment.clean(os.environ, environment.mode(options.env), settings.allow)
        env |= settings.set
        # "1" stores the autotuner's choice in the build's cache: the builder tunes, workers reuse the choice.
        env["TRITON_CACHE_AUTOTUNING"] = "1" if options.autotune == "pinned" else "0"
        beside = str(Path(below[sides[0]][0]).parent)  # pip installs ninja there
        env["PATH"] = os.pathsep.join([beside, env.get("PATH", os.defpath)])
        if "TMPDIR" not in {*settings.set, *settings.allow}:
            env["TMPDIR"] = str(scratch.with_name("temporary"))  # goes with the run
        return cls(
            cache=cache,
            logs=logs,
            scratch=scratch,
            workers=workers,
            env=env,
            device=device,
            timeout=options.timeout,
            build_timeout=options.build_timeout,
            withheld=withheld,
            workloads={name: str(file) for name, file in workloads.items()},
            named=frozenset({*settings.set, *settings.allow}),
            untrusted=options.untrusted,
            forks=ForkServers(environment.worker(env, scratch / "caches", device, {}), scratch, logs / "forks.log"),
        )

    def contained(self, options: Options) -> tuple[WorkerFactory, tuple[str, ...]]:
        """Return this factory with the sandbox that `options` ask for, and a note if none works. For --contain always,
        a missing sandbox raises AbprofError."""
        sandbox, why = chosen(options.contain, environment.mode(options.env))
        return replace(self, sandbox=sandbox), (f"not contained: {why}",) if why else ()

    def tried(self, options: Options) -> tuple[WorkerFactory, tuple[str, ...]]:
        """Start a worker in the sandbox, if there is one, to see whether it can use the device. Return this factory, for
        --untrusted with `room`, or one without the sandbox if it cannot, and notes. For --contain always that raises AbprofError."""
        if self.sandbox is None or self.device == "cpu":
            return self, ()
        try:
            made, notes = self._with_memory() if self.pauses else (self, ())
            if not made.room:
                made._try()
        except (WorkerDied, WorkerFault) as failed:
            why = f"a worker in bubblewrap cannot use {self.device}: {failed.reason}"
            if options.contain == "always":
                raise AbprofError(why, where="--contain always", advice=ADVICE) from None
            return replace(self, sandbox=None), (f"not contained: {why}",)
        return made, notes

    def _with_memory(self) -> tuple[WorkerFactory, tuple[str, ...]]:
        """Return the factory with `room`; or as it is, with a note, if workers cannot map GPU memory of the judge's."""
        try:
            made = replace(self, room=self._made("base"))
            made._try()
        except (WorkerDied, WorkerFault, OSError) as failed:
            why = getattr(failed, "reason", failed)
            return self, (
                f"timed calls' outputs go through a file, not the judge's GPU memory, which is slower: {why}",
            )
        return made, ()

    def _try(self) -> None:
        """Start a worker in the sandbox. Raises WorkerDied or WorkerFault if it cannot use the device."""
        with self.alone("sandbox", beside=self._memory("base")) as worker:
            worker.call(wire.Start(self.device, "base", room=self.room), self.timeout)

    def _memory(self, id: str) -> list[int]:
        """Return the descriptor of the judge's GPU memory for the outputs of worker `id`; none without `room`."""
        try:
            if self.room and self._judges and not (id in self._descriptors and self._judges[0].alive):
                self._made(id)
        except (WorkerFault, OSError) as failed:
            raise WorkerDied(f"the judge has no memory for its outputs: {failed}") from failed
        return [self._descriptors[id]] if self.room and self._judges else []

    def _made(self, id: str) -> int:
        """Have the judge make GPU memory for worker `id`. Return its bytes. Raises WorkerDied, WorkerFault or OSError."""
        made: wire.Shared = self.judge().call(wire.Share(id), self.timeout)
        _, (self._descriptors[id],), _, _ = socket.recv_fds(self._channels[0], 1, 1)
        return made.bytes

    def argv(self, side: str) -> Sequence[str]:
        """Return the command that starts a worker of `side`; control and peers use the command of base."""
        return self.workers["base" if side in STANDING_IN else side]

    def mount(self, spec: WorkerSpec) -> wire.Mount:
        """Return how a worker imports its build, and which files the worker may load."""
        package, place, checkout = spec.package, spec.place, spec.checkout
        src = place / "src"
        if package.module:
            # `path` is the package's folder; the import root lies as many levels above as the import name has parts.
            parts = package.module.split(".")
            folder = src / package.path if package.path else src.joinpath(*parts)
            root = folder.parents[len(parts) - 1]
        else:
            root = (src / package.path).parent if package.path else src / "kernels"
        return wire.Mount(
            name=package.name,
            root=str(root),
            module=package.module or f"abprof_side.{Path(package.path).name.removesuffix('.py') or package.name}",
            build_dir=str(place / "out"),
            allowed=[str(place), checkout.path],
            forbidden=list(self.forbidden),
            sources=list(self.sources),
            whole=checkout.side.kind == "dist",
        )

    def start(self, id: str, mount: wire.Mount | None = None, epoch: int = 0) -> wire.Start:
        """Return the message that tells worker `id` to start. `id`: a side's id, "control", "peers" or "judge"."""
        room = self.room if epoch and self._judges else 0
        return wire.Start(self.device, id, mount, dict(self.workloads), str(self.scratch), epoch, room=room)

    def alone(self, name: str, side: str = "base", *, forked: bool = False, beside: Sequence[int] = ()) -> Worker:
        """Start a worker that has no build and logs to NAME.log. `forked`: use a fork server. Raises WorkerDied."""
        argv, env = self.argv(side), environment.worker(self.env, self.scratch / "caches", self.device, {})
        server = self.forks.server(argv, 1) if forked and self.sandbox is None else None
        if self.sandbox is not None:
            argv, env = self.sandbox.around(argv, env, own=self.scratch, readable=self._shared(), network=False)
        servers = [server] if server else []
        return self._started(argv, env, self.scratch, self.logs / f"{name}.log", servers=servers, beside=beside)

    def begin_judge(self) -> None:
        """Start the judge's process without waiting until it has imported torch. Raises WorkerDied."""
        self.end_judge()
        ours, theirs = socket.socketpair()
        ours.settimeout(self.timeout)
        self._channels.append(ours)
        with theirs:
            beside = [theirs.fileno()] if self.pauses and self.device != "cpu" else ()
            self._begun.append(self.alone("judge", beside=beside))

    def judge(self) -> Worker:
        """Return the worker that checks outputs and loads no code under test. It serves all epochs, because it
        takes seconds to import torch and start CUDA. Raises WorkerDied or WorkerFault."""
        if not (self._judges and self._judges[0].alive):
            if not self._begun:
                self.begin_judge()
            self._judges.append(self._begun.pop())
            self._judges[0].call(self.start("judge"), self.timeout)
        return self._judges[0]

    def clear_judge(self) -> None:
        """Have the judge, if it runs, free what it keeps in memory."""
        for judge in self._judges:
            with contextlib.suppress(WorkerDied, WorkerFault):  # the next check starts another one
                judge.call(wire.Close(), self.timeout)

    def end_judge(self) -> None:
        """End the judge, if it runs."""
        for judges in (self._begun, self._judges):
            while judges:
                judges.pop().kill()
        while self._channels:
            self._channels.pop().close()
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def worker(
        self,
        spec: WorkerSpec,
        log: Path,
        *,
        on_line: Callable[[str], None] | None = None,
        builder: bool = False,
        epoch: int | None = None,
        imported: bool = False,
    ) -> Worker:
        """Start a process for a build: forked by a server of `epoch`, or fresh if that is None. A builder is forked, too,
        unless its package has a sandbox or an environment of its own. `imported`: whether to use a server that has
        imported the package. `builder`: in a sandbox, whether the process may write to all of the build's folder, and
        use the network if the package declares that. Raises WorkerDied if the process cannot be started."""
        argv, env = self._command(spec, builder=builder)
        if builder:  # in a sandbox a builder may do more than a worker
            plain = None if self._apart(spec) else self.forks.server(argv, 1)
            servers: Sequence[ForkServer] = [plain] if plain else []
        else:
            servers = [] if epoch is None else self._servers(spec, epoch)
            servers = servers if imported else servers[-1:]
        paused = self.pauses and epoch is not None
        beside = self._memory(spec.id) if paused else ()
        return self._started(
            argv, env, spec.place / "src", log, on_line=on_line, servers=servers, beside=beside, paused=paused
        )

    @property
    def pauses(self) -> bool:
        """Whether workers that measure are stopped while they have no request."""
        return self.untrusted and self.sandbox is not None and not worker_argv()

    def _command(self, spec: WorkerSpec, *, builder: bool = False) -> tuple[Sequence[str], dict[str, str]]:
        """Return the command and environment of a process for a build, in the run's sandbox if any. There it may write
        to the build's folder and the side's part of the scratch folder."""
        argv, env, room = self.argv(spec.id), self.worker_env(spec), self.scratch / spec.id
        room.mkdir(exist_ok=True)
        if self.sandbox is None:
            return argv, env
        if room.is_symlink():  # made by base's code
            raise WorkerDied(f"its folder {room} is a link")
        return self.sandbox.around(
            argv,
            env,
            own=spec.place,
            writable=[self.scratch if spec.id in {"base", *STANDING_IN} else room],  # base computes expected values
            readable=[*self._shared(), self.scratch, Path(spec.checkout.path)],
            fixed=() if builder else self.forks.fixed(spec.place),
            names={*self.named, *spec.package.env},
            network=builder and spec.package.network,
        )

    def _shared(self) -> list[Path]:
        files = (*(argv[-1] for argv in self.workers.values()), *self.workloads.values())
        return list(dict.fromkeys(Path(file).parent for file in files))

    def servers(self, spec: WorkerSpec, epoch: int) -> int:
        """Start the fork servers of a build for `epoch`, without waiting for their imports. Return how many can fork a worker:
        2 with one that imports the package. Servers of their own start all at once: imports of torch would disturb turns."""
        if self._apart(spec):
            self.preload(spec, epoch)
        return len(self._servers(spec, epoch))

    def preload(self, spec: WorkerSpec, epoch: int) -> None:
        """Start the build's fork servers that `epoch` and, on a host with many cores, later epochs need, unless they would
        disturb calls on the CPU."""
        if self.forks.plenty and self.device != "cpu":
            count = _SERVERS if self._apart(spec) else self.imports if self._preloads(spec) else 0
            for number in range(count):
                if self.forks.room:
                    self._servers(spec, number + 1, ahead=True)
        self._servers(spec, epoch, ahead=True)

    def _apart(self, spec: WorkerSpec) -> bool:
        """Whether the workers need fork servers of their own: in their sandbox, or with their environment. Such a server
        runs no code under test, unless that environment's PYTHONPATH has modules that torch imports."""
        return self.sandbox is not None or bool(spec.package.env)

    def _preloads(self, spec: WorkerSpec) -> bool:
        # Not on a CPU: all epochs of a server would have the package's code at the same addresses, which affects times.
        return self.device != "cpu" and spec.id != PEERS and self.imports > 0 and not self._apart(spec)

    def _servers(self, spec: WorkerSpec, epoch: int, *, ahead: bool = False) -> Sequence[ForkServer]:
        """Return the fork servers to try for a worker: one that has imported the package, and one that has not. In the
        first epoch workers import the package themselves: that takes as long as to wait for the servers' imports, and
        half as long if these turn out not to be safe to share. `ahead`: start a server that imports it then, too."""
        command, own_env = self._command(spec)
        if self.sandbox is not None:  # on a CPU, imports after the workers' end would be beside other workers' calls
            command = [*command, "--walled", *(["--no-preload"] if self.device == "cpu" else [])]
        plain = self.forks.server(command, epoch, own_env if self._apart(spec) else None)
        if plain is None or not self._preloads(spec) or (epoch == 1 and not ahead):
            return [plain] if plain else []
        start = self.start(spec.id, mount := self.mount(spec))
        loaded = (artefact.name for artefact in spec.build.artefacts if artefact.kind == "module")
        start.modules.extend(name for name in loaded if f"{name}.".startswith(f"{mount.module}."))
        key, env = f"{spec.checkout.path} {spec.place}", self.worker_env(spec)
        own = self.forks.with_package(plain, key, epoch, start, env, spec.place / "src")
        return [own, plain] if own else [plain]

    def worker_env(self, spec: WorkerSpec) -> dict[str, str]:
        """Return the environment of each builder or worker that uses the build."""
        package, place, side = spec.package, spec.place, spec.checkout.side.id
        places = {"worktree": str(place / "src"), "build_dir": str(place / "out"), "side": side}
        extra = fill(package.env, f"abprof.toml [kernels.{package.name}.env]", **places)
        extra["ABPROF_BUILD_DIR"] = places["build_dir"]
        own, path = f"{Path(self.argv(side)[0]).parent}{os.pathsep}", self.env["PATH"]
        env = {**self.env, "PATH": path if path.startswith(own) else own + path}  # a build command may run `python`
        return environment.worker(env, place / "caches", self.device, extra)

    def _started(self, argv: Sequence[str], env: dict[str, str], cwd: Path, log: Path, **more: Any) -> Worker:
        walled = self.sandbox is not None
        return Worker(list(argv), env=env, cwd=cwd, log=log, started=self.own.add, walled=walled, **more)


def interpreter(config: Options, side: str) -> str:
    """Return the path of a side's Python from --python or abprof.toml, else abprof's. Raises AbprofError if missing."""
    given, file = config.python, (config.file or File()).python
    python = given.get(side) or given.get("") or file.get(side) or file.get("all") or sys.executable
    found = shutil.which(python)
    if found is None:
        option = "--python" if given.get(side) or given.get("") else ""
        where = option or (config.file or File()).at(f"python.{side if file.get(side) else 'all'}")
        raise AbprofError(f"no Python interpreter {python!r}", where=where)
    return str(Path(found).absolute())


def install_bundle(home: Path) -> Path:
    """Copy the worker's code to the folder `home`, and return the path of the start script there."""
    # Of records/ only messages.py: the other modules need msgspec.
    files = {"run_worker.py": _RUN.encode(), "abprof/records/__init__.py": b""}
    for file in [_SOURCE / name for name in _FILES] + [*(_SOURCE / "worker").rglob("*.py")]:
        files[f"abprof/{file.relative_to(_SOURCE)}"] = file.read_bytes()
    for name, text in files.items():
        with refusals(home / name):  # an error of a write names no file
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(text)
    return home / "run_worker.py"
