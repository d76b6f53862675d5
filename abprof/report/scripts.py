"""Scripts that record a run's cells under Nsight's tools, or measure them again. templates/scripts/ holds their words.

Names of branches and cells are foreign text, and a script is executed: whatever a template prints becomes one quoted word.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from abprof.records import Arm, Cell, Run
from abprof.records import messages as wire
from abprof.records.errors import AbprofError
from abprof.records.names import row_file
from abprof.report.rows import workload_of
from abprof.system.bundled import bundled

NAMES = ("nvtx_analysis.sh", "ncu_analysis.sh", "compare_analysis.sh")
_CALLS = {"nvtx_analysis.sh": ("nsys", 10, 50), "ncu_analysis.sh": ("ncu", 1, 3)}  # folder, warm-ups, runs
_FIRST = ("broken", "slower", "faster", "slight", "unclear")
_CALLABLE = ("ok", "wrong", "identical")


@dataclass(frozen=True)
class Look:
    """One arm of a cell: `file` begins the names of what is recorded, `options` are more of `abprof run-cell`."""

    file: str
    side: str
    kernel: str
    ref: str
    cell: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A cell in one variant, on every side that has it."""

    arms: tuple[Look, ...]

    @property
    def csvs(self) -> tuple[str, ...]:
        """Nsight Compute's tables, base's first; none where there is nothing to be put beside it."""
        return tuple(f"{arm.file}.csv" for arm in self.arms) if len(self.arms) > 1 else ()


def scripts(run: Run, cells: Sequence[Cell], repo: Path) -> dict[str, str]:
    """The scripts by name, for these cells of a run, or of a plan that was not carried out.

    Raises AbprofError where nothing is left to look at, and for a name that cannot be a program's argument.
    """
    rows = list(_rows(run, cells))
    if not rows:
        raise AbprofError("no cell could be called on any side", advice="the run's page says why")
    made = _environment()
    common = {
        "abprof": shutil.which("abprof", path=str(Path(sys.executable).parent)) or "abprof",
        "repo": str(repo),
        "device": run.machine.kind,
        "range": wire.CALL_RANGE,
        "rows": rows,
        "run": [f"--cell={cell.id}" for cell in cells if cell.kernel] + _measured(run),
        "refs": [_ref(run, side.id) for side in run.sides],
    }
    found = {}
    for name in NAMES:
        out, warmup, runs = _CALLS.get(name, ("", 0, 0))
        found[name] = made.get_template(f"scripts/{name}").render(**common, out=out, warmup=warmup, runs=runs)
    return found


def _rows(run: Run, cells: Sequence[Cell]) -> list[Row]:
    """Rows that were flagged come first, of each kind those that changed most."""
    statuses = {(one.cell, one.arm): one.status for one in run.observations}
    found: dict[tuple[str, str], list[Look]] = {}
    for cell in cells:
        arms = run.arms or _planned(run, cell)
        mine = [arm for arm in arms if not arm.peer and arm.side in {side.id for side in run.sides}]
        for arm in () if cell.skip or not cell.kernel else mine:
            if not run.arms or statuses.get((cell.id, arm.id)) in _CALLABLE:
                found.setdefault((cell.id, arm.variant), []).append(_look(run, cell, arm))
    order = _order(run)
    return [Row(tuple(found[key])) for key in sorted(found, key=lambda key: order.get(key, (len(_FIRST), 0.0)))]


def _planned(run: Run, cell: Cell) -> list[Arm]:
    """Before anything is built: the variants that the workload names, and the first one where it names none."""
    return [
        Arm(id=side.id, side=side.id, variant=name)
        for name in workload_of(run, cell).variants or ("",)
        for side in run.sides
    ]


def _order(run: Run) -> dict[tuple[str, str], tuple[int, float]]:
    variants = {arm.id: arm.variant for arm in run.arms if not arm.peer}
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for one in run.comparisons:
        if one.from_ in variants and one.to in variants and one.verdict in _FIRST:
            key, rank = (one.cell, variants[one.to]), (_FIRST.index(one.verdict), -abs(one.pct or 0.0))
            found[key] = min(found.get(key, rank), rank)
    return found


def _look(run: Run, cell: Cell, arm: Arm) -> Look:
    options = ["--seed", str(run.options.seed)]
    options += ["--variant", arm.variant] if arm.variant else []
    options += ["--python", run.options.python[arm.side]] if arm.side in run.options.python else []
    options += ["--env", run.options.env] if run.options.env else []
    source = run.options.workloads_from
    options += ["--workloads-from", "base" if source == arm.side else source] if _of(source, arm.side, run) else []
    file = f"{row_file(cell.id, arm.variant)}.{arm.side}"
    return Look(file, arm.side, cell.kernel, _ref(run, arm.side), cell.id, tuple(options))


def _of(source: str, side: str, run: Run) -> bool:
    """Whether this side's calls can be told where the workloads were: another side's folder has no name there."""
    return bool(source) and (source == side or source not in {s.id for s in run.sides})


def _ref(run: Run, side: str) -> str:
    return run.side(side).anew


def _measured(run: Run) -> list[str]:
    words = [f"--threshold={run.options.threshold:g}", f"--margin={run.options.margin:g}"]
    words += [f"--seed={run.options.seed}"]
    words += [f"--python={side}={path}" for side, path in run.options.python.items()]
    words += [f"--env={run.options.env}"] if run.options.env else []
    words += [f"--workloads-from={run.options.workloads_from}"] if run.options.workloads_from else []
    peers = dict.fromkeys(arm.peer for arm in run.arms if arm.peer)
    return words + ([f"--peer={peer}" for peer in peers] if peers or not run.arms else ["--no-peers"])


def quoting(quote: Callable[[object], object]) -> Environment:
    """Templates of no HTML, of which all that is printed goes through `quote`."""
    return Environment(
        loader=FileSystemLoader(bundled("templates")),
        autoescape=False,  # noqa: S701 - no HTML: `quote` has all that is printed
        undefined=StrictUndefined,
        finalize=quote,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _environment() -> Environment:
    made = quoting(_word)
    made.globals["words"] = lambda texts: Markup("".join(f" {_word(text)}" for text in texts))  # noqa: S704
    return made


def _word(value: Any) -> str:
    """One word of a shell, whatever is in it. Raises AbprofError for what no program's argument can hold."""
    if isinstance(value, Markup):
        return str(value)
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AbprofError("not in UTF-8", where=repr(text), advice="--only leaves it out") from None
    if "\0" in text:
        raise AbprofError("a name with a NUL in it", where=repr(text), advice="--only leaves it out")
    return shlex.quote(text)
