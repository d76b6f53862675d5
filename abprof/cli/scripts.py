"""`abprof scripts`: shell scripts that profile, or measure again, what a run measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli import shared
from abprof.cli.completion import refs as complete_refs
from abprof.cli.given import given
from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.records import Cell, Run

_OF_A_PLAN = ("workloads", "workloads_from", "preset", "set_", "cell", "device", "python")
FOLDER = "scripts"  # in a run folder
BESIDE = "abprof-scripts"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("scripts", help=scripts.__doc__, short_help="Write scripts for nsys, ncu and abprof.")(scripts)


def scripts(
    ctx: typer.Context,
    of: Annotated[
        list[str],
        typer.Argument(metavar="RUN | BASE [TARGET]...", help="A run folder, or refs.", autocompletion=complete_refs),
    ],
    repo: shared.Repo = ".",
    out: Annotated[str, typer.Option(metavar="DIR", help="Write them here.")] = "",
    only: Annotated[
        list[str],
        typer.Option(metavar="VERDICT|AXIS=VALUE|GLOB", help="Only these cells.", rich_help_panel=shared.MATRIX),
    ] = [],  # noqa: B006
    workloads: shared.Workloads = [],  # noqa: B006
    workloads_from: shared.WorkloadsFrom = "",
    preset: shared.Preset = "",
    set_: shared.Set = [],  # noqa: B006
    cell: shared.Cell = [],  # noqa: B006
    device: shared.Device = [],  # noqa: B006
    python: shared.Python = [],  # noqa: B006
    quiet: shared.Quiet = False,
) -> int:
    """Write nvtx_analysis.sh (Nsight Systems), ncu_analysis.sh (Nsight Compute) and compare_analysis.sh (abprof itself) for
    the cells and commits of a run, or of refs that were not measured yet.

    What a run flagged comes first. Nothing is measured here: the scripts call `abprof run-cell` and `abprof run`.
    """
    from abprof.store import runfolder

    options = dict(locals())
    path = Path(of[0])
    if len(of) == 1 and (path.is_file() or (path / runfolder.RUN).is_file()):
        _refuse_beside_a_run(ctx)
        run, cells = _recorded(path, only)
        folder = Path(out) if out else (path.parent if path.is_file() else path) / FOLDER
    else:
        run = _planned(options)
        cells, folder = run.cells, Path(out or BESIDE)
    _write(run, cells, folder, repo)
    return Exit.OK


def _write(run: Run, cells: Sequence[Cell], folder: Path, repo: str) -> None:
    """The scripts, and on standard output where each lies."""
    from abprof.report.scripts import scripts as made
    from abprof.system import files as disk

    root = _repository(run, repo)
    source = run.options.workloads_from
    others = [side.id for side in run.sides if side.id != source]
    if others and len(others) < len(run.sides):
        _note(f"the workloads are {source}'s; what is recorded of {', '.join(others)} takes the working tree's")
    for name, text in made(run, cells, root).items():
        written = disk.put(folder / name, text.encode())
        written.chmod(0o755)
        print(written)


def _refuse_beside_a_run(ctx: typer.Context) -> None:
    for name, option in given(ctx).items():
        if name in _OF_A_PLAN:
            raise AbprofError("a run has its cells and its set-up", where=option, advice="--only chooses among them")


def _recorded(path: Path, only: Sequence[str]) -> tuple[Run, tuple[Cell, ...]]:
    from abprof import session
    from abprof.measure import continued

    run, _ = session.judged(path, _note)
    continued.of_workloads(run, str(path))
    return run, continued.choose(run, only)


def _planned(options: dict[str, Any]) -> Run:
    from abprof import session
    from abprof.cli.options import config_from
    from abprof.cli.run import defaults
    from abprof.system.console import View

    config = config_from({**defaults(), **options, "refs": options["of"], "dry_run": True}, sys.argv[1:])
    view = View(quiet=options["quiet"])
    planned = session.dry_run(config, view)
    for cell, reason in dict.fromkeys((seen.cell, seen.reason) for seen in planned.observations):
        view.warn(f"{cell}: broken, and left out: {reason}")
    return planned


def _repository(run: Run, where: str) -> Path:
    """The repository's folder. Raises AbprofError where it lacks a commit of the run; says so where a working tree is
    another now."""
    from abprof import sides as repo
    from abprof.system import paths

    released = {side.anew: (side, ()) for side in run.sides if side.kind == "dist"}
    if len(released) == len({side.anew for side in run.sides}):
        return Path(where).resolve()
    repository = repo.open_repository(Path(where), cache=paths.cache_dir())
    now, _ = repo.resolve(repository, tuple(side.anew for side in run.sides), known=released)
    for before, side in zip(run.sides, now, strict=True):
        if before.tree != side.tree:
            _note(f"{before.id} is the working tree, which is not what it was in the run")
    return Path(repository.path)


def _note(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
