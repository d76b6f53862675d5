"""Find options, repository, devices, sides and folders of a run, before anything is built or measured.

The run then takes place inside two context managers of the RunContext: `worktrees`, and `alone`, which reserves devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from abprof import devices
from abprof import sides as repo
from abprof.builds import environment, interpreter, sandbox
from abprof.devices import Device, lease, not_busy
from abprof.records import WAIVER_FILE, Cell, Checkout, Run, Side, Waiver, names
from abprof.records.errors import AbprofError
from abprof.records.options import File, Options, judged_by_base
from abprof.system import certificate, paths, toml, waiver_file, workload_files
from abprof.system.config_file import parse_file, read_file
from abprof.system.console import View

_Repository = repo.Repository | repo.Folder


@dataclass(frozen=True)
class Continued:
    """An earlier run to continue, and the cells to measure."""

    run: Run
    cells: tuple[Cell, ...]  # cells to measure
    part: bool = False  # whether this is a shard, whose notes and warnings the coordinator has shown already


@dataclass(frozen=True)
class RunContext:
    """Options, repository, devices, sides and folders of a run."""

    options: Options
    file: File
    repository: _Repository
    pythons: Mapping[str, str]  # side id -> interpreter of the side's own environment, if it has one
    devices: tuple[Device, ...]  # devices over which the run is spread; usually one
    sides: tuple[Side, ...]
    notes: tuple[str, ...]
    waivers: tuple[Waiver, ...]
    cache: Path
    state: Path
    runs_dir: Path
    id: str
    continued: Continued | None = None  # the run that is continued; None: a new run

    @property
    def device(self) -> Device:
        """Return the first device, on which workloads are discovered and kernel packages are built."""
        return self.devices[0]

    @property
    def commits(self) -> repo.Repository:
        """Return the git repository, from which commits can be read. Raises AbprofError for a folder without git."""
        return self.repository.with_commits()

    @property
    def label(self) -> str:
        """Return a name of this run, to be shown by other runs that wait for its devices."""
        return f"abprof {' '.join(side.label for side in self.sides)} in {self.repository.path}"

    @property
    def submodules(self) -> bool:
        """Whether any configured package needs the repository's submodules."""
        return any(entry.submodules for entry in self.file.kernels.values())

    def uncertified(self) -> str:
        """Return why a slow-down must not fail the run, in CI without a passed selfcheck on every device; else ""."""
        machines = [device.machine() for device in self.devices] if os.environ.get("CI") else []
        return next(filter(None, (certificate.lacking(self.state, machine) for machine in machines)), "")

    @property
    def root(self) -> Path:
        """Return the folder of the user's working tree."""
        return Path(self.repository.path)

    @classmethod
    def again(
        cls,
        run: Run,
        cells: tuple[Cell, ...],
        repo: str,
        runs_dir: Path,
        budget: float,
        view: View,
        *,
        all: bool = True,
    ) -> RunContext:
        """Return the context in which to measure `cells` of `run` again. Raises AbprofError if code or device have changed.

        `all`: whether to measure cells of identical code too. `budget`: seconds.
        """
        options = msgspec.structs.replace(run.as_asked(repo, budget), runs_dir=str(runs_dir), all=all)
        if run.machines and not run.options.executor:
            options = msgspec.structs.replace(options, device=tuple(run.machines), devices=None)
        place = look_around(options, view)
        for before, now in zip(run.sides, place.sides, strict=True):
            if before.tree != now.tree:
                raise AbprofError(
                    f"{before.spec} has changed since the run", where=f"side {before.id}", advice="start a new run"
                )
        for device in () if run.options.executor else place.devices:
            here, then = device.machine(), run.machines.get(device.lease, run.machine)
            if (here.device, here.uuid) != (then.device, then.uuid):
                raise AbprofError(f"the run was made on {then.device}, this is {here.device}", advice="start a new run")
        return dataclasses.replace(place, sides=run.sides, notes=(), id=run.id, continued=Continued(run, cells))

    @property
    def judged_by_base(self) -> bool:
        """Whether workloads and configuration are those of base's commit."""
        return bool(_judged_by_base(self.options, self.repository, self.sides))

    def workloads_folder(self, trees: Sequence[Checkout], recorded: str = "") -> Path:
        """Return the folder of workloads that all sides use; a file if `--workloads` is the path of a file.

        By default the folder is the working tree's or base's (`judged_by_base`). --workloads-from overrides both. A
        continued run uses the folder in `recorded` ("PATH sha256:HEX") or one with the same content. Raises AbprofError
        if it is missing.
        """
        name = self.file.workloads or "workloads"
        own = Path(os.path.normpath(self.root / name))
        in_commits = own.is_relative_to(self.root)
        wanted = self.options.workloads_from or ("base" if self.judged_by_base and in_commits else "")
        by_side = {checkout.side.id: Path(checkout.path) / name for checkout in trees}
        folder = by_side.get(wanted) or (Path(wanted) if wanted else own)
        before, _, digest = recorded.rpartition(" sha256:")
        if digest and Path(before).exists():
            folder = Path(before)
        elif digest:
            places = (folder, *by_side.values())
            folder = next((path for path in places if path.is_dir() and workload_files.content(path) == digest), folder)
        if folder.exists():
            return folder
        if folder == by_side.get(wanted):
            spec = next(checkout.side.spec for checkout in trees if checkout.side.id == wanted)
            advice = "commit them there, or name another place with --workloads-from"
            raise AbprofError(f"no workloads: {spec} has no such folder", where=name, advice=advice)
        where = str(folder)
        if self.options.workloads_from:
            where = f"--workloads-from {folder}"
        elif self.file.workloads and folder == own:
            where = f"{self.file.at('workloads')}: {folder}"
        advice = "abprof init proposes a first one; or give the path of a folder to --workloads"
        raise AbprofError("no workloads: there is no such folder", where=where, advice=advice)

    def workloads_differ(self, trees: Sequence[Checkout], source: Path) -> list[str]:
        """Return a warning for each side whose own workloads differ from those in `source`, which the run uses."""
        name, mine = self.file.workloads or "workloads", workload_files.content(source)
        return [
            f"{checkout.side.label}'s own {name}/ differs from the workloads of this run, {source}"
            for checkout in trees
            if (Path(checkout.path) / name).is_dir() and workload_files.content(Path(checkout.path) / name) != mine
        ]

    def worktrees(self, run_id: str) -> contextlib.AbstractContextManager[tuple[Checkout, ...]]:
        """Return a context manager that gives each side a folder with its files while the block runs."""
        return repo.checkouts(self.repository, self.sides, run=run_id, submodules=self.submodules)

    @contextlib.contextmanager
    def alone(self, view: View, *, wait: bool) -> Iterator[RunContext]:
        """Reserve devices while the block runs. Yield the context with only the devices that could be reserved.

        `wait`: wait for devices that other runs hold. Raises AbprofError if a named device, or every device, is in use.
        First erases secrets from this process's environment in /proc, where code under test could read them.
        """
        environment.scrub_secrets(self.file.environment.allow)
        if self.options.executor:  # each shard reserves its own device, which may be this one
            yield self
            return
        with contextlib.ExitStack() as held:
            if len(self.devices) == 1 or self.options.device:
                for device in sorted(self.devices, key=lambda device: device.lease):  # one order: no deadlocks
                    self._reserve(held, device, view, wait=wait)
                yield self
                return
            free = []
            for device in self.devices:
                try:
                    self._reserve(held, device, view, wait=False)
                    free.append(device)
                except AbprofError as error:
                    view.say(f"{device.lease} is left out: {error.what}")
            if not free:
                self._reserve(held, self.devices[0], view, wait=wait)
            yield dataclasses.replace(self, devices=tuple(free) or self.devices[:1])

    def _reserve(self, held: contextlib.ExitStack, device: Device, view: View, *, wait: bool) -> None:
        with contextlib.ExitStack() as kept:
            kept.enter_context(lease(self.state, device.lease, wait=wait, label=self.label, say=view.warn))
            not_busy(device)
            if self.options.lock_clocks:
                kept.enter_context(device.locked(self.options.lock_clocks))
            held.push(kept.pop_all())


