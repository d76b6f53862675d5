"""`abprof bisect`: the commits that made kernels slower."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli import shared
from abprof.cli.completion import refs as complete_refs
from abprof.cli.given import given
from abprof.cli.guard import while_read
from abprof.cli.program import BeforeProgram, program, refuse_beside
from abprof.cli.shared import MEASURING, OUTPUT, PLACE
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

if TYPE_CHECKING:
    from abprof.extras.bisect.state import State
    from abprof.system.console import View

_BESIDE_RESUME = {"resume", "repo", "json", "quiet", "verbose"}
_BESIDE_RUN = {"from_run", "repo", "budget", "runs_dir", "no_wait", "dry_run", "json", "quiet", "verbose"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("bisect", help=bisect.__doc__, cls=BeforeProgram, short_help="Which commit made it slower.")(bisect)


def bisect(
    ctx: typer.Context,
    refs: Annotated[
        list[str], typer.Argument(metavar="GOOD BAD", help="A fast and a slow end.", autocompletion=complete_refs)
    ] = [],  # noqa: B006
    repo: shared.Repo = ".",
    kernels: shared.Kernels = [],  # noqa: B006
    workloads: shared.Workloads = [],  # noqa: B006
    workloads_from: shared.WorkloadsFrom = "",
    preset: shared.Preset = "",
    only: shared.Only = [],  # noqa: B006
    set_: shared.Set = [],  # noqa: B006
    cell: shared.Cell = [],  # noqa: B006
    device: shared.Device = [],  # noqa: B006
    python: shared.Python = [],  # noqa: B006
    threshold: Annotated[
        str, typer.Option(metavar="PCT", help="Slower by more than this is looked for.", rich_help_panel=MEASURING)
    ] = "",
    timer: shared.Timer = "",
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time for measuring one step, e.g. 10m.", rich_help_panel=MEASURING)
    ] = "",
    seed: shared.Seed = 0,
    timeout: shared.Timeout = "120s",
    build_timeout: shared.BuildTimeout = "30m",
    env: shared.Env = "",
    runs_dir: shared.RunsDir = "",
    no_wait: shared.NoWait = False,
    dry_run: shared.DryRun = False,
    from_run: Annotated[
        str, typer.Option(metavar="RUN", help="Every cell that got slower in a run.", rich_help_panel=PLACE)
    ] = "",
    resume: Annotated[
        str, typer.Option(metavar="FOLDER", help="Go on with an interrupted bisection.", rich_help_panel=PLACE)
    ] = "",
    json: Annotated[
        bool, typer.Option("--json", help="Print culprits and steps as JSON.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: shared.Quiet = False,
    verbose: shared.Verbose = False,
) -> int:
    """Find the commits between GOOD and BAD that made cells slower: each step is an ordinary run of one commit against the
    good end, which goes on until it is certain; the culprit is then measured against its parent.

    Commits that do not build are passed over, more than one culprit is found, and what stays unclear is told as a range of
    commits. Exit codes: 0 found, or nothing is slower; 4 not all of it could be decided.
    """
    command = program(ctx)
    options = {**locals(), "command": command or ()}
    from abprof.system.console import View

    view = View(quiet=quiet, verbose=verbose)
    if command is not None:
        if resume or from_run:
            what = "a bisection goes on as it began" if resume else "that is the run's"
            raise AbprofError(what, where="--", advice="leave the command out")
        refuse_beside(ctx, command, "abprof bisect GOOD BAD -- python bench.py", {"dry_run"})
    if resume:
        _nothing_else(ctx, "--resume", _BESIDE_RESUME, "a bisection goes on as it began")
        return _resume(ctx, options, view)
    if from_run:
        _nothing_else(ctx, "--from-run", _BESIDE_RUN, "that is the run's")
    elif len(refs) != 2:
        advice = "abprof bisect GOOD BAD, --from-run RUN or --resume FOLDER"
        raise AbprofError("which ends?", where="abprof bisect", advice=advice)
    return _begin(options, view)


def _nothing_else(ctx: typer.Context, option: str, beside: set[str], why: str) -> None:
    """Raises AbprofError for what would not be followed."""
    if ctx.params["refs"]:
        raise AbprofError("the ends are known", where=option, advice=f"abprof bisect {option} alone")
    for name, other in given(ctx).items():
        if name not in beside:
            raise AbprofError(why, where=other, advice="leave it out")


def _begin(options: Mapping[str, Any], view: View) -> int:
    from abprof.extras.bisect import start

    with start.planned(_config(options), view) as (planned, place, workloads):
        if options["dry_run"]:
            return _show_plan(planned, start.plan(planned), json=options["json"])
        for line in start.plan(planned):
            view.say(line)
        begun, folder = start.folder_of(planned, place, workloads)
    return _go_on(begun, folder, options, view)


def _resume(ctx: typer.Context, options: Mapping[str, Any], view: View) -> int:
    import msgspec

    from abprof.extras.bisect import state

    begun, folder = state.read(Path(options["resume"]))
    if "repo" in given(ctx):
        begun = msgspec.structs.replace(begun, asked=msgspec.structs.replace(begun.asked, repo=options["repo"]))
    return _go_on(begun, folder, options, view)


def _go_on(begun: State, folder: Path, options: Mapping[str, Any], view: View) -> int:
    from abprof.extras.bisect import page as pages
    from abprof.extras.bisect import telling, work
    from abprof.measure import resources as holding

    try:
        with holding.signals():
            done = work.finish(begun, folder, view, lambda now: pages.write(folder, now))
    except KeyboardInterrupt:
        view.warn(f"interrupted; abprof bisect --resume {folder} goes on")
        return Exit.INTERRUPTED
    except AbprofError:
        view.warn(f"abprof bisect --resume {folder} goes on from the last step that was finished")
        raise
    with while_read():
        print(
            _as_json(done, folder)
            if options["json"]
            else "\n".join(map(visible, [*pages.lines(done), *telling.weaker(done), *telling.result(done)]))
        )
    view.say(f"kept in {folder}: report.html, report.md, bisect.json, steps/")
    return Exit.OK if telling.decided(done) else Exit.UNTRUSTED


def _config(options: Mapping[str, Any]) -> Any:
    from abprof.cli.options import config_from
    from abprof.cli.run import defaults
    from abprof.extras.bisect import start

    config = config_from({**defaults(), **options}, sys.argv[1:])
    return start.of_run(Path(options["from_run"]), config) if options["from_run"] else config


def _show_plan(planned: State, lines: list[str], *, json: bool) -> int:
    import msgspec

    if json:
        plan = {
            "commits": len(planned.links),
            "steps": planned.planned,
            "seconds": planned.planned * planned.step_seconds,
        }
        print(msgspec.json.encode({**plan, "cells": planned.cells}).decode())
    else:
        print("\n".join(map(visible, [*lines, *(f"  {cell}" for cell in planned.cells)])))
    return Exit.OK


def _as_json(done: State, folder: Path) -> str:
    import msgspec

    from abprof.extras.bisect import telling

    loose = msgspec.to_builtins(done)
    shown = {name: loose[name] for name in ("culprits", "steps", "found", "status")}
    return msgspec.json.encode({**shown, "weaker": telling.weaker(done), "bisect_dir": str(folder)}).decode()
