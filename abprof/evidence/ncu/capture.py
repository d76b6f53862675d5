"""Arms under Nsight Compute: each in a foreground worker of its own, alone, with the counters of its calls."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from abprof.evidence.ncu import recording, traffic
from abprof.evidence.ncu.traffic import Table, measured
from abprof.evidence.subject import Subject
from abprof.measure import Plan
from abprof.measure.pool import WorkerSpec, foreground
from abprof.records import Arm, Cell, KernelProfile, Profile
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.records.quantities import refuse_calls
from abprof.system import processes as proc
from abprof.system.processes import WorkerDied

FOLDER = "ncu"  # in the run folder


@dataclass(frozen=True)
class Order:
    """Which metrics to record, of how many calls."""

    purpose: Literal["memory", "profile"]
    metrics: tuple[str, ...]
    warmup: int
    runs: int


PROFILE = Order("profile", recording.PROFILE, 2, 3)  # a dozen passes for each launch


def memory(warmup: int, runs: int) -> Order:
    """Bytes only: one pass or two. Raises AbprofError for impossible numbers of calls."""
    refuse_calls(warmup, runs)
    return Order("memory", recording.MEMORY, warmup, runs)


def captured(
    plan: Plan,
    rows: Sequence[tuple[Cell, Sequence[Arm]]],
    order: Order,
    folder: Path,
    ncu: Ncu,
    say: Callable[[str], None],
) -> Iterator[Profile]:
    """The profile of each arm of these cells, with the reason of what failed. Raises Refused if no recording can succeed."""
    sides = [side.id for side in plan.run.sides]
    for cell, arms in rows:
        specs = {spec.id: spec for spec in plan.specs(cell.kernel, sides)}
        for arm in arms:
            build = plan.build(arm.side, cell.kernel)
            if cell.skip:
                made = _profile(cell, arm, order, status="unsupported", reason=cell.skip)
            elif build is None:
                made = _profile(cell, arm, order, status="missing")
            elif build.failure:
                made = _profile(cell, arm, order, status=build.failure.status, reason=build.failure.reason)
            else:
                made, ncu = _one(plan, specs[arm.side], cell, arm, order, folder, ncu)
            size = f"{len(made.kernels)} kernels" if len(made.kernels) != 1 else "1 kernel"
            say(f"  {cell.id}  {arm.id}: {size if made.status == 'ok' else f'{made.status}, {made.reason}'}")
            yield made


def profiles(plan: Plan, subjects: Sequence[Subject], folder: Path, epoch: int) -> Iterator[Profile]:
    """`--probe ncu`: the metrics of each arm; if no recording can succeed, one record with the reason."""
    del epoch  # each arm has a process of its own
    rows = [(subject.cell, subject.arms) for subject in subjects]
    try:
        yield from captured(plan, rows, PROFILE, folder, find(os.environ), lambda _: None)
    except Refused as refused:
        cell, arms = rows[0]
        yield _profile(cell, arms[0], PROFILE, status="error", reason=refused.line)


def _profile(cell: Cell, arm: Arm, order: Order, **fields: Any) -> Profile:
    return Profile(cell=cell.id, arm=arm.id, purpose=order.purpose, warmup=order.warmup, runs=order.runs, **fields)


def _one(
    plan: Plan, spec: WorkerSpec, cell: Cell, arm: Arm, order: Order, folder: Path, ncu: Ncu
) -> tuple[Profile, Ncu]:
    stem = f"{row_file(cell.id, f'peer {arm.peer}' if arm.peer else arm.variant)}.{arm.side}"
    report, page = folder / FOLDER / f"{stem}.ncu-rep", folder / FOLDER / f"{stem}.csv"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)  # of an earlier recording
    empty = _profile(cell, arm, order, ncu=ncu.version)
    seed = plan.run.options.seed
    job = foreground(plan.factory, spec, cell, arm, warmup=order.warmup, runs=order.runs, seed=seed, facts=True)
    log = plan.factory.logs / f"ncu-{stem}.log"
    try:
        did = record(ncu, job.argv, env=job.env, cwd=job.cwd, metrics=order.metrics, to=report, log=log,
                          nvtx=wire.CALL_RANGE)  # fmt: skip
    except WorkerDied as failed:
        return msgspec.structs.replace(empty, status="error", reason=failed.reason), ncu
    if did.failed and not job.result.exists():  # ncu ended the worker
        return msgspec.structs.replace(empty, status="error", reason=f"ncu: {did.failed}"), did.ncu
    outcome = job.outcome(did.code)
    if outcome.status != "ok":
        return msgspec.structs.replace(empty, status=outcome.status, reason=outcome.reason), did.ncu
    kept = {"file": f"{FOLDER}/{report.name}", "bytes": report.stat().st_size} if report.exists() else {}
    try:
        if did.error:
            on_cpu = "; this is a CPU, and ncu sees only a GPU's kernels" if plan.device.kind == "cpu" else ""
            raise AbprofError(did.error + on_cpu)
        raw_page(did.ncu, report, env=job.env, to=page)
        kernels, notes = read(page, order)
    except AbprofError as failed:
        reason = f"{failed.what} ({failed.advice})" if failed.advice else failed.what
        return msgspec.structs.replace(empty, status="error", reason=reason, **kept), did.ncu
    if did.ncu.unknown:
        notes = (*notes, f"this ncu has no {', '.join(sorted(did.ncu.unknown))} here")
    facts = {level: outcome.facts.get(f"minimum_{level}_bytes") for level in recording.LEVELS}
    minimum = {level: float(value) for level, value in facts.items() if isinstance(value, int | float)}
    kept |= {"csv": f"{FOLDER}/{page.name}", "kernels": kernels, "notes": notes, "minimum": minimum}
    return msgspec.structs.replace(empty, **kept), did.ncu


def read(page: Path, order: Order) -> tuple[tuple[KernelProfile, ...], tuple[str, ...]]:
    """(kernels of a call, notes) from a raw page, warm-ups dropped. Raises AbprofError."""
    calls = traffic.count(recording.read(page, order.metrics), warmup=order.warmup, runs=order.runs, one_shape=True)
    return tuple(_kernel(one, order.metrics) for shape in calls.shapes for one in shape), calls.notes


def _kernel(one: traffic.Counted, names: Sequence[str]) -> KernelProfile:
    """Means over launches; rates and ratios weighted by the launches' time. Metrics that a launch lacks are left out."""
    found = {}
    for name in names:
        if all(name in launch.values for launch in one.kept):
            times = [launch.values.get(recording.TIME, 0.0) for launch in one.kept]
            weights = times if not name.endswith(".sum") and all(times) else [1.0] * len(times)
            total = sum(launch.values[name] * weight for launch, weight in zip(one.kept, weights, strict=True))
            found[name] = total / sum(weights)
    name, grid, block = one.name
    return KernelProfile(
        name=name,
        grid=grid,
        block=block,
        kind="other" if traffic.moves_only(name) else "compute",
        launches=one.launches,
        launches_a_call=one.a_call,
        metrics=found,
    )