def look_around(options: Options, view: View, run: Run | None = None) -> RunContext:
    """Find repository, devices and folders, and resolve the refs. Raises AbprofError for unusable options.

    `run`: if this process measures a shard, the run whose id and sides it takes over; None: a new run.
    """
    cache, state = paths.cache_dir(), paths.state_dir()
    for line in repo.sweep(cache):
        if view.verbose:
            view.say(line)
    repository = _repository(options, cache)
    if run:
        file, sides = options.file or File(), run.sides
        notes, waived = tuple[str, ...](), tuple[Waiver, ...]()
    else:
        file = _file(repository, options)
        sides, notes, file = _sides(repository, options, file, view)
        waived = _waivers(repository, sides[0])
    found, left_out = _devices(options)
    _require_fitting(options, sides, found[0].kind)
    options = options.under(file)
    python = partial(interpreter, options)
    sides, pythons = repo.install_environments(sides, python, cache, options.build_timeout, view.say)
    options = msgspec.structs.replace(options, python=options.python | {id: python(id) for id in pythons})
    options.require_timer(found[0].kind)
    options.percents(found[0].kind)
    labels = names.safe_labels((side.label, side.commit) for side in sides)
    return RunContext(
        options=options,
        file=file,
        repository=repository,
        pythons=pythons,
        devices=found,
        sides=sides,
        notes=(*notes, *left_out),
        waivers=waived,
        cache=cache,
        state=state,
        runs_dir=Path(options.runs_dir).absolute() if options.runs_dir else Path(repository.path) / "runs",
        id=run.id if run else "-".join([datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), *labels])[:180],
        continued=Continued(run, run.cells, part=True) if run else None,
    )


