"""Define `abprof demo`, `selfcheck`, `list`, `doctor`, `clean` and `waive`."""

from __future__ import annotations

import datetime
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from abprof.cli.app import app
from abprof.cli.options import VIEW, flag, options_from, takes, text, view_of, worded
from abprof.records import WAIVER_FILE, Options, Waiver
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import File
from abprof.records.quantities import percent, plural
from abprof.records.visible import visible
from abprof.system import files as disk
from abprof.system import paths, toml, waiver_file
from abprof.system.config_file import read_file

if TYPE_CHECKING:
    from abprof.measure import Discovered


@app.command("demo", short_help="Compare two branches of a small example repository.")
@takes("device", *VIEW)
def demo(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="New folder; default: abprof-demo.")] = "",
    **values: Any,
) -> int:
    """Make a small example repository with two branches, and compare them. The exit code is 0 whatever the verdicts."""
    from abprof.extras import demo
    from abprof.report import print_run

    print_run(*demo.run(folder, values["device"], view_of(values)))
    return Exit.OK


@app.command("selfcheck", short_help="Measure abprof's own error rates on this machine.")
@takes(
    worded("budget", "Longest time for measuring, e.g. 90s, 1.5h; default: 5m."),
    worded("preset", "ci (4 cells), quick, default or full."),
    worded("epochs", "Measure N epochs of every cell; default: 8, with preset ci or quick 4."),
    flag("--quick", "Short for --preset quick."),
    *("only", "device", "timer", "runs_dir", "json", "quiet"),
    flag("--certificate", "Also time the cells as other tools do; write certificate.html and .md."),
)
def selfcheck(**values: Any) -> int:
    """Measure abprof's error rates on this machine: false alarms, detection of known changes, coverage of intervals.

    Exit code 4 if unchanged code looked changed, or the largest planted change was not found in every cell. In CI, a
    slow-down fails a run only on a machine that passed this since its last boot and driver change.

    --certificate compares abprof on the same cells with triton.testing.do_bench (CPU: blocked_autorange of torch) and the
    rule of the original scripts, in about 3 minutes on an H100. It has a preset of its own, certificate, and 12 epochs.
    """
    from abprof.extras import selfcheck as check

    quick, compared = values["quick"], values["certificate"]
    preset = values["preset"] or ("quick" if quick else "certificate" if compared else "default")
    epochs = {"ci": 4, "quick": 4, "certificate": 12}.get(preset, 8)
    own = {**values, "quick": False, "preset": preset, "epochs": values["epochs"] or epochs, "peers": False}
    own |= {"budget": values["budget"] or (330.0 if compared else 300.0), "regime": "burst"}
    found, folder = check.run(options_from([], own), view_of(values), compared=compared)
    loose = {**msgspec.to_builtins(found), "run_dir": str(folder)}
    print(msgspec.json.encode(loose).decode() if values["json"] else check.as_markdown(found, folder))
    if found.recordings and not values["json"]:
        print(*(folder / name for name in check.PAGES), sep="\n")
    return (Exit.UNTRUSTED if found.fault else Exit.OK) if found.cells else Exit.CANNOT_RUN


@app.command("list", short_help="List kernel packages, workloads and cells.")
@takes("repo", "preset", "workloads", "device", "json")
def list_(**values: Any) -> int:
    """List the working tree's kernel packages, workloads, and cells of a preset."""
    from abprof import sides as repo
    from abprof.builds import missing

    cache = paths.cache_dir()
    root = Path(repo.open_repository(Path(values["repo"]), cache=cache).path)
    file = read_file(root) or File()
    options = options_from(["."], values).under(file)
    found = _discover(root, options, cache)
    python = (path.relative_to(root / "kernels").parts[0] for path in (root / "kernels").rglob("*.py"))
    named = {name.removesuffix(".py") for name in python if not name.startswith(("_", "."))}
    kernels = sorted({name for name in named if not missing(root, file.package(name))} | set(file.kernels))
    broken = {cell.removesuffix("/"): failure.reason for cell, failure in found.broken.items()}
    if values["json"]:
        loose = {"kernels": kernels, "workloads": found.workloads, "cells": found.cells, "broken": broken}
        print(msgspec.json.encode(loose).decode())
        return Exit.OK
    lines = ["kernel packages: " + (", ".join(kernels) or "none")]
    for load in found.workloads:
        if load.name in broken:
            lines += ["", f"{load.name}: broken: {broken[load.name]}"]
            continue
        lines += ["", f"{load.name} (kernel {load.kernel}; axes {', '.join(load.axes)}): {load.text}"]
        lines += [f"  no cell in preset {options.preset}"] if load.name in found.empty else []
        cells = [cell for cell in found.cells if cell.workload == load.name]
        lines += [f"  {cell.id}" + (f"  (unsupported: {cell.skip})" if cell.skip else "") for cell in cells]
    lines += ["", f"{plural(len(found.cells) - len(broken), 'cell')} in preset {options.preset}"]
    print("\n".join(map(visible, lines)))
    return Exit.OK


