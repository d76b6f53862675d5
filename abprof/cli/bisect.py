"""`abprof bisect`: the commits that made kernels slower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import Verb, given, program, refuse, while_read
from abprof.cli.options import MATRIX, VIEW, Many, complete_refs, options_from, takes
from abprof.cli.run import command_of, view_of
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

if TYPE_CHECKING:
    from abprof.extras.bisect import Bisection
    from abprof.system.console import View

_BESIDE_RESUME = ("resume", "repo", "json", *VIEW)
_BESIDE_RUN = ("from_run", "repo", "budget", "runs_dir", "no_wait", "dry_run", "json", *VIEW)


@app.command("bisect", cls=Verb, short_help="Which commit made it slower.")
@takes(
    *("repo", *MATRIX, "device", "python", "threshold", "timer", "budget", "seed", "timeout", "build_timeout", "env"),
    *("runs_dir", "no_wait", "dry_run", "json", *VIEW),
)
def bisect(
    ctx: typer.Context,
    refs: Annotated[
        Many, typer.Argument(metavar="GOOD BAD", help="A fast and a slow end.", autocompletion=complete_refs)
    ] = [],  # noqa: B006
    from_run: Annotated[str, typer.Option(metavar="RUN", help="Every cell that got slower in a run.")] = "",
    resume: Annotated[str, typer.Option(metavar="FOLDER", help="Go on with an interrupted bisection.")] = "",
    **values: Any,
) -> int:
    """Find the commits between GOOD and BAD that made cells slower: each step is an ordinary run of one commit against the
    good end, which goes on until it is certain; the culprit is then measured against its parent.

    Commits that do not build are passed over, more than one culprit is found, and what stays unclear is reported as a range of
    commits. Exit codes: 0 found, or nothing is slower; 4 not all of it could be decided.
    """
    from abprof.extras.bisect import steps

    view, json = view_of(values), values["json"]
    if program(ctx) is not None and (resume or from_run):
        what = "a bisection goes on as it began" if resume else "that is the run's"
        raise AbprofError(what, where="--", advice="leave the command out")
    command = command_of(ctx, "abprof bisect GOOD BAD -- python bench.py", ("dry_run",))
    for name, value, beside, why in (
        ("--resume", resume, _BESIDE_RESUME, "a bisection goes on as it began"),
        ("--from-run", from_run, _BESIDE_RUN, "that is the run's"),
    ):
        if value and refs:
            raise AbprofError("the ends are known", where=name, advice=f"abprof bisect {name} alone")
        if value:
            refuse(ctx, why, but=beside)
    if resume:
        return _resume(ctx, resume, values["repo"], view, json=json)
    if not from_run and len(refs) != 2:
        advice = "abprof bisect GOOD BAD, --from-run RUN or --resume FOLDER"
        raise AbprofError("which ends?", where="abprof bisect", advice=advice)
    options = options_from(refs, values, command=command)
    options = steps.of_run(Path(from_run), options) if from_run else options
    with steps.planned(options, view) as (planned, place, workloads):
        if options.dry_run:
            return _show_plan(planned, steps.plan(planned), json=json)
        for line in steps.plan(planned):
            view.say(line)
        begun, folder = steps.folder_of(planned, place, workloads)
    return _go_on(begun, folder, view, json=json)


def _resume(ctx: typer.Context, path: str, repo: str, view: View, *, json: bool) -> int:
    import msgspec

    from abprof.extras.bisect import steps

    begun, folder = steps.read(Path(path))
    if "repo" in given(ctx):
        begun = msgspec.structs.replace(begun, options=msgspec.structs.replace(begun.options, repo=repo))
    return _go_on(begun, folder, view, json=json)


def _go_on(begun: Bisection, folder: Path, view: View, *, json: bool) -> int:
    from abprof.extras.bisect import report, steps
    from abprof.measure import run_context as holding

    try:
        with holding.signals():
            done = steps.finish(begun, folder, view, lambda now: report.write(folder, now))
    except KeyboardInterrupt:
        view.warn(f"interrupted; abprof bisect --resume {folder} goes on")
        return Exit.INTERRUPTED
    except AbprofError:
        view.warn(f"abprof bisect --resume {folder} goes on from the last step that was finished")
        raise
    with while_read():
        print(
            _as_json(done, folder)
            if json
            else "\n".join(map(visible, [*report.lines(done), *steps.weaker(done), *report.result(done)]))
        )
    view.say(f"kept in {folder}: report.html, report.md, bisect.json, steps/")
    return Exit.OK if report.decided(done) else Exit.UNTRUSTED


def _show_plan(planned: Bisection, lines: list[str], *, json: bool) -> int:
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


def _as_json(done: Bisection, folder: Path) -> str:
    import msgspec

    from abprof.extras.bisect import steps

    loose = msgspec.to_builtins(done)
    shown = {name: loose[name] for name in ("culprits", "steps", "found", "status")}
    return msgspec.json.encode({**shown, "weaker": steps.weaker(done), "bisect_dir": str(folder)}).decode()
