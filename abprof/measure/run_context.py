"""Where a run takes place: repository, device, folders. Everything that can be refused is refused here, at once."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from abprof import devices
from abprof import sides as repo
from abprof.builds import sandbox as contain
from abprof.builds.worker_factory import interpreter
from abprof.devices import Device
from abprof.records import Package, Side, Waiver, names
from abprof.records.errors import AbprofError
from abprof.records.options import File, Options
from abprof.sides import releases
from abprof.system import paths, toml, waiver_file
from abprof.system import processes as proc
from abprof.system.config_file import parse_file, read_file
from abprof.system.console import View
from abprof.verdict import waivers


@dataclass(frozen=True)
class Place:
    """Settled before anything is made."""

    options: Options
    file: File
    repository: repo.Repository | repo.Folder
    devices: tuple[Device, ...]  # that the run is spread over; most often one
    sides: tuple[Side, ...]
    notes: tuple[str, ...]
    waivers: tuple[Waiver, ...]
    cache: Path
    state: Path
    runs_dir: Path
    id: str

    @property
    def device(self) -> Device:
        """The one that is measured on; of several the first, which is asked what workloads are and built on."""
        return self.devices[0]

    @property
    def commits(self) -> repo.Repository:
        """The repository, for who asks for its history. Raises AbprofError where there is none."""
        return self.repository.with_commits()

    @property
    def label(self) -> str:
        """For whoever waits for this run: what it is."""
        return f"abprof {' '.join(side.label for side in self.sides)} in {self.repository.path}"

    @property
    def submodules(self) -> bool:
        """Whether any configured package wants the repository's submodules checked out."""
        return any(entry.submodules for entry in self.file.kernels.values())

    @property
    def root(self) -> Path:
        """The user's working tree."""
        return Path(self.repository.path)

    def packages(self, kernels: Sequence[str]) -> dict[str, Package]:
        """Each kernel package as abprof.toml or the conventional layout has it."""
        return {name: self.file.package(name) for name in kernels}


@dataclass(frozen=True)
class Settled:
    """What a part of a run takes from the run that it belongs to, in the place of asking again."""

    sides: tuple[Side, ...]
    file: File
    id: str


def look_around(config: Options, view: View, settled: Settled | None = None) -> Place:
    """Find the repository, the devices and the folders; resolve the refs once. Raises AbprofError."""
    cache, state = paths.cache_dir(), paths.state_dir()
    for line in repo.sweep(cache):
        view.say(line)
    repository = _repository(config, cache)
    file = settled.file if settled else _file(repository, config)
    kernel_paths: tuple[str, ...] = tuple(entry.path for entry in file.kernels.values() if entry.path) or ("kernels",)
    if config.command:
        kernel_paths = ()  # what it runs, nobody knows
    sides, notes = (settled.sides, ()) if settled else _sides(repository, config.under(file), kernel_paths, view)
    if not settled and os.environ.get("CI") and isinstance(repository, repo.Repository) and sides[0].kind != "dist":
        file = _file_at(repository, sides[0])  # should base have moved since it was asked for its kernels' paths
    _known_sides(config, sides)
    if "ncu" in config.probe:
        contain.refuse_foreground(config.contain, "what --probe ncu looks at")
    found, left_out = _devices(config)
    device = found[0]
    if config.sustained and device.kind == "cpu":
        what = "the sustained mode times a GPU at its power limit"
        raise AbprofError(what, where="--sustained", advice="leave it out")
    if "perf" in config.probe and device.kind == "cuda":
        what = "perf samples what processors do, and this run is of a GPU"
        raise AbprofError(what, where="--probe perf", advice="--probe torch looks at GPUs")
    if "proton" in config.probe and device.kind == "cpu":
        what = "proton sees what runs on a GPU, and this run is of a CPU"
        raise AbprofError(what, where="--probe proton", advice="--probe torch or perf looks at CPUs")
    if config.protocol != "abprof":
        from abprof.measure.sequential import require

        require(config.protocol, device.kind, f"--protocol {config.protocol}")
    runs_dir = Path(config.runs_dir).absolute() if config.runs_dir else Path(repository.path) / "runs"
    config = config.under(file)
    _timer_for(config, device.kind)
    cut = config.margin_cut(device.kind)
    notes = (*notes, *left_out, *([cut] if cut else []))
    return Place(
        config,
        file,
        repository,
        found,
        sides,
        notes,
        () if settled else _waivers(repository, sides[0]),
        cache,
        state,
        runs_dir,
        settled.id if settled else _run_id(sides),
    )


def _sides(
    repository: repo.Repository | repo.Folder, config: Options, kernel_paths: Sequence[str], view: View
) -> tuple[tuple[Side, ...], tuple[str, ...]]:
    """The sides that the specs name, and notes on them. Raises AbprofError."""
    released = _released(config, repository.cache, view)
    return repo.resolve(repository, config.specs, kernel_paths=kernel_paths, known=released)


