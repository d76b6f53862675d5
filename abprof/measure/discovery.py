"""Discovery: finds workloads, lays out their cells, and reads toolchains and the device's peak rates."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from abprof.builds import WorkerFactory
from abprof.measure import matrix
from abprof.records import Ceilings, Cell, Failure, Run, Status, Toolchain, Value, Workload
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.filters import select
from abprof.records.options import Options
from abprof.system import processes as proc
from abprof.system.processes import Worker, WorkerDied, WorkerFault, WorkerHung

_SCREEN = 200  # most cases of one request, which stays well under a pipe's size


@dataclass(frozen=True)
class Discovered:
    """The workloads and cells of a run."""

    ready: wire.Ready
    workloads: tuple[Workload, ...]
    cells: tuple[Cell, ...]
    broken: Mapping[str, Failure]  # cell id -> why its workload could not be described
    empty: tuple[str, ...] = ()  # workloads without a cell in this preset

    @classmethod
    def of(cls, worker: Worker, factory: WorkerFactory, config: Options, kind: str) -> Discovered:
        """Return the workloads and cells of a new run on a device of `kind`. A workload that raises becomes a broken cell.

        Raises AbprofError if the worker cannot start, for an unknown preset or axis, and for an empty matrix.
        """
        ready, files, timeout = start(worker, factory), factory.workloads, factory.timeout
        found: dict[str, wire.Described] = {}
        broken: dict[str, Failure] = {}

        def failed(name: str, error: WorkerFault | WorkerDied) -> None:
            broken[name] = _failure(error, files[name])
            if isinstance(error, WorkerDied):  # a new process describes the other workloads
                worker.restart()
                start(worker, factory)

        for name in files:
            try:
                found[name] = worker.call(wire.Describe(name), timeout)
            except (WorkerFault, WorkerDied) as error:
                failed(name, error)
        for name in [name for name, one in found.items() if config.check == "outside" and one.checked != "reference"]:
            del found[name]
            reason = "--check outside compares with a reference, and the workload has none"
            broken[name] = Failure(status="unsupported", reason=reason)
        wanted = {name: one for name, one in found.items() if not config.kernels or one.kernel in config.kernels}
        known = sorted({described.kernel for described in found.values()})
        unknown = [name for name in config.kernels if name not in known]
        if found and unknown and (not broken or not wanted):  # the kernel of a broken workload is not known
            what = f"no workload is for {', '.join(unknown)}"
            raise AbprofError(what, where="--kernels", advice=f"there are {', '.join(known)}")
        if wanted or not broken:
            matrix.known_peers(wanted.values(), config.peer)
        by = config.asked_by("--preset")
        axes = {name: matrix.preset(name, described, config.preset, by) for name, described in wanted.items()}
        if config.cell:
            cases = matrix.exactly(axes, config.cell)
        else:
            axes = matrix.set_axes(axes, config.set) if axes or not broken else axes
            cases = {name: matrix.cases(each) for name, each in axes.items()}
        loads = tuple(
            matrix.workload(one, _sha256(files[name]), kind, config.peer, config.by_timer)
            for name, one in wanted.items()
        )
        cells: list[Cell] = []
        for load in loads:
            try:
                cells += _cells(worker, load, cases[load.name], timeout)
            except (WorkerFault, WorkerDied) as error:
                failed(load.name, error)
        chosen = select(cells, config.only, by) if cells or not broken else ()
        lost = {f"{name}/": failure for name, failure in broken.items()}
        ghosts = [Cell(id=id, workload=id[:-1], kernel="", suite=id[:-1], params={}) for id in lost]
        lost_loads = [Workload(name=n, kernel="", suite=n, axes=(), judge="wall") for n in broken if n not in wanted]
        empty = tuple(name for name, points in cases.items() if not points)
        return cls(ready, (*loads, *lost_loads), (*chosen, *ghosts), lost, empty)


def known(worker: Worker, factory: WorkerFactory, digest: str, run: Run, cells: tuple[Cell, ...]) -> Discovered:
    """Return the discovery of a continued run, with `cells` only. `digest`: SHA-256 of the workloads as they are now.

    Raises AbprofError if the workloads or the worker's `versions` have changed.
    """
    files = factory.workloads
    folder, _, before = run.workloads_from.rpartition(" sha256:")
    changed = [
        w.name for w in run.workloads if w.kernel and (w.name not in files or _sha256(files[w.name]) != w.sha256)
    ]
    if changed or (folder and before != digest):
        what = f"workload {changed[0]}" if changed else "a file beside the workloads"
        raise AbprofError(f"{what} has changed since the run", where=folder, advice="start a new run")
    ready = start(worker, factory)
    for name, version in run.versions.items():
        now = ready.versions.get(name, "not there")
        if now != version:
            raise AbprofError(f"{name} was {version} in the run and is {now} now", advice="start a new run")
    return Discovered(ready, run.workloads, cells, {})


def compilers(env: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the compilers that builds use: those of CC and CXX, and nvcc."""
    named = {"cc": env.get("CC") or "cc", "cxx": env.get("CXX") or "c++", "nvcc": proc.cuda_tool("nvcc", env)}
    found = {}
    for name, command in named.items():
        version = proc.output([*command.split(), "--version"], env=env) if command else None
        if version:
            found[name] = " ".join(version.split("\n")[:4]).strip()
    return found


