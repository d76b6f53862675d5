"""Any program under Nsight Compute, for its memory traffic."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from abprof.evidence.memory import measured
from abprof.evidence.memory.traffic import Table
from abprof.evidence.ncu import metrics, tool
from abprof.records.errors import AbprofError
from abprof.system import processes as proc


def recorded(
    program: Sequence[str],
    report: Path,
    *,
    warmup: int,
    runs: int,
    kernels: Sequence[str],
    nvtx: str,
    say: Callable[[str], None],
) -> Table:
    """Its traffic, with its report kept in `report` (.ncu-rep) and the raw page beside it (.csv).

    It makes `warmup + runs` calls of each shape. `nvtx`: only what it launches inside this range, where ncu's filter is
    as its user writes it. Raises AbprofError.
    """
    if report.suffix != ".ncu-rep":
        raise AbprofError(f"{str(report)!r} does not end in .ncu-rep", where="--export")
    ncu = tool.find(os.environ)
    page = report.with_suffix(".csv")
    report.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder, proc.no_orphans():
        log = Path(folder) / "log"
        try:
            did = tool.record(ncu, program, env=os.environ, cwd=Path.cwd(), metrics=metrics.MEMORY,
                              to=report.absolute(), log=log, nvtx=nvtx)  # fmt: skip
        except proc.WorkerDied as failed:
            raise AbprofError(failed.reason, where=program[0]) from failed
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if did.error:
            last = next((line for line in reversed(said) if not line.startswith("==")), "")
            raise AbprofError(did.error, where=program[0], advice=f"it said last: {last[:200]}" if last else "")
    if did.code:
        say(f"warning: {program[0]} or ncu ended with exit code {did.code}")
    tool.raw_page(did.ncu, report, env=os.environ, to=page)
    say(f"kept: {report}, {page}")
    return measured(page, warmup=warmup, runs=runs, kernels=kernels)
