"""`abprof bisect`: the commits that made kernels slower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import Verb, app, given, program, refuse, while_read
from abprof.cli.options import MATRIX, VIEW, options_from, takes, text, view_of
from abprof.cli.run import command_of
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

if TYPE_CHECKING:
    from abprof.extras.bisect import Bisection

_BESIDE = {
    "resume": ("a bisection goes on as it began", ("resume", "repo", "json", *VIEW)),
    "from_run": (
        "that is the run's",
        ("from_run", "repo", "budget", "runs_dir", "no_wait", "dry_run", "json", *VIEW),
    ),
}


@app.command("bisect", cls=Verb, short_help="Which commit made it slower.")
@takes(
    text("--from-run", "RUN", "Every cell that got slower in a run."),
    text("--resume", "FOLDER", "Go on with an interrupted bisection."),
    *("repo", *MATRIX, "device", "python", "threshold", "timer", "budget", "seed", "timeout", "build_timeout", "env"),
    *("runs_dir", "no_wait", "dry_run", "json", *VIEW),
)
def bisect(
    ctx: typer.Context,
    refs: Annotated[list[str], typer.Argument(metavar="GOOD BAD", help="A fast and a slow end.")] = [],  # noqa: B006
    **values: Any,
) -> int:
    """Find the commits between GOOD and BAD that made cells slower: each step is an ordinary run of one commit against the
    good end, which goes on until it is certain; the culprit is then measured against its parent.

    Commits that do not build are passed over, more than one culprit is found, and what stays unclear is reported as a range of
    commits. Exit codes: 0 found, or nothing is slower; 4 not all of it could be decided.
    """
    import msgspec

    from abprof.extras.bisect import steps

    view, resume, from_run = view_of(values), values["resume"], values["from_run"]
    for name, (why, beside) in _BESIDE.items():
        option = f"--{name.replace('_', '-')}"
        if values[name] and (refs or program(ctx) is not None):
            raise AbprofError(why, where=option, advice=f"abprof bisect {option} alone")
        if values[name]:
            refuse(ctx, why, but=beside)
    if resume:
        begun, folder = steps.read(Path(resume))
        if "repo" in given(ctx):
            options = msgspec.structs.replace(begun.options, repo=values["repo"])
            begun = msgspec.structs.replace(begun, options=options)
        return _go_on(begun, folder, values)
    if not from_run and len(refs) != 2:
        advice = "abprof bisect GOOD BAD, --from-run RUN or --resume FOLDER"
        raise AbprofError("which ends?", where="abprof bisect", advice=advice)
    command = command_of(ctx, "abprof bisect GOOD BAD -- python bench.py", ("dry_run",))
    options = options_from(refs, values, command=command)
    options = steps.of_run(Path(from_run), options) if from_run else options
    with steps.planned(options, view) as (planned, place, workloads):
        if options.dry_run:
            return _show_plan(planned, json=values["json"])
        for line in steps.plan(planned):
            view.say(line)
        begun, folder = steps.folder_of(planned, place, workloads)
    return _go_on(begun, folder, values)


def _go_on(begun: Bisection, folder: Path, values: dict[str, Any]) -> int:
    import msgspec

    from abprof.extras.bisect import report, steps
    from abprof.measure.run_context import signals

    view = view_of(values)
    try:
        with signals():
            done = steps.finish(begun, folder, view, lambda now: report.write(folder, now))
    except KeyboardInterrupt:
        view.warn(f"interrupted; abprof bisect --resume {folder} goes on")
        return Exit.INTERRUPTED
    except AbprofError:
        view.warn(f"abprof bisect --resume {folder} goes on from the last step that was finished")
        raise
    with while_read():
        if values["json"]:
            loose = msgspec.to_builtins(done)
            shown = {name: loose[name] for name in ("culprits", "steps", "found", "status")}
            shown |= {"weaker": steps.weaker(done), "bisect_dir": str(folder)}
            print(msgspec.json.encode(shown).decode())
        else:
            print("\n".join(map(visible, [*report.lines(done), *steps.weaker(done), *report.result(done)])))
    view.say(f"kept in {folder}: report.html, report.md, bisect.json, steps/")
    return Exit.OK if report.decided(done) else Exit.UNTRUSTED


def _show_plan(planned: Bisection, *, json: bool) -> int:
    import msgspec

    from abprof.extras.bisect import steps

    if json:
        seconds = planned.planned * planned.step_seconds
        plan = {"commits": len(planned.links), "steps": planned.planned, "seconds": seconds, "cells": planned.cells}
        print(msgspec.json.encode(plan).decode())
    else:
        print("\n".join(map(visible, [*steps.plan(planned), *(f"  {cell}" for cell in planned.cells)])))
    return Exit.OK
