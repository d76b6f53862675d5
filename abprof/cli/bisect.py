"""`abprof bisect`: the commits that made kernels slower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from abprof.cli.app import Verb, app, given, program, refuse, while_read
from abprof.cli.options import MATRIX, VIEW, options_from, takes, text, view_of
from abprof.cli.run import command_of
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible


@app.command("bisect", cls=Verb, short_help="Find the commits that made cells slower.")
@takes(
    text("--resume", "FOLDER", "Continue an interrupted bisection."),
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

    from abprof.extras.bisect import begin, finish, plan, read, result
    from abprof.measure.run_context import signals

    view, json, resume = view_of(values), values["json"], values["resume"]
    if resume:
        if refs or program(ctx) is not None:
            raise AbprofError("the ends are known", where="--resume", advice="abprof bisect --resume FOLDER alone")
        refuse(ctx, "a bisection goes on as it began", but=("resume", "repo", "json", *VIEW))
        folder = Path(resume)
        begun = read(folder)
        if "repo" in given(ctx):
            begun = msgspec.structs.replace(begun, options=msgspec.structs.replace(begun.options, repo=values["repo"]))
    else:
        command = command_of(ctx, "abprof bisect GOOD BAD -- python bench.py", ("dry_run",))
        if len(refs) != 2:
            raise AbprofError("which ends?", where="abprof bisect", advice="abprof bisect GOOD BAD, or --resume FOLDER")
        begun, made = begin(options_from(refs, values, command=command), view)
        lines = plan(begun)
        if made is None:
            shown = {"commits": len(begun.links), "steps": begun.planned, "cells": list(begun.threshold)}
            shown["seconds"] = begun.planned * begun.step_seconds
            listed = "\n".join(map(visible, [*lines, *(f"  {cell}" for cell in begun.threshold)]))
            print(msgspec.json.encode(shown).decode() if json else listed)
            return Exit.OK
        for line in lines:
            view.say(line)
        folder = made
    try:
        with signals():
            done = finish(begun, folder, view)
    except KeyboardInterrupt:
        view.warn(f"interrupted; abprof bisect --resume {folder} goes on")
        return Exit.INTERRUPTED
    except AbprofError:
        view.warn(f"abprof bisect --resume {folder} goes on from the last step that was finished")
        raise
    with while_read():
        if json:
            loose = msgspec.to_builtins(done)
            shown = {name: loose[name] for name in ("culprits", "steps", "found", "status", "weaker")}
            print(msgspec.json.encode({**shown, "bisect_dir": str(folder)}).decode())
        else:
            print("\n".join(map(visible, [*done.weaker, *result(done)])))
    view.say(f"kept in {folder}: report.html, report.md, bisect.json, steps/")
    return Exit.OK if done.decided else Exit.UNTRUSTED
