"""`abprof bisect` finds the commits that made kernels slower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from abprof.cli.app import Verb, app, given, program, refuse
from abprof.cli.options import MATRIX, VIEW, options_from, takes, text, view_of
from abprof.cli.run import command_of
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible


@app.command("bisect", cls=Verb, short_help="Find the commits that made cells slower.")
@takes(
    text("--resume", "FOLDER", "Continue an interrupted bisection."),
    *("repo", *MATRIX, "device", "python", "with_", "threshold", "timer", "budget", "seed", "timeout", "build_timeout"),
    *("env", "runs_dir", "no_wait", "dry_run", "json", *VIEW),
)
def bisect(
    ctx: typer.Context,
    refs: Annotated[list[str], typer.Argument(metavar="GOOD BAD", help="A fast and a slow commit.")] = [],  # noqa: B006
    **values: Any,
) -> int:
    """Find the commits between GOOD and BAD that made cells slower. Each step is an ordinary run of at most --budget
    that compares one commit with GOOD; each commit found is then compared with its parent.

    `abprof bisect REF --with tool==1 --with tool==2 --with tool==3` finds a version instead of a commit.

    Commits that do not build are skipped. A range of commits is reported where no single commit can be named. Exit
    codes: 0 every slower commit was found, or nothing is slower; 4 a range of commits is left, or a step's budget gave no answer.
    """
    from abprof.extras.bisect import begin, finish, plan, read, result
    from abprof.system.processes import signals

    view, json, resume = view_of(values), values["json"], values["resume"]
    if resume:
        if refs or program(ctx) is not None:
            raise AbprofError("cannot be used with refs", where="--resume", advice="leave GOOD and BAD out")
        refuse(ctx, "a resumed bisection keeps its options", but=("resume", "repo", "budget", "json", *VIEW))
        folder = Path(resume).absolute()
        begun = read(folder)
        own = {name: values[name] for name in ("repo", "budget") if name in given(ctx)}
        begun = msgspec.structs.replace(begun, options=msgspec.structs.replace(begun.options, **own))
    else:
        command = command_of(ctx, "abprof bisect GOOD BAD -- python bench.py", ("dry_run",))
        versions = len(values["with_"])
        if len(refs) != (1 if versions else 2) or versions == 1:
            advice = "give GOOD BAD, one ref and --with for each version, or --resume FOLDER"
            raise AbprofError("needs two refs", where="abprof bisect", advice=advice)
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
        view.warn(f"interrupted; continue with abprof bisect --resume {folder}")
        return Exit.INTERRUPTED
    except AbprofError:
        view.warn(f"continue after the last finished step with abprof bisect --resume {folder}")
        raise
    if json:
        loose = msgspec.to_builtins(done)
        shown = {name: loose[name] for name in ("culprits", "steps", "found", "status", "weaker")}
        print(msgspec.json.encode({**shown, "bisect_dir": str(folder)}).decode())
    else:
        print("\n".join(map(visible, [*done.weaker, *result(done)])))
    view.say(f"saved in {folder}: report.html, bisect.json, steps/")
    if done.status != "complete":
        view.warn(f"a step's budget gave no answer; continue it with abprof bisect --resume {folder} --budget TIME")
    return Exit.OK if done.decided and done.status == "complete" else Exit.UNTRUSTED
