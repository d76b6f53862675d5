"""Make shell scripts from templates/scripts/ that call a run's cells again under Nsight's tools, or measure them again.

Names of branches and cells may contain any character, so the templates quote each value for the shell.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from abprof.records import Arm, Cell, Run
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.report.layouts import templates
from abprof.report.rows import workload_of

NAMES = ("nvtx_analysis.sh", "ncu_analysis.sh", "compare_analysis.sh")
_CALLS = {"nvtx_analysis.sh": ("nsys", 10, 50), "ncu_analysis.sh": ("ncu", 1, 3)}  # folder, warm-ups, runs
_FIRST = ("broken", "slower", "faster", "slight", "unclear")


def scripts(run: Run, cells: Sequence[Cell], repo: Path) -> dict[str, str]:
    """Return {file name: text of the script}. `run` may be a plan without results. Raises AbprofError if no cell can be
    called."""
    rows = _rows(run, cells)
    if not rows:
        raise AbprofError("no cell can be called on any side", advice="the run's report says why")
    made = templates(_word)
    made.globals["words"] = lambda texts: Markup("").join(Markup(" ") + _word(text) for text in texts)
    common = {
        "abprof": shutil.which("abprof", path=str(Path(sys.executable).parent)) or "abprof",
        "repo": str(repo),
        "device": run.machine.kind,
        "range": wire.CALL_RANGE,
        "rows": rows,
        "run": [f"--cell={cell.id}" for cell in cells if cell.kernel] + _options(run),
        "refs": [side.anew for side in run.sides],
    }
    found = {}
    for name in NAMES:
        out, warmup, runs = _CALLS.get(name, ("", 0, 0))
        found[name] = made.get_template(f"scripts/{name}").render(**common, out=out, warmup=warmup, runs=runs)
    return found


def _rows(run: Run, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the arms of each cell and variant that can be called. Cells that need attention are first."""
    statuses = {(one.cell, one.arm): one.status for one in run.observations}
    sides = {side.id for side in run.sides}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        variants = workload_of(run, cell).variants or ("",)
        planned = [Arm.of(f"{side.id}:{name}" if name else side.id) for name in variants for side in run.sides]
        for arm in run.arms or planned:
            callable_ = not run.arms or statuses.get((cell.id, arm.id)) in ("ok", "wrong", "identical")
            if callable_ and cell.kernel and not cell.skip and not arm.peer and arm.side in sides:
                found.setdefault((cell.id, arm.variant), []).append(_call(run, cell, arm))
    flagged = [one for one in run.comparisons if one.verdict in _FIRST]
    flagged.sort(key=lambda one: (_FIRST.index(one.verdict), -abs(one.pct or 0.0)))
    keys = [(one.cell, Arm.of(one.to).variant) for one in flagged]
    ordered = [found[key] for key in dict.fromkeys([*keys, *found]) if key in found]
    return [{"arms": arms, "csvs": [f"{a['file']}.csv" for a in arms] if len(arms) > 1 else []} for arms in ordered]


def _call(run: Run, cell: Cell, arm: Arm) -> dict[str, Any]:
    options, source = ["--seed", str(run.options.seed)], run.options.workloads_from
    options += ["--variant", arm.variant] if arm.variant else []
    options += ["--python", run.options.python[arm.side]] if arm.side in run.options.python else []
    options += ["--env", run.options.env] if run.options.env else []
    if source == arm.side or source not in {"", *(side.id for side in run.sides)}:  # else another side's folder
        options += ["--workloads-from", "base" if source == arm.side else source]
    file, ref = f"{row_file(cell.id, arm.variant)}.{arm.side}", run.side(arm.side).anew
    return {"file": file, "side": arm.side, "kernel": cell.kernel, "ref": ref, "cell": cell.id, "options": options}


def _options(run: Run) -> list[str]:
    of = run.options
    words = [f"--threshold={of.threshold:g}", f"--margin={of.margin:g}", f"--seed={of.seed}"]
    words += [f"--python={side}={path}" for side, path in of.python.items()]
    words += [f"--env={of.env}"] if of.env else []
    words += [f"--workloads-from={of.workloads_from}"] if of.workloads_from else []
    peers = dict.fromkeys(arm.peer for arm in run.arms if arm.peer)
    return words + ([f"--peer={peer}" for peer in peers] if peers or not run.arms else ["--no-peers"])


def _word(value: Any) -> Markup:
    """Quote a value as one word for the shell."""
    return value if isinstance(value, Markup) else Markup(shlex.quote(str(value)))  # noqa: S704
