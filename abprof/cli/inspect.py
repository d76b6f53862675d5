"""`abprof demo`, `selfcheck`, `list`, `doctor`, `clean`, `waive`: the machine, the repository, and what abprof keeps."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import while_read
from abprof.cli.options import VIEW, options_from, takes
from abprof.cli.run import view_of
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

if TYPE_CHECKING:
    from abprof.measure.discovery import Survey
    from abprof.records import Options, Workload
    from abprof.records.options import File


@app.command("demo", short_help="Compare two branches of a small example repository.")
@takes("device", *VIEW)
def demo(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Where the demo repository is made.")] = "",
    **values: Any,
) -> int:
    """Make a small example repository with branches main and optimize_ffa, and compare the two."""
    from abprof.extras.demo import run as make

    make(folder, tuple(values["device"]), view_of(values))
    return Exit.OK


@app.command("selfcheck", short_help="Measure abprof itself on this machine.")
@takes("budget", "preset", "epochs", "only", "device", "timer", "quick", "runs_dir", "json", "quiet")
def selfcheck(
    **values: Any,
) -> int:
    """Measure abprof itself on this machine: false alarms, detection of known changes, coverage of its intervals.

    Presets are quick, default and full; --budget is 5m by default.
    """
    from abprof.extras import selfcheck as check

    quick = values["quick"]
    own = {**values, "quick": False, "preset": values["preset"] or ("quick" if quick else "default")}
    own |= {"epochs": values["epochs"] or (4 if quick else 8), "budget": values["budget"] or 300.0, "peers": False}
    found, folder = check.run(options_from([], own), view_of(values))
    with while_read():
        print(check.as_json(found, folder) if values["json"] else check.as_markdown(found, folder))
    return Exit.OK if found.cells else Exit.CANNOT_RUN


@app.command("list", short_help="List kernel packages, workloads and cells.")
@takes("repo", "preset", "workloads", "device", "json")
def list_(**values: Any) -> int:
    """List kernel packages, workloads and the cells of a preset, of the working tree."""
    import msgspec

    from abprof import sides as repo
    from abprof.records.options import File
    from abprof.records.quantities import plural
    from abprof.system import paths
    from abprof.system.config_file import read_file

    cache = paths.cache_dir()
    root = Path(repo.open_repository(Path(values["repo"]), cache=cache).path)
    file = read_file(root) or File()
    options = options_from(["."], values).under(file)
    found = _survey(root, options, cache)
    kernels = _kernels(root, file)
    if values["json"]:
        broken = {cell.removesuffix("/"): failure.reason for cell, failure in found.broken.items()}
        loose = {"kernels": kernels, "workloads": found.workloads, "cells": found.cells, "broken": broken}
        print(msgspec.json.encode(loose).decode())
        return Exit.OK
    lines = ["kernel packages: " + (", ".join(kernels) or "none")]
    for load in found.workloads:
        lines += ["", *_workload(load, found, options.preset)]
    lines += ["", f"{plural(len(found.cells) - len(found.broken), 'cell')} in preset {options.preset}"]
    print("\n".join(map(visible, lines)))
    return Exit.OK


def _kernels(root: Path, file: File) -> list[str]:
    """The packages of abprof.toml, and those of the conventional layout."""
    from abprof.builds import exists

    python = (path.relative_to(root / "kernels") for path in (root / "kernels").rglob("*.py"))
    names = {path.parts[0].removesuffix(".py") for path in python}
    there = {name for name in names if not name.startswith(("_", ".")) and exists(root, file.package(name))}
    return sorted(there | set(file.kernels))


def _workload(load: Workload, found: Survey, preset: str) -> list[str]:
    failure = found.broken.get(f"{load.name}/")
    if failure:
        return [f"{load.name}: broken: {failure.reason}"]
    head = f"{load.name} (kernel {load.kernel}; axes {', '.join(load.axes)}): {load.text}"
    if load.name in found.empty:
        return [head, f"  no cell in preset {preset}"]
    mine = [cell for cell in found.cells if cell.workload == load.name]
    return [head, *(f"  {cell.id}" + (f"  (unsupported: {cell.skip})" if cell.skip else "") for cell in mine)]


def _survey(root: Path, options: Options, cache: Path) -> Survey:
    """Ask the workloads where they lie: nothing is copied, for nothing is measured."""
    from abprof import devices
    from abprof.builds.worker_factory import alone
    from abprof.measure.discovery import find_workloads, survey
    from abprof.records.options import File
    from abprof.system import processes

    chosen = devices.choose(options.device)
    file = options.file or File()
    files = find_workloads(root / (file.workloads or "workloads"), options.workloads)
    with processes.no_orphans(), tempfile.TemporaryDirectory() as scratch:
        worker = alone(options, cache, chosen.worker, Path(scratch))
        try:
            return survey(worker, files, options, device=chosen.worker, kind=chosen.kind, timeout=options.timeout)
        finally:
            worker.stop()


@app.command("doctor", short_help="Report what this machine can measure.")
@takes("json")
def doctor(
    python: Annotated[str, typer.Option(metavar="PATH", help="The workers' interpreter.")] = "",
    **values: Any,
) -> int:
    """Report what this machine can measure, and what is missing for it."""
    from abprof.extras.doctor import run as examine

    return examine(python, json=values["json"])


@app.command("clean", short_help="Remove what killed runs left behind.")
def clean(
    builds: Annotated[bool, typer.Option("--builds", help="Remove cached builds too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove kept worktrees, clones and builds too.")] = False,
) -> int:
    """Remove what killed runs left behind (worktrees, half-made clones and builds, run folders without a run.json) and
    builds that were superseded by --rebuild. A run folder with a run.json is never touched."""
    from abprof import builds as built
    from abprof import sides, store
    from abprof.system import paths

    cache, state = paths.cache_dir(), paths.state_dir()
    lines = built.sweep(cache, everything=builds or everything)
    lines += [*store.sweep(state), *sides.sweep(cache, everything=everything)]
    for line in lines or ["nothing to clean"]:
        print(line)
    return Exit.OK


@app.command("waive", short_help="Accept a slow-down, for a while.")
@takes("repo")
def waive(
    cells: Annotated[str, typer.Argument(metavar="GLOB", help="Cells by their ids, e.g. 'dense/*direction=bwd*'.")],
    most: Annotated[str, typer.Option(metavar="PCT", help="The largest slow-down that is accepted.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.")],
    owner: Annotated[str, typer.Option(metavar="NAME", help="Who answers for it.")],
    until: Annotated[str, typer.Option(metavar="DATE", help="Its last day, e.g. 2026-12-31.")],
    **values: Any,
) -> int:
    """Add a waiver to abprof-waivers.toml in the working tree.

    Runs read that file from the commit they compare with: it holds once it is on the base branch. A waived row is still
    `slower`; it counts as nothing to act on while it is within the accepted change and the date.
    """
    from abprof.records import Waiver
    from abprof.records.quantities import percent
    from abprof.system import files as disk
    from abprof.system import toml, waiver_file
    from abprof.verdict import waivers

    made = Waiver(cells=cells, most_pct=percent(most, "--most"), reason=reason, owner=owner, expires=_day(until))
    path = _root(Path(values["repo"])) / waivers.FILE
    try:
        text = toml.decoded(disk.content(path), str(path)) if path.exists() else ""
    except OSError as error:
        raise AbprofError(f"cannot be read: {error}", where=str(path)) from None
    disk.put(path, waiver_file.with_one_more(text, made, str(path)).encode())
    print(f"{path}: {waivers.describe(made)}")
    loads = [file.stem for file in sorted(path.parent.glob("workloads/*.py")) if not file.name.startswith("_")]
    if loads and not waiver_file.matches_workload(cells, loads):
        print(f"No workload in {path.parent / 'workloads'} has such cells: there are {', '.join(loads)}.")
    print("It holds for comparisons with a base that has it: commit it there.")
    return Exit.OK


def _day(text: str) -> str:
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        raise AbprofError(f"{text!r} is no date", where="--until", advice="write 2026-12-31") from None
    if day < datetime.datetime.now(datetime.UTC).date():
        raise AbprofError(f"{text} has passed", where="--until")
    return day.isoformat()


def _root(folder: Path) -> Path:
    for place in (folder.absolute(), *folder.absolute().parents):
        if (place / ".git").exists():
            return place
    raise AbprofError("no git repository here", where=f"--repo {folder}")
