"""What there is to measure: finds the workloads, asks them in a worker what they are, and lays out the cells."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abprof.measure import plan
from abprof.records import Ceilings, Cell, Failure, Run, Status, Value, Workload
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.system.processes import Worker, WorkerDied, WorkerFault, WorkerHung, to_start

_REACH = 0.6  # seconds that the ceilings may take, beside the start of torch's libraries
_IGNORED = shutil.ignore_patterns("__pycache__", ".git")
_SCREEN = 200  # cases asked about at once, so that a request stays well under a pipe's size


@dataclass(frozen=True)
class Survey:
    """The matrix of a run."""

    ready: wire.Ready
    workloads: tuple[Workload, ...]
    cells: tuple[Cell, ...]
    broken: Mapping[str, Failure]  # cell id -> why its workload could not say what it is
    empty: tuple[str, ...] = ()  # workloads without a cell in this preset


def find_workloads(folder: Path, names: Sequence[str], by: str = "--workloads") -> dict[str, Path]:
    """Name -> file; `folder` may be a single workload's file. Raises AbprofError when there are none, or one is missing that
    an option (`by`) wants."""
    listed = [folder] if folder.is_file() else sorted(folder.glob("*.py"))
    files = {p.stem: p for p in listed if p.suffix == ".py" and not p.name.startswith("_")}
    if not files:
        raise AbprofError("no workloads here", where=str(folder), advice="docs/WRITING.md says how to write one")
    for name in names:
        if name not in files:
            known = ", ".join(files)
            raise AbprofError(f"no workload {name!r} in {folder}", where=by, advice=f"there are {known}")
    return {name: files[name] for name in names} if names else files


def copy_workloads(
    folder: Path, place: Path, wrapped: Mapping[str, Path] = types.MappingProxyType({}), where: str = "abprof.toml"
) -> str:
    """Copy what judges, so that editing it while the run goes on changes nothing, and what its workloads wrap: the place in
    the repository -> file or folder. A folder that is such a copy has its own. SHA-256 of the content of all of it.

    Raises AbprofError for what is not there, which stands `where`.
    """
    if folder.is_dir():
        shutil.copytree(folder, place, ignore=_IGNORED)
    else:
        for name, file in _judging(folder):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place / name)
    for name, source in {} if (place / wire.WRAPPED).exists() else wrapped.items():
        _copy_wrapped(source, place / wire.WRAPPED / name, where)
    return content(place)


def _copy_wrapped(source: Path, target: Path, where: str) -> None:
    if not source.exists():
        raise AbprofError("no such file or folder", where=f"{where}: {source}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=_IGNORED, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def content(folder: Path) -> str:
    """SHA-256 over the names and bytes of the files of a workloads folder, or of a workload's file and its helpers."""
    digest = hashlib.sha256()
    for name, file in _judging(folder):
        digest.update(os.fsencode(name) + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _judging(source: Path) -> list[tuple[str, Path]]:
    """(name, file) of all files of a workloads folder; of one workload's file that, and what lies beside it under names
    that begin with an underscore: its folder may be anything."""
    home = source if source.is_dir() else source.parent
    starts = [source] if source.is_dir() else [source, *source.parent.glob("_*")]
    files = {file for start in starts for file in (start.rglob("*") if start.is_dir() else [start]) if file.is_file()}
    return [(str(p.relative_to(home)), p) for p in sorted(files) if not {"__pycache__", ".git"} & set(p.parts)]


def survey(
    worker: Worker, files: Mapping[str, Path], config: Options, *, device: str, kind: str, timeout: float
) -> Survey:
    """Ask every workload. One that raises is a broken cell, not the end of the run.

    Raises AbprofError when the worker cannot start, for a preset or axis that does not exist, an empty matrix.
    """
    ready = _start(worker, files, device, timeout)
    found: dict[str, wire.Described] = {}
    broken: dict[str, Failure] = {}
    for name in files:
        try:
            found[name] = worker.call(wire.Describe(name), timeout)
        except (WorkerFault, WorkerDied) as error:
            broken[name] = _failure(error, files[name])
            if isinstance(error, WorkerDied):  # the others are asked in a new process
                worker.restart()
                _start(worker, files, device, timeout)
    for name in [name for name, one in found.items() if config.check == "outside" and one.checked != "reference"]:
        del found[name]
        broken[name] = Failure(
            status="unsupported", reason="--check outside compares with a reference, and it has none"
        )
    wanted = {n: d for n, d in found.items() if not config.kernels or d.kernel in config.kernels}
    if not broken or not wanted:  # which kernel a broken one is for, nobody knows
        _known_kernels(config, found)
    if wanted or not broken:
        plan.known_peers(wanted.values(), config.peer)
    by = config.asked_by("--preset")
    matrices = {name: plan.preset(name, described, config.preset, by) for name, described in wanted.items()}
    if config.cell:
        cases = plan.exactly(matrices, config.cell)
    else:
        matrices = plan.set_axes(matrices, config.set) if matrices or not broken else matrices
        cases = {name: plan.cases(axes) for name, axes in matrices.items()}
    loads = tuple(
        plan.workload(
            name, described, hashlib.sha256(files[name].read_bytes()).hexdigest(), kind, config.peer, config.by_timer
        )
        for name, described in wanted.items()
    )
    cells: list[Cell] = []
    for load in loads:
        try:
            cells += _cells(worker, load, cases[load.name], timeout)
        except (WorkerFault, WorkerDied) as error:
            broken[load.name] = _failure(error, files[load.name])
            if isinstance(error, WorkerDied):
                worker.restart()
                _start(worker, files, device, timeout)
    chosen = plan.select(cells, config.only, by) if cells or not broken else ()
    lost = {f"{name}/": failure for name, failure in broken.items()}
    ghosts = [Cell(id=id, workload=id[:-1], kernel="", suite=id[:-1], params={}) for id in lost]
    missing = tuple(_unknown(name) for name in broken if name not in wanted)
    empty = tuple(name for name, points in cases.items() if not points)
    return Survey(ready, (*loads, *missing), (*chosen, *ghosts), lost, empty)


def known(
    worker: Worker,
    files: Mapping[str, Path],
    digest: str,
    run: Run,
    cells: tuple[Cell, ...],
    *,
    device: str,
    timeout: float,
) -> Survey:
    """The matrix of a run that is gone on with; `digest` is that of the folder of `files`, helpers and data included.

    Raises AbprofError when the judge or the toolchain is another now.
    """
    same_judge(run, files, digest)
    ready = _start(worker, files, device, timeout)
    for name, version in run.versions.items():
        now = ready.versions.get(name, "not there")
        if now != version:
            raise AbprofError(f"{name} was {version} in the run and is {now} now", advice="start a new run")
    return Survey(ready, run.workloads, cells, {})


def same_judge(run: Run, files: Mapping[str, Path], digest: str) -> None:
    """Raises AbprofError when the judge is another than the run's."""
    for load in run.workloads:
        file = files.get(load.name)
        if load.kernel and (file is None or hashlib.sha256(file.read_bytes()).hexdigest() != load.sha256):
            raise AbprofError(f"workload {load.name} has changed since the run", advice="start a new run")
    folder, _, before = run.workloads_from.rpartition(" sha256:")
    if folder and before != digest:
        what = "a file beside the workloads has changed since the run"
        raise AbprofError(what, where=folder, advice="start a new run")


def who_is(worker: Worker, device: str, timeout: float) -> tuple[wire.Ready, dict[str, str]]:
    """What a side's own interpreter is (its torch and compiler decide its builds), and the packages it has. Ends it.

    Raises AbprofError.
    """
    try:
        return _start(worker, {}, device, timeout), packages(worker, timeout)
    finally:
        worker.stop()


def packages(worker: Worker, timeout: float) -> dict[str, str]:
    """Distribution -> version, of this worker's interpreter; nothing where it cannot say."""
    try:
        listed: wire.Listed = worker.call(wire.Inventory(), timeout)
    except (WorkerDied, WorkerFault):
        return {}
    return listed.packages


def ceilings(worker: Worker, timeout: float) -> Ceilings:
    """What the device does at its best, measured now. What goes wrong is a reason, and the run goes on."""
    try:
        best: wire.Reached = worker.call(wire.Reach(_REACH), timeout)
    except (WorkerDied, WorkerFault) as error:
        return Ceilings(why_not=error.reason)
    why_not = "" if best.tflops and best.gbps else "the device could not be asked, or had no room (logs/survey.log)"
    return Ceilings(tflops=best.tflops, tflops_by=best.tflops_by, gbps=best.gbps, gbps_by=best.gbps_by, why_not=why_not)


def _start(worker: Worker, files: Mapping[str, Path], device: str, timeout: float) -> wire.Ready:
    try:
        ready: wire.Ready = worker.call(
            wire.Start(device, "base", None, {n: str(p) for n, p in files.items()}), to_start(timeout)
        )
    except (WorkerDied, WorkerFault) as error:
        where = "" if worker.program == sys.executable else worker.program
        advice = "abprof doctor looks into it"
        raise AbprofError(f"the worker did not start: {error.reason}", where=where, advice=advice) from error
    if ready.protocol != wire.PROTOCOL:
        raise AbprofError(f"the worker speaks protocol {ready.protocol}, this abprof {wire.PROTOCOL}")
    if ready.versions.get("hip"):
        raise AbprofError("torch was built for ROCm, which is not supported yet", advice="--device cpu")
    return ready


def _known_kernels(config: Options, found: Mapping[str, wire.Described]) -> None:
    known = sorted({described.kernel for described in found.values()})
    unknown = [name for name in config.kernels if name not in known]
    if found and unknown:
        what = f"no workload is for {', '.join(unknown)}"
        raise AbprofError(what, where="--kernels", advice=f"there are {', '.join(known)}")


def _failure(error: WorkerFault | WorkerDied, file: Path) -> Failure:
    status: Status = "timeout" if isinstance(error, WorkerHung) else "crash"
    own = isinstance(error, WorkerFault) and error.status == "crash" and not wire.no_module(error.reason)
    return Failure(status=status, reason=error.reason, log="survey.log", at=file.name if own else "")


def _cells(worker: Worker, load: Workload, cases: list[dict[str, Value]], timeout: float) -> list[Cell]:
    """All cells of a workload. Raises WorkerFault and WorkerDied."""
    cells = []
    for start in range(0, len(cases), _SCREEN):
        some = cases[start : start + _SCREEN]
        screened: wire.Screened = worker.call(wire.Screen(load.name, some), timeout)
        for i, case in enumerate(some):
            cells.append(
                Cell(
                    id=wire.cell_id(load.name, case),
                    workload=load.name,
                    kernel=load.kernel,
                    suite=load.suite,
                    params=case,
                    flops=screened.flops[i],
                    bytes=screened.bytes[i],
                    convention=screened.conventions[i],
                    skip=screened.skips[i],
                )
            )
    return cells


def _unknown(name: str) -> Workload:
    """A workload that could not say what it is."""
    return Workload(name=name, kernel="", suite=name, axes=(), judge="wall")
