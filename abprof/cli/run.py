"""`abprof run`, `rerun` and `run-cell`: what measures, or is profiled from outside."""

from __future__ import annotations

import contextlib
import difflib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import Verb, program, refuse, while_read
from abprof.cli.options import RUN, VIEW, WORKERS, Many, Refs, RunFolder, complete_refs, options_from, takes
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

if TYPE_CHECKING:
    from abprof.records import Options, Run
    from abprof.system.console import View

_BESIDE_RESUME = ("resume", "repo", "budget", "all_", "json", "quiet", "verbose")
_NOT_WATCHED = (
    *("devices", "executor", "executor_option", "epochs", "precision", "probe", "sustained", "fail_on", "all_", "json"),
    "dry_run",
)
OF_WORKLOADS = (  # options without effect on a command that times itself
    *("watch", "kernels", "workloads", "workloads_from", "preset", "set_", "cell", "peers", "peer", "python", "timer"),
    *("sustained", "probe", "allow_wrong", "autotune", "check", "rebuild", "dry_run", "resume"),
)


@app.command("run", cls=Verb)
@takes(*RUN, "watch", "dry_run")
def run(
    ctx: typer.Context,
    refs: Refs = [],  # noqa: B006
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with an interrupted run.")] = "",
    **values: Any,
) -> int:
    """Compare two refs or more, or profile one branch alone.

    Both sides go into worktrees of their own, their kernel packages are built with the compiler's output on show, and
    isolated processes take turns on the device until each cell is decided or the budget is spent.

    `abprof BASE TARGET -- COMMAND ARGS` runs a command on each side in turns that prints `name,ms` lines, CSV or JSON: its
    own timing is judged, and nothing is checked or proved.

    An option that takes a value is also read from the environment: ABPROF_THRESHOLD for --threshold.
    """
    from abprof import session

    view = view_of(values)
    with _verb_meant(ctx, refs):
        if resume:
            if refs:
                raise AbprofError("an interrupted run has its refs", where="--resume", advice="abprof run --resume RUN")
            advice = "beside --resume go --repo, --budget, --all, --json, --quiet, --verbose"
            refuse(ctx, "an interrupted run goes on as it began", but=_BESIDE_RESUME, advice=advice)
            return show(
                session.rerun(Path(resume), (), values["repo"], _budget(values), view, resume=True), **_shown(values)
            )
        if not refs:
            raise AbprofError("which refs?", advice="abprof BASE TARGET, or abprof run REF for one branch alone")
        command = command_of(ctx, "abprof BASE TARGET -- python bench.py")
        if not (values["devices"] == 0 and not values["watch"]):
            options = options_from(refs, values, command=command)
        else:
            options = options_from(refs, values, command=command, devices=None)
        if values["watch"]:
            return _watch(ctx, options, view)
        if options.dry_run:
            return _show_plan(session.dry_run(options, view), json=values["json"], peers=values["peers"])
        return show(session.run(options, view), **_shown(values))


@app.command("rerun", short_help="Measure cells again; results are added.")
@takes("only", "repo", "budget", "all_", "json", *VIEW)
def rerun(run: RunFolder, **values: Any) -> int:
    """Measure cells of a run again, in fresh epochs: results are added, never replaced."""
    from abprof import session

    done = session.rerun(Path(run), values["only"], values["repo"], _budget(values), view_of(values), resume=False)
    return show(done, **_shown(values))


@app.command("run-cell", short_help="Call one cell of one side, for a profiler.")
@takes("repo", *WORKERS, "preset", "workloads_from", "contain", *VIEW)
def run_cell(
    ref: Annotated[str, typer.Argument(metavar="REF", help="A ref, or `.`.", autocompletion=complete_refs)],
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Its id, as every report prints it.")],
    variant: Annotated[str, typer.Option(metavar="NAME", help="This variant; else the first.")] = "",
    peer: Annotated[str, typer.Option(metavar="NAME", help="This peer of the workload, in place of the kernel.")] = "",
    warmup: Annotated[int, typer.Option(metavar="CALLS", help="Calls before the runs, alike in all.")] = 10,
    runs: Annotated[int, typer.Option(metavar="CALLS", help="Calls.")] = 50,
    **values: Any,
) -> int:
    """Call one cell of one side in the foreground, with no measuring apparatus around it; then print what ran.

    It is what profilers are pointed at: `ncu --target-processes all --nvtx --nvtx-include abprof_call abprof run-cell
    main CELL`, `perf record abprof run-cell . CELL`. The worktree, the build (cached) and one call that compiles come
    first; then warm-ups and runs, on a GPU each in the NVTX range `abprof_call`. No output is checked.
    """
    from abprof.extras.run_cell import Wanted
    from abprof.extras.run_cell import run as call

    print(call(options_from([ref], values), Wanted(cell, variant, peer, warmup, runs), view_of(values)))
    return Exit.OK


