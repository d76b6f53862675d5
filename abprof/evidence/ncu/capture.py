"""Arms under Nsight Compute: each in a foreground worker of its own, alone, with the counters of its calls."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from abprof.evidence.ncu import recording, traffic
from abprof.measure import Plan
from abprof.measure.pool import WorkerSpec, foreground
from abprof.records import Arm, Cell, Profile
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.records.quantities import refuse_calls
from abprof.system import processes as proc
from abprof.system.processes import WorkerDied

FOLDER = "ncu"  # in the run folder


Rows = Sequence[tuple[Cell, Sequence[Arm]]]


def order(purpose: Literal["memory", "profile"], warmup: int, runs: int) -> Profile:
    """What to record of each arm: bytes (one pass or two for each launch) or all metrics (a dozen), of how many calls.

    Raises AbprofError for impossible numbers of calls.
    """
    refuse_calls(warmup, runs)
    return Profile(cell="", arm="", purpose=purpose, warmup=warmup, runs=runs)


PROFILE = order("profile", 2, 3)


def captured(
    plan: Plan, rows: Rows, order: Profile, folder: Path, ncu: Ncu, say: Callable[[str], None]
) -> Iterator[Profile]:
    """The profile of each arm of these cells, with the reason of what failed. Raises Refused if no recording can succeed."""
    sides = [side.id for side in plan.run.sides]
    for cell, arms in rows:
        specs = {spec.id: spec for spec in plan.specs(cell.kernel, sides)}
        for arm in arms:
            build, made = plan.build(arm.side, cell.kernel), replace(order, cell=cell.id, arm=arm.id)
            if cell.skip:
                made = replace(made, status="unsupported", reason=cell.skip)
            elif build is None:
                made = replace(made, status="missing")
            elif build.failure:
                made = replace(made, status=build.failure.status, reason=build.failure.reason)
            else:
                made, ncu = _one(plan, specs[arm.side], cell, arm, made, folder, ncu)
            size = f"{len(made.kernels)} kernels" if len(made.kernels) != 1 else "1 kernel"
            say(f"  {cell.id}  {arm.id}: {size if made.status == 'ok' else f'{made.status}, {made.reason}'}")
            yield made


def profiles(plan: Plan, rows: Rows, folder: Path) -> Iterator[Profile]:
    """`--probe ncu`: the metrics of each arm; if no recording can succeed, one record with the reason."""
    try:
        yield from captured(plan, rows, PROFILE, folder, find(os.environ), lambda _: None)
    except Refused as refused:
        cell, arms = rows[0]
        yield replace(PROFILE, cell=cell.id, arm=arms[0].id, status="error", reason=refused.line)


def _one(
    plan: Plan, spec: WorkerSpec, cell: Cell, arm: Arm, made: Profile, folder: Path, ncu: Ncu
) -> tuple[Profile, Ncu]:
    stem = f"{row_file(cell.id, f'peer {arm.peer}' if arm.peer else arm.variant)}.{arm.side}"
    report, page = folder / FOLDER / f"{stem}.ncu-rep", folder / FOLDER / f"{stem}.csv"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)  # of an earlier recording
    made, seed = replace(made, ncu=ncu.version), plan.run.options.seed
    metrics = recording.MEMORY if made.purpose == "memory" else recording.PROFILE
    job = foreground(plan.factory, spec, cell, arm, warmup=made.warmup, runs=made.runs, seed=seed, facts=True)
    log = plan.factory.logs / f"ncu-{stem}.log"
    try:
        code, failed, ncu = record(ncu, job.argv, env=job.env, cwd=job.cwd, metrics=metrics, to=report, log=log)
    except WorkerDied as died:
        return replace(made, status="error", reason=died.reason), ncu
    if failed and not job.result.exists():  # ncu ended the worker
        return replace(made, status="error", reason=f"ncu: {failed}"), ncu
    outcome = job.outcome(code)
    if outcome.status != "ok":
        return replace(made, status=outcome.status, reason=outcome.reason), ncu
    if report.exists():
        made = replace(made, file=f"{FOLDER}/{report.name}", bytes=report.stat().st_size)
    try:
        if failed or not report.exists():
            raise AbprofError(f"ncu: {failed}" if failed else "ncu saw no kernel in the calls")
        raw_page(ncu, report, env=job.env, to=page)
        made, _ = traffic.count(recording.read(page, metrics), made, page, whole=True)
    except AbprofError as error:
        reason = f"{error.what} ({error.advice})" if error.advice else error.what
        return replace(made, status="error", reason=reason), ncu
    if ncu.unknown:
        made = replace(made, notes=(*made.notes, f"this ncu has no {', '.join(sorted(ncu.unknown))} here"))
    facts = {level: outcome.facts.get(f"minimum_{level}_bytes") for level in recording.LEVELS}
    minimum = {level: float(value) for level, value in facts.items() if isinstance(value, int | float)}
    return replace(made, csv=f"{FOLDER}/{page.name}", minimum=minimum), ncu


# ---------------------------------------------------------------- the program ncu

_TIMEOUT = 1800.0  # seconds per recording: every launch is replayed once for each group of counters
_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
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
    ncu: Ncu, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, metrics: Sequence[str], to: Path, log: Path
) -> tuple[int, str, Ncu]:
    """Run a program under ncu, its calls alone; the report goes to `to` (.ncu-rep), all output to `log`.

    Returns ncu's exit code, its first error that is not about the program or "", and `ncu` with the metrics that it did not
    know, which a second attempt leaves out. Raises Refused if counters may not be read, WorkerDied if ncu cannot be started
    or takes too long.
    """
    wanted = [name for name in metrics if name not in ncu.unknown]
    options = ["--target-processes", "all", "--clock-control", "none", "--nvtx", "--nvtx-include", wire.CALL_RANGE]
    options += ["--metrics", ",".join(wanted), "--force-overwrite", "--export", str(to).replace("%", "%%")]
    began = log.stat().st_size if log.exists() else 0
    code = proc.logged([ncu.path, *options, *argv], env={**env, "LC_ALL": "C"}, cwd=cwd, log=log, timeout=_TIMEOUT)
    text = log.read_bytes()[began:].decode(errors="replace")
    lines = re.findall(r"^==(?:ERROR|WARNING)== .*$", text, re.M)
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        raise Refused("ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)", advice=_PERMISSION)
    unknown = {name for line in lines if "metric" in line for name in wanted if _names(line, name)}
    if unknown and not to.exists() and len(unknown) < len(wanted):
        known = dataclasses.replace(ncu, unknown=ncu.unknown | unknown)
        return record(known, argv, env=env, cwd=cwd, metrics=metrics, to=to, log=log)
    errors = [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR== ")]
    return code, next((line[:300] for line in errors if not line.startswith("The application ")), ""), ncu


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