def _discover(root: Path, options: Options, cache: Path) -> Discovered:
    from abprof import devices
    from abprof.builds import WorkerFactory
    from abprof.measure import Discovered
    from abprof.system import processes, workload_files

    chosen = devices.choose(options.device)
    folder = options.file.workloads if options.file else ""
    files = workload_files.find(root / (folder or "workloads"), options.workloads)
    with processes.no_orphans(), tempfile.TemporaryDirectory() as place:
        scratch = Path(place, "scratch")
        scratch.mkdir()
        factory = WorkerFactory.of(options, cache, scratch, chosen.worker, ["base"], scratch, files)
        with factory.alone("discovery") as worker:
            return Discovered.of(worker, factory, options, chosen.kind)


@app.command("doctor", short_help="Report what this machine can measure.")
@takes(text("--python", "PATH", "Interpreter of the workers; default: abprof's own."), "json")
def doctor(**values: Any) -> int:
    """Report what this machine can measure, and which tools are missing."""
    from abprof.extras.doctor import examine

    findings = list(examine(values["python"]))
    if values["json"]:
        print(msgspec.json.encode({"findings": findings}).decode())
    else:
        for found in findings:
            print(f"{found.state:8} {found.name}: {found.text}{f' -> {found.advice}' if found.advice else ''}")
    return Exit.CANNOT_RUN if any(found.state == "problem" for found in findings) else Exit.OK


@app.command("clean", short_help="Remove leftovers of killed runs.")
@takes(
    flag("--builds", "Also remove cached builds."),
    flag("--all", "Also remove clones, releases, environments and builds."),
)
def clean(**values: Any) -> int:
    """Remove leftovers of killed runs (worktrees, incomplete clones and builds, run folders without a run.json), and
    builds replaced by --rebuild. Run folders with a run.json stay."""
    from abprof import builds, sides, store

    cache, state, everything = paths.cache_dir(), paths.state_dir(), values["all"]
    lines = builds.sweep(cache, everything=values["builds"] or everything)
    lines += [*store.sweep(state), *sides.sweep(cache, everything=everything)]
    print("\n".join(lines or ["nothing to clean"]))
    return Exit.OK


def _day(text: str, option: str) -> str:
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        raise AbprofError(f"invalid date {text!r}", where=option, advice="write 2026-12-31") from None
    if day < datetime.datetime.now(datetime.UTC).date():
        raise AbprofError(f"{text} is in the past", where=option, advice="write a later date")
    return day.isoformat()


@app.command("waive", short_help="Accept a slow-down until a date.")
@takes(
    text("--most", "PCT", "Largest accepted slow-down, in per cent of time.", percent, default=...),
    text("--reason", "TEXT", "Why the slow-down is acceptable.", default=...),
    text("--owner", "NAME", "Person responsible for the waiver.", default=...),
    text("--until", "DATE", "Last day on which the waiver holds, e.g. 2026-12-31.", _day, default=...),
    "repo",
)
def waive(
    cells: Annotated[str, typer.Argument(metavar="GLOB", help="Pattern of cell ids, e.g. 'dense/*direction=bwd*'.")],
    **values: Any,
) -> int:
    """Add a waiver to abprof-waivers.toml in the working tree.

    Runs read waivers from the base's commit, so commit this file on the base branch. Until the given date, a waived
    cell that is slower by no more than --most is still reported as `slower`, but does not fail a run.
    """
    reason, owner, until = values["reason"], values["owner"], values["until"]
    made = Waiver(cells=cells, most_pct=values["most"], reason=reason, owner=owner, expires=until)
    start = Path(values["repo"]).absolute()
    root = next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), None)
    if root is None:
        raise AbprofError("not a git repository", where=f"--repo {values['repo']}")
    path = root / WAIVER_FILE
    text = toml.read(path) if path.exists() else ""
    disk.put(path, waiver_file.with_one_more(text, made, str(path)).encode())
    print(f"{path}: {made.line}")
    print("The waiver takes effect once committed on the base branch.")
    return Exit.OK
