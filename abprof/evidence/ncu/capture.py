"""Run each arm alone in a worker under Nsight Compute (ncu), which records hardware counters of the arm's calls."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from abprof.evidence.ncu import recording, traffic
from abprof.measure import Plan
from abprof.records import Arm, Build, Cell, Profile
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.records.ncu import LEVELS
from abprof.records.quantities import plural
from abprof.system import doorway
from abprof.system import processes as proc
from abprof.system.processes import WorkerDied

FOLDER = "ncu"  # in the run folder
SOURCE = "SourceCounters"  # a section: samples of each instruction, with what its warps waited for
Rows = Sequence[tuple[Cell, Sequence[Arm]]]
PROFILE = Profile(cell="", arm="", purpose="profile", warmup=2, runs=3)  # what `abprof profile` records of an arm


def _one(plan: Plan, build: Build, cell: Cell, arm: Arm, made: Profile, folder: Path, ncu: Ncu) -> Profile:
    stem = f"{row_file(cell.id, f'peer {arm.peer}' if arm.peer else arm.variant)}.{arm.side}"
    report, page = folder / FOLDER / f"{stem}.ncu-rep", folder / FOLDER / f"{stem}.csv"
    report.parent.mkdir(exist_ok=True)
    for path in (report, page, page.with_suffix(".source.csv")):
        path.unlink(missing_ok=True)  # of an earlier recording
    metrics = recording.MEMORY if made.purpose == "memory" else (*recording.PROFILE, SOURCE)
    job = plan.foreground(build, cell, arm, warmup=made.warmup, runs=made.runs, facts=True)
    try:
        code, failed = ncu.record(job.argv, job.env, job.cwd, metrics, report, plan.factory.logs / f"ncu-{stem}.log")
        if failed and not job.result.exists():  # ncu ended the worker
            raise AbprofError(f"ncu: {failed}")
        outcome = job.outcome(code)
        if outcome.status != "ok":
            return replace(made, status=outcome.status, reason=outcome.reason)
        if report.exists():
            made = replace(made, file=f"{FOLDER}/{report.name}", bytes=report.stat().st_size)
        if failed or not made.file:
            raise AbprofError(f"ncu: {failed}" if failed else "ncu saw no kernel in the calls")
        if broken := ncu.export(report, page, job.env, "raw", "--print-units", "base"):
            raise broken
        made, _ = traffic.count(recording.read(page, metrics), made, page, whole=True)
        made = _sampled(ncu, made, report, page.with_suffix(".source.csv"), job.env) if SOURCE in metrics else made
    except Refused:
        raise
    except WorkerDied as died:
        return replace(made, status="error", reason=f"ncu: {died.reason}")
    except AbprofError as error:
        reason = f"{error.what} ({error.advice})" if error.advice else error.what
        return replace(made, status="error", reason=reason)
    if ncu.unknown:
        made = replace(made, notes=(*made.notes, f"this ncu has no {', '.join(sorted(ncu.unknown))} here"))
    facts = {level: outcome.facts.get(f"minimum_{level}_bytes") for level in LEVELS}
    minimum = {level: float(value) for level, value in facts.items() if isinstance(value, int | float)}
    return replace(made, csv=f"{FOLDER}/{page.name}", minimum=minimum)


def _sampled(ncu: Ncu, made: Profile, report: Path, page: Path, env: Mapping[str, str]) -> Profile:
    if broken := ncu.export(report, page, env, "source", "--print-source", "sass"):
        return replace(made, notes=(*made.notes, f"no samples by line: {broken.what}"))
    return replace(made, source=f"{FOLDER}/{page.name}")


# ---------------------------------------------------------------- the program ncu

_TIMEOUT = 1800.0  # seconds per recording: every launch is replayed once for each group of counters
_LOCALE = {"LC_ALL": "C"}
_PERMISSION = (
    "run as root or with CAP_SYS_ADMIN (a container: --cap-add=SYS_ADMIN), or for all users: the line `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` in a file of /etc/modprobe.d, then load the module again or restart"
)


class Refused(AbprofError):
    """Raised if ncu cannot record on this machine: it is not installed, or the GPU's counters are not accessible."""


