"""Starts the workers and builders of a run: interpreter, environment, sandbox, log, and the worker bundle.

The worker bundle is the worker's code, copied by content to a folder of its own, so that nothing else of abprof's installation (or
of a branch that has an abprof/ folder too) can be imported beside the kernels under test.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from abprof.builds import environment
from abprof.builds.sandbox import ADVICE, Sandbox, chosen
from abprof.records import STANDING_IN, Checkout, Package
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import File, Options, worker_argv
from abprof.system.config_file import fill
from abprof.system.processes import ForkServer, Worker, WorkerDied, WorkerFault
from abprof.system.trees import remove_tree

_SERVERS = 3  # of an interpreter
_CORES_EACH = 2  # of a server that imports
_SOURCE = Path(__file__).parent.parent
_FILES = ("__init__.py", "kit.py", "records/messages.py")
_RUN = """import gc, os, sys
gc.disable()
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from abprof.worker.main import main
sys.exit(main())
"""


class ForkServers:
    """The processes that workers are forked off, by interpreter; none in a sandbox.

    Forks of one server share the addresses of their libraries: so a run has several servers, and its epochs take them in
    turn. Sides with the same interpreter share them.
    """

    def __init__(self, env: Mapping[str, str] | None = None, folder: Path = Path(), log: Path = Path()) -> None:
        """`env`: every worker's; None for no servers. They start in `folder`."""
        self._env, self._folder, self._log = env, folder, log
        self._servers: dict[tuple[tuple[str, ...], int], ForkServer] = {}

    def server(self, argv: Sequence[str], epoch: int) -> ForkServer | None:
        """The server for an epoch's workers of this command, started if need be; None where it does not start."""
        key = (tuple(argv), (epoch - 1) % _SERVERS)
        if self._env is None or worker_argv():
            return None
        if key not in self._servers or not self._servers[key].alive:
            try:
                self._servers[key] = ForkServer(argv, env=self._env, cwd=self._folder, log=self._log)
            except WorkerDied:
                return None
        return self._servers[key]

    def close(self) -> None:
        """End the servers; no further server starts."""
        self._env = None
        for server in self._servers.values():
            server.kill()

    def start(self, argv: Sequence[str], *, at_once: bool = False) -> None:
        """Start the servers of this command, which import while other work goes on. `at_once`: if cores are plenty."""
        plenty = len(os.sched_getaffinity(0)) > _CORES_EACH * _SERVERS
        for number in range(_SERVERS if plenty or not at_once else 1):
            self.server(argv, number + 1)