def view_of(values: dict[str, Any]) -> View:
    """The view that --quiet and --verbose ask for."""
    from abprof.system.console import View

    return View(quiet=values["quiet"], verbose=values.get("verbose", False))


def command_of(ctx: typer.Context, example: str, allowed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The command behind `--`. Raises AbprofError for an option that only workloads have, and for no command at all."""
    command = program(ctx)
    if command is None:
        return ()
    if not command:
        raise AbprofError("there is no command", where="--", advice=example)
    refuse(ctx, "goes with workloads, not with a command", only=set(OF_WORKLOADS) - set(allowed))
    return tuple(command)


def show(done: tuple[Run, Path], *, json: bool, everything: bool) -> int:
    """Print a finished run, in its folder; the exit code is the run's."""
    from abprof.report import print_run

    finished, folder = done
    with while_read():
        if json:
            print(run_as_json(finished, folder))
        else:
            print_run(finished, folder, everything=everything)
    if finished.status == "interrupted":
        return Exit.INTERRUPTED
    return finished.header.exit_code if finished.header else Exit.CANNOT_RUN


def run_as_json(finished: Run, folder: Path) -> str:
    """run.json's content plus `run_dir`."""
    import msgspec

    from abprof.system import checksummed

    return checksummed.text({**msgspec.to_builtins(finished), "run_dir": str(folder)}, None).decode()


def _shown(values: dict[str, Any]) -> dict[str, bool]:
    return {"json": values["json"], "everything": values["all_"]}


def _budget(values: dict[str, Any]) -> float:
    from abprof.records.options import DEFAULT_BUDGET
    from abprof.records.quantities import seconds

    return values["budget"] or seconds(DEFAULT_BUDGET, "--budget")


@contextlib.contextmanager
def _verb_meant(ctx: typer.Context, refs: Many) -> Iterator[None]:
    """Let an error about an unknown first ref name the verb that may be meant."""
    try:
        yield
    except AbprofError as error:
        verbs = list(getattr(ctx.parent.command, "commands", ())) if ctx.parent else []
        near = difflib.get_close_matches(refs[0], verbs, 1) if refs and refs[0] not in verbs else []
        if not near or error.what != f"unknown ref {refs[0]!r}":
            raise
        advice = f"{error.advice}; or the verb, abprof {near[0]}?" if error.advice else f"the verb, abprof {near[0]}?"
        raise AbprofError(error.what, where=error.where, advice=advice) from error


def _watch(ctx: typer.Context, options: Options, view: View) -> int:
    from abprof.extras.watch import Answer, lines, watch

    refuse(
        ctx, "--watch answers every save by one epoch", only=_NOT_WATCHED, advice="leave it out, and confirm by a run"
    )

    def answer(found: Answer) -> None:
        with while_read():
            print("\n".join(lines(found.run, found.before, found.seconds)), flush=True)

    watch(options, view, answer)
    return Exit.OK


def _show_plan(planned: Run, *, json: bool, peers: bool) -> int:
    from abprof.measure.estimate import estimate
    from abprof.records.quantities import plural
    from abprof.system import checksummed

    if json:
        print(checksummed.text(planned, None).decode())
        return Exit.OK
    for side in planned.sides:
        print(visible(f"{side.id:8} {side.spec}  {side.commit[:10]}  {side.subject}"))
    broken = {seen.cell: f"  (broken: {seen.reason})" for seen in planned.observations}
    for cell in planned.cells:
        unsupported = f"  (unsupported: {cell.skip})" if cell.skip else ""
        print(visible(f"  {cell.id}{broken.get(cell.id, unsupported)}"))
    models = Counter(machine.device for machine in planned.machines.values())
    where = ", ".join(f"{count} x {model}" for model, count in models.items()) or planned.machine.device
    cells = plural(len(planned.cells) - len(broken), "cell")
    print(visible(f"{cells} on {where}; {estimate(planned, peers=peers)}"))
    return Exit.OK
