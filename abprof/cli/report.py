"""`abprof report`, `compare-csv` and `scripts`: what is made from runs that exist."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import note, one_of, refuse, warn, while_read
from abprof.cli.options import MATRIX, RunOrRefs, options_from, takes
from abprof.cli.run import show, view_of
from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.records import Cell, Run

_FORMATS = ("html", "md", "csv", "json", "png", "junit", "legacy", "artifact")
_SCRIPTS_FOLDER, _SCRIPTS_BESIDE = "scripts", "abprof-scripts"  # in a run folder; without one


@app.command("report", short_help="Judge a run again; write its reports anew.")
@takes("all_", "json")
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN [RUN2]", help="A run folder; two are compared.")],
    format: Annotated[
        str, typer.Option(metavar="|".join(_FORMATS), help="Print this instead; nothing is written.")
    ] = "",
    open_: Annotated[bool, typer.Option("--open", help="Open report.html in the browser.")] = False,
    **values: Any,
) -> int:
    """Judge a run again from its rounds, and write its reports anew; or print it in one format; or compare two runs."""
    from abprof import session

    json = values["json"]
    if format:
        one_of(format, "--format", _FORMATS)
    if len(runs) > 2:
        raise AbprofError(f"{len(runs)} runs", where="abprof report", advice="it takes one, or two to compare")
    if format and (open_ or json):
        other = "--open" if open_ else "--json"
        raise AbprofError(f"--format {format} with {other}", advice="--format prints one thing; take one of the two")
    if len(runs) == 2:
        if open_ or format not in ("", "md", "csv", "json"):
            raise AbprofError("two runs are compared as text", where="abprof report", advice="--format md, csv or json")
        return _two(runs, "json" if json else format)
    if format:
        return _in(format, Path(runs[0]))
    done = session.report(Path(runs[0]))
    show(done, json=json, everything=values["all_"])
    if open_:
        _browse(done[1] / "report.html")
    return Exit.OK


def _in(format: str, path: Path) -> int:
    """Print a run in one format on standard output. The older scripts' files are several: they are written, and named."""
    from abprof import session
    from abprof.system import files as disk

    run, blocks = session.judged(path, warn)
    if format == "legacy":
        from abprof.report import legacy

        folder = (path.parent if path.is_file() else path) / "legacy"
        made = legacy.files(run, blocks)
        for name, text in made.items():
            print(disk.put(folder / name, text.encode()))
        return Exit.OK
    if format == "artifact":
        from abprof.extras.bot import encode, make_notice

        content = encode(make_notice(run, path.parent if path.is_file() else path))
        with while_read():
            sys.stdout.buffer.write(content)
        return Exit.OK
    from abprof.report import rendered

    content = rendered(run, blocks, format)
    with while_read():
        sys.stdout.buffer.write(content)
    return Exit.OK


def _two(runs: list[str], format: str) -> int:
    """Print how the second run's verdicts differ from the first's."""
    from abprof import session
    from abprof.report import terminal, two_runs

    found = two_runs.compare(*(session.judged(Path(run), note)[0] for run in runs))
    with while_read():
        if format:
            sys.stdout.write(two_runs.rendered(found, format))
        else:
            terminal.print_tables([found.table] if found.table.rows else [], found.notes, found.sentence)
    return Exit.OK


def _browse(page: Path) -> None:
    """Open a page in the user's browser; or print its path."""
    import webbrowser

    address = page.resolve().as_uri()
    try:
        opened = webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    if not opened:
        note(f"no browser could be started; the page is {address}")


@app.command("compare-csv", short_help="Compare two profile CSVs that exist.")
@takes("threshold")
def compare_csv(
    base: Annotated[Path, typer.Argument(metavar="BASE.csv")],
    target: Annotated[Path, typer.Argument(metavar="TARGET.csv")],
    out: Annotated[Path, typer.Argument(metavar="OUT.csv")],
    **values: Any,
) -> int:
    """Compare two profile CSVs that exist, of dense or block-sparse runs, by the original scripts' formula."""
    from abprof.records.options import GPU_THRESHOLD
    from abprof.report import suite_csv

    sys.stdout.write(suite_csv.compare(base, target, out, threshold=values["threshold"] or GPU_THRESHOLD))
    return Exit.OK


@app.command("scripts", short_help="Write scripts for nsys, ncu and abprof.")
@takes("repo", *(name for name in MATRIX if name != "kernels"), "device", "python", "quiet")
def scripts(
    ctx: typer.Context,
    of: RunOrRefs,
    out: Annotated[str, typer.Option(metavar="DIR", help="Write them here.")] = "",
    **values: Any,
) -> int:
    """Write nvtx_analysis.sh (Nsight Systems), ncu_analysis.sh (Nsight Compute) and compare_analysis.sh (abprof itself) for
    the cells and commits of a run, or of refs that were not measured yet.

    What a run flagged comes first. Nothing is measured here: the scripts call `abprof run-cell` and `abprof run`.
    """
    from abprof.store import runfolder

    path = Path(of[0])
    if len(of) == 1 and (path.is_file() or (path / runfolder.RUN).is_file()):
        advice = "--only chooses among them"
        refuse(ctx, "a run has its cells and its set-up", but=("of", "repo", "out", "only", "quiet"), advice=advice)
        run, cells = _recorded(path, values["only"])
        folder = Path(out) if out else (path.parent if path.is_file() else path) / _SCRIPTS_FOLDER
    else:
        run = _planned(of, values)
        cells, folder = run.cells, Path(out or _SCRIPTS_BESIDE)
    _write_scripts(run, cells, folder, values["repo"])
    return Exit.OK


def _write_scripts(run: Run, cells: Sequence[Cell], folder: Path, repo: str) -> None:
    """The scripts, and on standard output where each lies."""
    from abprof.report.scripts import scripts as made
    from abprof.system import files as disk

    root = _repository(run, repo)
    source = run.options.workloads_from
    others = [side.id for side in run.sides if side.id != source]
    if others and len(others) < len(run.sides):
        note(f"warning: the workloads are {source}'s; what is recorded of {', '.join(others)} takes the working tree's")
    for name, text in made(run, cells, root).items():
        written = disk.put(folder / name, text.encode())
        written.chmod(0o755)
        print(written)


def _recorded(path: Path, only: Sequence[str]) -> tuple[Run, tuple[Cell, ...]]:
    from abprof import session
    from abprof.measure import continued

    run, _ = session.judged(path, warn)
    continued.of_workloads(run, str(path))
    return run, continued.choose(run, only)


def _planned(refs: list[str], values: dict[str, Any]) -> Run:
    from abprof import session

    view = view_of(values)
    planned = session.dry_run(options_from(refs, values, dry_run=True), view)
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
            note(f"warning: {before.id} is the working tree, which is not what it was in the run")
    return Path(repository.path)