@dataclass
class Ncu:
    path: str
    version: str
    unknown: set[str] = field(default_factory=set)  # metrics that ncu reported as unknown on this machine

    @classmethod
    def find(cls) -> Ncu:
        """Find ncu on PATH or in the CUDA toolkit. Raises Refused if Nsight Compute is not installed."""
        path = proc.cuda_tool("ncu")
        text = proc.output([path, "--version"], timeout=60.0, env={**os.environ, **_LOCALE}) or "" if path else ""
        version = re.search(r"Nsight Compute(?s:.*)[Vv]ersion\s+(\S+)", text)  # other tools have this name
        if not path or not version:
            what = f"{path} is not Nsight Compute" if path else "no ncu (Nsight Compute) on PATH or in $CUDA_HOME/bin"
            raise Refused(what, advice="install the CUDA toolkit or the package nsight-compute, or set CUDA_HOME")
        return cls(path, version[1])

    def captured(
        self, plan: Plan, rows: Rows, order: Profile, folder: Path, say: Callable[[str], None]
    ) -> Iterator[Profile]:
        """Run each arm in `rows` under ncu, and yield its profile. If ncu fails, the profile's `reason` says why.

        `order`: a Profile with purpose and numbers of calls. Raises Refused if ncu cannot record on this machine.
        """
        for cell, arms in rows:
            for arm in arms:
                build, made = plan.build(arm.side, cell.kernel), replace(order, cell=cell.id, arm=arm.id)
                if cell.skip:
                    made = replace(made, status="unsupported", reason=cell.skip)
                elif build is None:
                    made = replace(made, status="missing")
                elif build.failure:
                    made = replace(made, status=build.failure.status, reason=build.failure.reason)
                else:
                    made = _one(plan, build, cell, arm, replace(made, ncu=self.version), folder, self)
                size = plural(len(made.kernels), "kernel")
                say(f"  {cell.id}  {arm.id}: {size if made.status == 'ok' else f'{made.status}, {made.reason}'}")
                yield made

    def export(self, report: Path, to: Path, env: Mapping[str, str], page: str, *options: str) -> AbprofError | None:
        """Write a page of a report as CSV to `to`. Returns an error if ncu fails."""
        argv = [self.path, "--import", str(report.absolute()), "--csv", "--page", page, *options]
        try:
            code = proc.logged(argv, env={**env, **_LOCALE}, cwd=to.parent, log=to, timeout=_TIMEOUT)
            why = f"exit code {code}" if code else ""
        except WorkerDied as died:
            why = died.reason
        return AbprofError(f"ncu could not export its report ({why})", advice=f"try {' '.join(argv)}") if why else None

    def record(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, metrics: Sequence[str], to: Path, log: Path
    ) -> tuple[int, str]:
        """Run `argv` under ncu, save the report of the arm's calls to `to`, and append all output to `log`.

        Returns the exit code and ncu's first error message, or "". Leaves out metrics that this ncu does not know.
        Raises Refused if the GPU's counters are not accessible, WorkerDied if ncu cannot run.
        """
        wanted = [name for name in metrics if name not in self.unknown]
        options = ["--target-processes", "all", "--clock-control", "none", "--nvtx", "--nvtx-include", wire.CALL_RANGE]
        options += ["--section", SOURCE] if SOURCE in wanted else []
        named = ",".join(name for name in wanted if name != SOURCE)
        options += ["--metrics", named, "--force-overwrite", "--export", str(to).replace("%", "%%")]
        began = log.lstat().st_size if log.exists() else 0
        code = proc.logged([self.path, *options, *argv], env={**env, **_LOCALE}, cwd=cwd, log=log, timeout=_TIMEOUT)
        text = doorway.tail(log, proc.LOG_LIMIT, began).decode(errors="replace")
        lines = re.findall(r"^==(?:ERROR|WARNING)== .*$", text, re.M)
        if any("ERR_NVGPUCTRPERM" in line for line in lines):
            raise Refused("ncu may not read the GPU's counters (ERR_NVGPUCTRPERM)", advice=_PERMISSION)
        said = " ".join(line for line in lines if re.search("metric|section", line))
        about = said.replace("\\", "")  # names as regular expressions
        unknown = {name for name in wanted if re.search(rf"(?<!\w){re.escape(name)}(?!\.?\w)", about)}
        if unknown and not to.exists() and len(unknown) < len(wanted):
            self.unknown |= unknown
            return self.record(argv, env, cwd, metrics, to, log)
        errors = [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR== ")]
        return code, next((line[:300] for line in errors if not line.startswith("The application ")), "")