def _devices(config: Options) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The devices of a run, and notes on others. Raises AbprofError for several where one is all that can be measured on."""
    why = _one_device(config)
    if why and config.executor:
        raise AbprofError(why, where=f"--executor {config.executor}", advice="leave one of them out")
    most = 1 if why or config.executor else config.devices
    if most is not None and len(config.device) > most:
        given = f"--device was given {len(config.device)} times"
        what = f"{given}, and {why or 'this measures on one device'}" if most == 1 else f"{given}, and --devices {most}"
        raise AbprofError(what, where="--device", advice="name one of them" if most == 1 else "leave one out")
    found, left_out = devices.several(config.device, most)
    if (
        why
        and not config.executor
        and not config.device
        and config.devices != 1
        and len(devices.several((), None)[0]) > 1
    ):
        left_out = (*left_out, f"measured on {found[0].lease} alone: {why}")
    if len({device.kind for device in found}) > 1:
        raise AbprofError("devices of two kinds are no one run's", where="--device", advice="name GPUs alone")
    return found, left_out


def _one_device(config: Options) -> str:
    """Why this run is one device's; "" where it may be spread."""
    reasons = {
        "a command is run on one device": bool(config.command),
        f"--probe {','.join(config.probe)} looks at one device": bool(config.probe),
        f"--protocol {','.join(config.beside)} measures on one device": bool(config.executor and config.beside),
        "--sustained measures on one device": bool(config.executor and config.sustained),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _timer_for(config: Options, kind: str) -> None:
    """Raises AbprofError for a timer that does not time such a device."""
    if kind == "cpu" and config.by_timer not in {"auto", "cpu"}:
        what = f"{config.by_timer} times a GPU, and this run is of a CPU"
        raise AbprofError(what, where=config.asked_by("--timer"), advice="here it is cpu or auto")


def _repository(config: Options, cache: Path) -> repo.Repository | repo.Folder:
    """The repository; a run of releases alone does with the folder, where git has none for it. Raises AbprofError."""
    path = Path(config.repo).expanduser()
    try:
        return repo.open_repository(path, cache=cache)
    except AbprofError:
        if not path.is_dir() or not all(map(releases.is_release, config.specs)):
            raise
        return repo.Folder(path.resolve(), cache)


def _released(config: Options, cache: Path, view: View) -> dict[str, tuple[Side, tuple[str, ...]]]:
    """The sides that are releases, installed for their interpreters, by their specs. Raises AbprofError."""
    python = partial(interpreter, config)
    return releases.install(config.specs, python, cache, config.build_timeout, view.say)


def _known_sides(config: Options, sides: Sequence[Side]) -> None:
    """Raises AbprofError for an option that speaks of a side that the run has not."""
    ids = [side.id for side in sides]
    for name in config.python:
        if name and name not in ids:
            raise AbprofError(f"no side {name!r}", where="--python", advice=f"there is {', '.join(ids)}")
    name = config.workloads_from
    if re.fullmatch(r"target\d*", name) and name not in ids:
        advice = f"there is {', '.join(ids)}; a folder of that name is ./{name}"
        raise AbprofError(f"there is no {name}", where="--workloads-from", advice=advice)


def _file(repository: repo.Repository | repo.Folder, config: Options) -> File:
    """The working tree's configuration; with CI set, base's: a pull request does not configure its own judge. A release
    has none."""
    released = releases.is_release(config.specs[0]) if config.specs else False
    if not os.environ.get("CI") or released or isinstance(repository, repo.Folder):
        return read_file(Path(repository.path)) or File()
    (base, *_), _ = repo.resolve(repository, config.specs[:1])
    return _file_at(repository, base)


def _file_at(repository: repo.Repository, base: Side) -> File:
    for name, table in (("abprof.toml", ()), ("pyproject.toml", ("tool", "abprof"))):
        text = repository.read_file(base.commit, name)
        if text is not None and (not table or b"[tool.abprof" in text):
            where = f"{base.label}:{name}"
            return parse_file(toml.decoded(text, where), where, table).of(Path(repository.path))
    return File()


def _waivers(repository: repo.Repository | repo.Folder, base: Side) -> tuple[Waiver, ...]:
    """Those of base's commit, always: neither the target nor the working tree waives itself. A release has none."""
    if base.kind == "dist" or isinstance(repository, repo.Folder):
        return ()
    text = repository.read_file(base.commit, waivers.FILE)
    where = f"{base.label}:{waivers.FILE}"
    return () if text is None else waiver_file.parse(toml.decoded(text, where), where)


def _run_id(sides: Sequence[Side]) -> str:
    labels = names.safe_labels((side.label, side.commit) for side in sides)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return "-".join([stamp, *labels])[:180]


def toolchain(
    versions: Mapping[str, str], facts: Mapping[str, str], device: str, env: Mapping[str, str]
) -> dict[str, str]:
    """What decides a build besides its inputs and variables: the interpreter by what it says of itself (it has many
    names), torch, triton, CUDA, architecture, and the compilers that a builder with the variables `env` finds."""
    interpreter = {name: facts.get(name, "") for name in ("prefix", "base_prefix", "soabi")}
    chain = {**versions, **interpreter, "architecture": facts.get("capability", ""), "device": device}
    compilers = {"cc": env.get("CC") or "cc", "cxx": env.get("CXX") or "c++", "nvcc": nvcc(env)}
    for name, command in compilers.items():
        said = proc.output([*command.split(), "--version"], env=env) if command else None
        if said:
            chain[name] = " ".join(said.split("\n")[:4]).strip()
    return {name: value for name, value in chain.items() if value}


def nvcc(env: Mapping[str, str]) -> str:
    """The compiler that a build with these variables finds: on PATH, in $CUDA_HOME or in the usual place; "" for none."""
    home = env.get("CUDA_HOME") or "/usr/local/cuda"
    beside = f"{home}/bin/nvcc"
    return shutil.which("nvcc", path=env.get("PATH")) or (beside if Path(beside).exists() else "")


def sources(place: Place) -> tuple[str, ...]:
    """Folders that hold code of the repository under test: its worktrees, the user's own and abprof's, and builds."""
    return (*place.repository.folders(), *(str(place.cache / name) for name in ("worktrees", "builds", "dists")))


def forbidden(place: Place) -> tuple[str, ...]:
    """Folders from which nothing but a side's own files may be loaded: these, and the caches that all branches share."""
    home = paths.home()
    return (*sources(place), *(str(home / name) for name in (".cache", ".triton", ".local") if home))