@dataclass(frozen=True)
class WorkerFactory:
    """Settings of a run's workers, and the processes started with them."""

    cache: Path
    logs: Path
    scratch: Path  # expected values and sampled outputs, shared by the run's workers
    workers: Mapping[str, Sequence[str]]  # side id -> argv
    env: Mapping[str, str]  # without secrets
    device: str
    timeout: float  # seconds for one request
    build_timeout: float
    withheld: tuple[str, ...] = ()  # names of variables that `env` lacks
    forbidden: tuple[str, ...] = ()  # folders from which only a side's own files may be loaded
    sources: tuple[
        str, ...
    ] = ()  # folders of the repository under test; what is installed from them belongs to no side
    workloads: Mapping[str, str] = field(default_factory=dict)  # name -> file
    toolchain: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # side id -> what decides a build
    named: frozenset[str] = frozenset()  # variables that abprof.toml's [environment] sets or allows
    sandbox: Sandbox | None = None  # in which code under test runs
    token: str = field(default_factory=lambda: secrets.token_hex(8))  # part of names that must not be guessed
    own: set[int] = field(default_factory=set)  # process ids of all workers, the ended too
    forks: ForkServers = field(default_factory=ForkServers)

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
    ) -> WorkerFactory:
        """The factory for these sides' interpreters and the options' environment. Raises AbprofError if an interpreter does not
        exist."""
        # Links are not followed: a venv's python is one.
        workers = {id: worker_argv() or (interpreter(options, id), "-P", str(install_bundle(cache))) for id in sides}
        settings = (options.file or File()).environment
        env, withheld = environment.clean(os.environ, environment.mode(options.env, os.environ), settings.allow)
        env |= settings.set
        # "1" keeps the autotuner's choice in the build's cache: the builder tunes, the epochs read.
        env["TRITON_CACHE_AUTOTUNING"] = "1" if options.autotune == "pinned" else "0"
        beside = str(Path(workers[sides[0]][0]).parent)  # pip's ninja
        env["PATH"] = os.pathsep.join([beside, env.get("PATH", os.defpath)])
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
            forks=ForkServers(environment.worker(env, scratch / "caches", device, {}), scratch, logs / "forks.log"),
        )

    def contained(self, options: Options) -> tuple[WorkerFactory, tuple[str, ...]]:
        """The factory with the run's sandbox, and a note if `auto` wants a sandbox and there is none. On a GPU a worker is tried in
        it: drivers may need more than files. Raises AbprofError if --contain always is impossible."""
        sandbox, why = chosen(options.contain, environment.mode(options.env, os.environ))
        made = replace(self, sandbox=sandbox)
        if sandbox is not None and self.device != "cpu":
            try:
                with made.alone("sandbox") as worker:
                    worker.call(wire.Start(self.device, "base"), self.timeout)
            except (WorkerDied, WorkerFault) as failed:
                made, why = self, f"a worker in bubblewrap cannot use {self.device}: {failed.reason}"
                if options.contain == "always":
                    raise AbprofError(why, where="--contain always", advice=ADVICE) from None
        return made, (f"not contained: {why}",) if why else ()

    def argv(self, side: str) -> Sequence[str]:
        """The worker's command for this side; control and peers stand in for base."""
        return self.workers["base" if side in STANDING_IN else side]

    def mount(self, checkout: Checkout, package: Package, place: Path) -> wire.Mount:
        """How a worker imports the build at `place`."""
        src = place / "src"
        if package.module:
            # `path` names the package's folder: its root is as many levels up as the import name has parts.
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
        """The first request to the worker `id` (a side's id, "control", "peers" or "judge")."""
        return wire.Start(self.device, id, mount, dict(self.workloads), str(self.scratch), epoch)

    def alone(self, name: str, side: str = "base", *, forked: bool = False) -> Worker:
        """Start a worker without a build, which logs to NAME.log; `forked`: off a server if possible. Raises WorkerDied."""
        argv, env = self.argv(side), environment.worker(self.env, self.scratch / "caches", self.device, {})
        server = self.forks.server(argv, 1) if forked and self.sandbox is None else None
        return self._started(argv, env, self.scratch, self.logs / f"{name}.log", name, server=server)

    def worker(
        self,
        side: str,
        checkout: Checkout,
        package: Package,
        place: Path,
        *,
        log: Path,
        name: str,
        on_line: Callable[[str], None] | None = None,
        network: bool = False,
        epoch: int | None = None,
    ) -> Worker:
        """Start a builder, or the worker of an `epoch`, of the build at `place`; `network`: also in a sandbox. Raises WorkerDied.

        In a sandbox the base, which makes the expected values, may write to all of `scratch`, another side to SCRATCH/SIDE.
        """
        room = self.scratch / side
        room.mkdir(exist_ok=True)
        return self._started(
            self.argv(side),
            self.worker_env(checkout, package, place),
            place,
            log,
            name,
            cwd=place / "src",
            writable=[self.scratch if side in {"base", *STANDING_IN} else room],
            network=network,
            on_line=on_line,
            server=None if epoch is None or package.env else self.forks.server(self.argv(side), epoch),
        )

    def worker_env(self, checkout: Checkout, package: Package, place: Path) -> dict[str, str]:
        """The environment of a builder or worker of the build at `place`."""
        places = {"worktree": str(place / "src"), "build_dir": str(place / "out"), "side": checkout.side.id}
        extra = fill(package.env, f"abprof.toml [kernels.{package.name}.env]", **places)
        extra["ABPROF_BUILD_DIR"] = places["build_dir"]
        return environment.worker(self.env, place / "caches", self.device, extra)

    def _started(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        own: Path,
        log: Path,
        name: str,
        *,
        cwd: Path | None = None,
        writable: Sequence[Path] = (),
        network: bool = False,
        **more: Any,
    ) -> Worker:
        """Start a worker with the folder `own`, in the sandbox if there is one. Raises WorkerDied."""
        if self.sandbox is not None:
            argv, env = self.sandbox.around(argv, env, own=own, writable=writable, network=network)
            more["walled"] = True
        return Worker(list(argv), env=env, cwd=cwd or own, log=log, name=name, started=self.own.add, **more)


def interpreter(config: Options, side: str) -> str:
    """A side's Python by its whole path: --python, abprof.toml's, or abprof's own. Raises AbprofError if it does not exist."""
    given, file = config.python, (config.file or File()).python
    python = given.get(side) or given.get("") or file.get(side) or file.get("all") or sys.executable
    found = shutil.which(python)
    if found is None:
        option = "--python" if given.get(side) or given.get("") else ""
        where = option or (config.file or File()).at(f"python.{side if file.get(side) else 'all'}")
        raise AbprofError(f"no interpreter {python!r}", where=where)
    return str(Path(found).absolute())


# ---------------------------------------------------------------- worker bundle


def install_bundle(cache: Path) -> Path:
    """Return the script that starts a worker, CACHE/harness/HASH/run_worker.py, made once per content.

    A copy that differs from the source (code under test may have written to it) is replaced.
    """
    # records/ itself needs msgspec: the worker gets its messages only.
    files = {"run_worker.py": _RUN.encode(), "abprof/records/__init__.py": b""}
    for file in [_SOURCE / name for name in _FILES] + [*(_SOURCE / "worker").rglob("*.py")]:
        files[f"abprof/{file.relative_to(_SOURCE)}"] = file.read_bytes()
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0".encode() + files[name])
    home = cache / "harness" / digest.hexdigest()[:16]
    if not _holds(home, files):
        fresh = home.with_name(f"{home.name}.{secrets.token_hex(8)}")
        for name, text in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_bytes(text)
        with contextlib.suppress(OSError):  # another process may publish the same at this moment
            if home.is_symlink():
                home.unlink()
            elif home.exists() and not _holds(home, files):
                remove_tree(home)
            fresh.rename(home)
        shutil.rmtree(fresh, ignore_errors=True)
        if not _holds(home, files):
            what = "the worker's code there differs from abprof's"
            raise AbprofError(what, where=str(home), advice="remove it by hand")
    return home / "run_worker.py"


def _holds(home: Path, files: Mapping[str, bytes]) -> bool:
    """Whether exactly these files are there, with these bytes, and no link or compiled Python."""
    try:
        paths = [path for path in home.rglob("*") if path.is_symlink() or not path.is_dir()]
        links = any(path.is_symlink() for path in (home, *paths))
        return not links and {str(path.relative_to(home)): path.read_bytes() for path in paths} == files
    except OSError:
        return False