def _sides(
    repository: _Repository, options: Options, file: File, view: View
) -> tuple[tuple[Side, ...], tuple[str, ...], File]:
    kernels = tuple(entry.path for entry in file.kernels.values() if entry.path) or ("kernels",)
    kernels = () if options.command else kernels  # a command may use any file
    timeout = options.under(file).build_timeout
    known = repo.install_releases(options.specs, partial(interpreter, options), repository.cache, timeout, view.say)
    sides, notes = repo.resolve(repository, options.specs, kernel_paths=kernels, known=known)
    why = _judged_by_base(options, repository, sides)
    if why and isinstance(repository, repo.Repository):
        file = _file_at(repository, sides[0])  # base's ref may have moved since `_file` read its configuration
        _refuse_tracked_interpreters(repository, file, why)
    return sides, notes, file


def _judged_by_base(options: Options, repository: _Repository, sides: Sequence[Side]) -> str:
    """Return why base's commit judges (`judged_by_base`); "" if the working tree does, as where base is a release."""
    by_commit = isinstance(repository, repo.Repository) and sides[0].kind != "dist"
    return judged_by_base(untrusted=options.untrusted) if by_commit else ""


def _refuse_tracked_interpreters(repository: repo.Repository, file: File, why: str) -> None:
    """Raise AbprofError if the checkout, which is the pull request's, brings an interpreter that base's file names."""
    root = Path(repository.path)
    for side, name in file.python.items():
        path = Path(os.path.normpath(name))
        if path.is_absolute() and path.is_relative_to(root):
            home, inside = path.parent.parent, [root / tracked for tracked in repository.tracked()]
            if any(one.is_relative_to(home) or path.is_relative_to(one) for one in inside):
                what, advice = f"{why}, and the checkout brings files of this interpreter", "name one outside of it"
                raise AbprofError(what, where=file.at(f"python.{side}"), advice=advice)