# ---------------------------------------------------------------- the program ncu

_TIMEOUT = 1800.0  # seconds per recording: every launch is replayed once for each group of counters
_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_TORN = ("==ERROR== Failed to profile", "==ERROR== An error occurred while trying to profile")
_VAGUE = re.compile(r"The application |An error occurred while trying to profile")  # errors without a cause
_PERMISSION = (
    "run as root or with CAP_SYS_ADMIN (a container: --cap-add=SYS_ADMIN), or for all users: the line `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` in a file of /etc/modprobe.d, then load the module again or restart"
)


class Refused(AbprofError):
    """No recording can succeed on this machine as it is set up."""


@dataclass(frozen=True)
class Ncu:
    path: str
    version: str
    unknown: frozenset[str] = frozenset()  # metrics that it reported as unknown here


@dataclass(frozen=True)
class Recorded:
    """How a recording went. `code`: ncu's exit code; `error`: why nothing can be counted, or ""; `failed`: what went wrong
    in ncu itself rather than in the program, or ""; `ncu`: with the metrics it did not know."""

    code: int
    error: str
    failed: str
    ncu: Ncu


def find(env: Mapping[str, str]) -> Ncu:
    """The ncu on PATH, under $CUDA_HOME or $CUDA_PATH, or where its installers put it. Raises Refused."""
    under = [f"{env[name]}/bin/ncu" for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    fixed = [str(path) for place in _PLACES for path in sorted(Path("/").glob(place[1:]), reverse=True)]
    found = [shutil.which("ncu", path=env.get("PATH")), *map(shutil.which, [*under, *fixed])]
    for path in filter(None, found):
        text = proc.output([path, "--version"], timeout=60.0, env={**env, "LC_ALL": "C"}) or ""
        if "Nsight Compute" in text:  # other tools have this name
            version = re.search(r"[Vv]ersion\s+(\S+)", text)
            return Ncu(path, version[1] if version else text.strip().splitlines()[-1][:80])
    what = "Nsight Compute's ncu does not answer" if any(found) else "there is no ncu (Nsight Compute)"
    advice = "it comes with the CUDA toolkit; else install the package nsight-compute, or set CUDA_HOME"
    raise Refused(f"{what}; looked on {', '.join(['PATH', *under, *_PLACES])}", advice=advice)


def record(
    ncu: Ncu,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    metrics: Sequence[str],
    to: Path,
    log: Path,
    nvtx: str = "",
) -> Recorded:
    """Run a program under ncu. The report goes to `to` (.ncu-rep), all output to `log`.

    `nvtx`: only launches inside this range. Metrics that ncu does not know are left out of a second attempt. Raises
    Refused if counters may not be read, WorkerDied if ncu cannot be started or takes too long.
    """
    wanted = [name for name in metrics if name not in ncu.unknown]
    options = ["--target-processes", "all", "--clock-control", "none"]
    options += ["--nvtx", "--nvtx-include", nvtx] if nvtx else []
    options += ["--metrics", ",".join(wanted), "--force-overwrite", "--export", str(to).replace("%", "%%")]
    began = log.stat().st_size if log.exists() else 0
    code = proc.logged([ncu.path, *options, *argv], env={**env, "LC_ALL": "C"}, cwd=cwd, log=log, timeout=_TIMEOUT)
    text = log.read_bytes()[began:].decode(errors="replace")
    lines = list(dict.fromkeys(re.findall(r"^==(?:ERROR|WARNING)== .*$", text, re.M)))
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        raise Refused("ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)", advice=_PERMISSION)
    unknown = {name for line in lines if "metric" in line for name in wanted if _names(line, name)}
    if unknown and not to.exists() and len(unknown) < len(wanted):
        known = dataclasses.replace(ncu, unknown=ncu.unknown | unknown)
        return record(known, argv, env=env, cwd=cwd, metrics=metrics, to=to, log=log, nvtx=nvtx)
    errors = [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR== ")]
    clear = [line for line in errors if not _VAGUE.match(line)]
    failed = " ".join(clear or [line for line in errors if not line.startswith("The application ")])[:300]
    error = ""
    if to.exists():
        error = f"ncu failed midway: {failed}" if any(line.startswith(_TORN) for line in lines) else ""
    elif errors:
        error = f"ncu made no report: {failed or ' '.join(errors)[:300]}"
    elif any("No kernels were profiled" in line for line in lines):
        error = "ncu saw no kernel in the calls"
    else:
        error = f"ncu made no report (exit code {code})"
    return Recorded(code, error, failed, ncu)


def _names(line: str, metric: str) -> bool:
    """Whether a message is about this metric and not a longer name; ncu prints it as a regular expression."""
    return re.search(rf"(?<!\w){re.escape(metric)}(?!\.?\w)", line.replace("\\", "")) is not None


def raw_page(ncu: Ncu, report: Path, *, env: Mapping[str, str], to: Path) -> None:
    """Print a report's raw page as CSV, in base units and the locale C. Raises AbprofError."""
    argv = [ncu.path, "--import", str(report.absolute()), "--csv", "--page", "raw", "--print-units", "base"]
    to.unlink(missing_ok=True)
    try:
        code = proc.logged(argv, env={**env, "LC_ALL": "C"}, cwd=to.parent, log=to, timeout=_TIMEOUT)
    except proc.WorkerDied as failed:
        raise AbprofError(f"ncu could not print its own report: {failed.reason}", where=str(report)) from failed
    if code:
        what = f"ncu could not print its own report (exit code {code})"
        raise AbprofError(what, where=str(report), advice=f"try {' '.join(argv)}")


def record_program(
    program: Sequence[str],
    report: Path,
    *,
    warmup: int,
    runs: int,
    kernels: Sequence[str],
    nvtx: str,
    say: Callable[[str], None],
) -> Table:
    """The memory traffic of any program that makes `warmup + runs` calls of each shape. Keeps its report (.ncu-rep) and,
    beside it, the raw page (.csv). Raises AbprofError."""
    if report.suffix != ".ncu-rep":
        raise AbprofError(f"{str(report)!r} does not end in .ncu-rep", where="--export")
    ncu, page = find(os.environ), report.with_suffix(".csv")
    report.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder, proc.no_orphans():
        log = Path(folder) / "log"
        try:
            did = record(ncu, program, env=os.environ, cwd=Path.cwd(), metrics=recording.MEMORY, to=report.absolute(),
                         log=log, nvtx=nvtx)  # fmt: skip
        except proc.WorkerDied as failed:
            raise AbprofError(failed.reason, where=program[0]) from failed
        if did.error:
            printed = [line for line in log.read_text(errors="replace").splitlines() if line.strip("= ")]
            last = next((line for line in reversed(printed) if not line.startswith("==")), "")
            raise AbprofError(did.error, where=program[0], advice=f"its last line: {last[:200]}" if last else "")
    if did.code:
        say(f"warning: {program[0]} or ncu ended with exit code {did.code}")
    raw_page(did.ncu, report, env=os.environ, to=page)
    say(f"kept: {report}, {page}")
    return measured(page, warmup=warmup, runs=runs, kernels=kernels)