def toolchain(
    worker: Worker, factory: WorkerFactory, ready: wire.Ready, kind: str, tools: Mapping[str, str], cupti: str = ""
) -> Toolchain:
    """Return a Toolchain: `versions` of compilers and libraries that builds depend on, and the worker's `packages`.

    `packages` is empty if the worker fails to list what is installed. `kind`: the device's kind, `cuda` or `cpu`.
    `tools`: versions of compilers. `cupti`: the option that needs CUPTI, or "". Raises AbprofError if the worker then
    cannot import CUPTI.
    """
    facts = ready.facts
    chain = {**ready.versions, **{name: facts.get(name, "") for name in ("prefix", "base_prefix", "soabi")}}
    chain |= {"architecture": facts.get("capability", ""), "device": kind, **tools}
    packages: dict[str, str] = {}
    with contextlib.suppress(WorkerDied, WorkerFault):
        packages = worker.call(wire.Inventory(), factory.timeout).packages
    if cupti:
        try:
            worker.call(wire.Cupti(), factory.timeout)
        except (WorkerDied, WorkerFault) as error:
            advice = f"{worker.program} -m pip install cupti-python (abprof's extra: pip install 'abprof[cupti]')"
            raise AbprofError(error.reason, where=cupti, advice=advice) from error
    return Toolchain(versions={name: value for name, value in chain.items() if value}, packages=packages)


def ceilings(worker: Worker, timeout: float) -> Ceilings:
    """Measure the device's peak rates. If that fails, the result's `why_not` says why."""
    try:
        best: Ceilings = worker.call(wire.Reach(), timeout)
    except (WorkerDied, WorkerFault) as error:
        return Ceilings(why_not=error.reason)
    why_not = (
        ""
        if best.tflops and best.gbps
        else "they could not be measured, or the device had no free memory (logs/discovery.log)"
    )
    return replace(best, why_not=why_not)


def start(worker: Worker, factory: WorkerFactory) -> wire.Ready:
    """Start a worker that loads no build. Raises AbprofError if that fails, or if the worker's torch is for ROCm."""
    try:
        ready: wire.Ready = worker.call(factory.start("base"), factory.timeout)
    except (WorkerDied, WorkerFault) as error:
        where = "" if worker.program == sys.executable and "No module" not in error.reason else worker.program
        advice = "abprof doctor examines this machine"
        raise AbprofError(f"the worker did not start: {error.reason}", where=where, advice=advice) from error
    if ready.versions.get("hip"):
        raise AbprofError("torch was built for ROCm, which is not supported yet", advice="--device cpu")
    return ready


def _failure(error: WorkerFault | WorkerDied, file: str) -> Failure:
    status: Status = "timeout" if isinstance(error, WorkerHung) else "crash"
    no_module = error.reason.startswith(("ModuleNotFoundError: No module named ", "ImportError: No module named "))
    own = isinstance(error, WorkerFault) and error.status == "crash" and not no_module
    return Failure(status=status, reason=error.reason, log="discovery.log", at=Path(file).name if own else "")


def _cells(worker: Worker, load: Workload, cases: list[dict[str, Value]], timeout: float) -> list[Cell]:
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


def _sha256(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
