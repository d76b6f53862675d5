"""Find options, repository, devices, sides and folders of a run, before anything is built or measured.

The context managers `worktrees`, `alone` (reserves the devices) and `signals` then enclose the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from abprof import devices
from abprof import sides as repo
from abprof.builds import environment, interpreter, sandbox
from abprof.devices import Device, lease
from abprof.records import Checkout, Run, Side, Waiver, names
from abprof.records.errors import AbprofError
from abprof.records.options import File, Options
from abprof.system import paths, toml, waiver_file
from abprof.system.config_file import parse_file, read_file
from abprof.system.console import View
from abprof.verdict import waivers

_Repository = repo.Repository | repo.Folder


@dataclass(frozen=True)
class RunContext:
    """Options, repository, devices, sides and folders of a run."""

    options: Options
    file: File
    repository: _Repository
    devices: tuple[Device, ...]  # devices over which the run is spread; usually one
    sides: tuple[Side, ...]
    notes: tuple[str, ...]
    waivers: tuple[Waiver, ...]
    cache: Path
    state: Path
    runs_dir: Path
    id: str

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

    @property
    def root(self) -> Path:
        """Return the folder of the user's working tree."""
        return Path(self.repository.path)


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
    if found[0].kind == "cpu" and options.by_timer not in {"auto", "cpu"}:
        what = f"{options.by_timer} times a GPU, and this run is of a CPU"
        raise AbprofError(what, where=options.asked_by("--timer"), advice="choose cpu or auto")
    options.percents(found[0].kind)
    labels = names.safe_labels((side.label, side.commit) for side in sides)
    return RunContext(
        options=options,
        file=file,
        repository=repository,
        devices=found,
        sides=sides,
        notes=(*notes, *left_out),
        waivers=waived,
        cache=cache,
        state=state,
        runs_dir=Path(options.runs_dir).absolute() if options.runs_dir else Path(repository.path) / "runs",
        id=run.id if run else "-".join([datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), *labels])[:180],
    )


def _sides(
    repository: _Repository, options: Options, file: File, view: View
) -> tuple[tuple[Side, ...], tuple[str, ...], File]:
    kernels = tuple(entry.path for entry in file.kernels.values() if entry.path) or ("kernels",)
    kernels = () if options.command else kernels  # a command may use any file
    timeout = options.under(file).build_timeout
    known = repo.install_releases(options.specs, partial(interpreter, options), repository.cache, timeout, view.say)
    sides, notes = repo.resolve(repository, options.specs, kernel_paths=kernels, known=known)
    if os.environ.get("CI") and isinstance(repository, repo.Repository) and sides[0].kind != "dist":
        file = _file_at(repository, sides[0])  # base's ref may have moved since `_file` read its configuration
    return sides, notes, file


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
    if options.sustained and kind == "cpu":
        what = "the sustained mode times a GPU at its power limit"
        raise AbprofError(what, where="--sustained", advice="leave it out")
    if "perf" in options.probe and kind == "cuda":
        what = "perf samples what processors do, and this run is of a GPU"
        raise AbprofError(what, where="--probe perf", advice="--probe torch looks at GPUs")


def _devices(options: Options) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices to use, and notes on unused devices. Raises AbprofError if options contradict each other."""
    reasons = {
        "a command is run on one device": bool(options.command),
        f"--probe {','.join(options.probe)} looks at one device": bool(options.probe),
        "--sustained measures on one device": bool(options.executor and options.sustained),
    }
    why = next((why for why, holds in reasons.items() if holds), "")
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
    """Read the configuration from the working tree, or under CI from base's commit, which a target cannot change."""
    released = repo.is_release(options.specs[0]) if options.specs else False
    if not os.environ.get("CI") or released or isinstance(repository, repo.Folder):
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
    text = repository.read_file(base.commit, waivers.FILE)
    where = f"{base.label}:{waivers.FILE}"
    return () if text is None else waiver_file.parse(toml.decoded(text, where), where)


# ---------------------------------------------------------------- held while a run lasts


def worktrees(place: RunContext, run_id: str) -> contextlib.AbstractContextManager[tuple[Checkout, ...]]:
    """Return a context manager that gives each side a folder with its files while the block runs."""
    return repo.checkouts(place.repository, place.sides, run=run_id, submodules=place.submodules)


@contextlib.contextmanager
def alone(place: RunContext, view: View, *, wait: bool) -> Iterator[RunContext]:
    """Reserve devices while the block runs. Yield `place` with only the devices that could be reserved.

    `wait`: wait for devices that other runs hold. Raises AbprofError if a named device, or every device, is in use.
    First erases secrets from this process's environment in /proc, where code under test could read them.
    """
    environment.scrub_secrets(place.file.environment.allow)
    if place.options.executor:  # each shard reserves its own device, which may be this one
        yield place
        return
    with contextlib.ExitStack() as held:
        if len(place.devices) == 1 or place.options.device:
            for device in sorted(place.devices, key=lambda device: device.lease):  # one order: no deadlocks
                _reserve(held, place, device, view, wait=wait)
            yield place
            return
        free = []
        for device in place.devices:
            try:
                _reserve(held, place, device, view, wait=False)
                free.append(device)
            except AbprofError as error:
                view.say(f"{device.lease} is left out: {error.what}")
        if not free:
            _reserve(held, place, place.devices[0], view, wait=wait)
        yield dataclasses.replace(place, devices=tuple(free) or place.devices[:1])


def _reserve(held: contextlib.ExitStack, place: RunContext, device: Device, view: View, *, wait: bool) -> None:
    with contextlib.ExitStack() as kept:
        kept.enter_context(lease(place.state, device.lease, wait=wait, label=place.label, say=view.say))
        not_busy(device)
        if place.options.lock_clocks:
            kept.enter_context(device.locked(place.options.lock_clocks))
        held.push(kept.pop_all())


def not_busy(device: Device) -> None:
    """Raise AbprofError if another program uses the device."""
    busy = device.busy()
    if busy:
        raise AbprofError(busy[0], where=device.lease, advice=busy[1])


@contextlib.contextmanager
def signals() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise KeyboardInterrupt, unless they were ignored before (nohup)."""

    def stop(_number: int, _frame: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    handled = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