def _require_fitting(options: Options, sides: Sequence[Side], kind: str) -> None:
    """Raise AbprofError for an option that does not fit the sides or the `kind` of device."""
    ids = [side.id for side in sides]
    for name in options.python:
        if name and name not in ids:
            raise AbprofError(f"no side {name!r}", where="--python", advice=f"sides: {', '.join(ids)}")
    name = options.workloads_from
    if re.fullmatch(r"target\d*", name) and name not in ids:
        advice = f"sides: {', '.join(ids)}; for a folder of that name write ./{name}"
        raise AbprofError(f"no side {name!r}", where="--workloads-from", advice=advice)
    if "ncu" in options.probe:
        sandbox.refuse_foreground(options.contain, "what --probe ncu looks at")
    if options.regime == "sustained" and kind == "cpu":
        what = "calls without pauses are timed on a GPU, at its power limit"
        raise AbprofError(what, where="--regime sustained", advice="leave it out")
    if "perf" in options.probe and kind == "cuda":
        what = "perf samples what processors do, and this run is of a GPU"
        raise AbprofError(what, where="--probe perf", advice="--probe torch looks at GPUs")


def _devices(options: Options) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices to use, and notes on unused devices. Raises AbprofError if options contradict each other."""
    why = "a command is run on one device" if options.command else ""
    why = why or (f"--probe {','.join(options.probe)} looks at one device" if options.probe else "")
    if why and options.executor:
        raise AbprofError(why, where=f"--executor {options.executor}", advice="leave one of them out")
    most = 1 if why or options.executor else options.devices
    if most is not None and len(options.device) > most:
        limit = (why or "this measures on one device") if most == 1 else f"--devices {most}"
        what = f"--device was given {len(options.device)} times, and {limit}"
        raise AbprofError(what, where="--device", advice="name one of them" if most == 1 else "leave one out")
    found, left_out = devices.several(options.device, most)
    free = why and not options.executor and not options.device and options.devices != 1
    if free and len(devices.several((), None)[0]) > 1:
        left_out = (*left_out, f"measured on {found[0].lease} alone: {why}")
    if len({device.kind for device in found}) > 1:
        raise AbprofError("one run cannot use devices of two kinds", where="--device", advice="name only GPUs")
    return found, left_out


def _repository(options: Options, cache: Path) -> _Repository:
    """Open the git repository. If there is none, but all sides are releases, a plain folder takes its place."""
    path = Path(options.repo).expanduser()
    try:
        return repo.open_repository(path, cache=cache)
    except AbprofError:
        if not path.is_dir() or not all(map(repo.is_release, options.specs)):
            raise
        return repo.Folder(path.resolve(), cache)


def _file(repository: _Repository, options: Options) -> File:
    """Read the configuration from the working tree, or if base's commit judges from there."""
    released, by_base = options.specs and repo.is_release(options.specs[0]), judged_by_base(untrusted=options.untrusted)
    if not by_base or released or isinstance(repository, repo.Folder):
        return read_file(Path(repository.path)) or File()
    (base, *_), _ = repo.resolve(repository, options.specs[:1])
    return _file_at(repository, base)


def _file_at(repository: repo.Repository, base: Side) -> File:
    for name, table in (("abprof.toml", ()), ("pyproject.toml", ("tool", "abprof"))):
        text = repository.read_file(base.commit, name)
        if text is not None and (not table or b"[tool.abprof" in text):
            where = f"{base.label}:{name}"
            return parse_file(toml.decoded(text, where), where, table).of(Path(repository.path))
    return File()


def _waivers(repository: _Repository, base: Side) -> tuple[Waiver, ...]:
    """Read the waivers from base's commit, so that a target cannot waive its own slow-downs."""
    if base.kind == "dist" or isinstance(repository, repo.Folder):
        return ()
    text = repository.read_file(base.commit, WAIVER_FILE)
    where = f"{base.label}:{WAIVER_FILE}"
    return () if text is None else waiver_file.parse(toml.decoded(text, where), where)
