"""`abprof run`: from options to a Options, and from a run to an exit code."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli import shared
from abprof.cli.completion import refs as complete_refs
from abprof.cli.given import given
from abprof.cli.guard import while_read
from abprof.cli.program import BeforeProgram, program, refuse_beside
from abprof.cli.shared import PLACE, Many
from abprof.cli.variables import FromEnvironment, as_given, slips
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

if TYPE_CHECKING:
    from abprof.records import Run
    from abprof.records.options import Options
    from abprof.system.console import View

_BESIDE_RESUME = {
    "resume": "",
    "repo": "--repo",
    "budget": "--budget",
    "all_": "--all",
    "json": "--json",
    "quiet": "--quiet",
    "verbose": "--verbose",
}

_NOT_WATCHED = {
    "devices",
    "executor",
    "executor_option",
    "epochs",
    "precision",
    "probe",
    "sustained",
    "fail_on",
    "all_",
    "json",
    "dry_run",
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("run", help=run.__doc__, cls=_Run)(run)


class _Run(BeforeProgram, FromEnvironment):
    """Its options come from the environment too, and behind `--` a command may stand."""


def defaults() -> dict[str, Any]:
    """What `run` does where an option is not given, for verbs that share its set-up and lack some of its options."""
    return {name: param.default for name, param in inspect.signature(run).parameters.items() if name != "ctx"}


def options_with_values(command: Any) -> set[str]:
    """Options of `command`, which is `run`, that take the next word as their value."""
    options = (p for p in command.params if p.param_type_name == "option" and not p.is_flag)
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


def run(
    ctx: typer.Context,
    refs: Annotated[
        Many,
        typer.Argument(
            metavar="BASE [TARGET]... [-- COMMAND]",
            help="Refs, `.`, BASE...TARGET (merge base), releases (dist:NAME==VERSION); behind -- a command that times itself.",
            autocompletion=complete_refs,
        ),
    ] = [],  # noqa: B006
    repo: shared.Repo = ".",
    kernels: shared.Kernels = [],  # noqa: B006
    workloads: shared.Workloads = [],  # noqa: B006
    workloads_from: shared.WorkloadsFrom = "",
    preset: shared.Preset = "",
    only: shared.Only = [],  # noqa: B006
    set_: shared.Set = [],  # noqa: B006
    cell: shared.Cell = [],  # noqa: B006
    peers: shared.Peers = True,
    peer: shared.Peer = [],  # noqa: B006
    device: shared.Device = [],  # noqa: B006
    devices: shared.Devices = "",
    executor: shared.Executor = "local",
    executor_option: shared.ExecutorOption = [],  # noqa: B006
    python: shared.Python = [],  # noqa: B006
    threshold: shared.Threshold = "",
    margin: shared.Margin = "",
    precision: shared.Precision = "",
    budget: shared.Budget = "",
    epochs: shared.Epochs = None,
    quick: shared.Quick = False,
    timer: shared.Timer = "",
    sustained: shared.Sustained = False,
    probe: shared.Probe = [],  # noqa: B006
    allow_wrong: shared.AllowWrong = False,
    all_: shared.All = False,
    seed: shared.Seed = 0,
    timeout: shared.Timeout = "120s",
    build_timeout: shared.BuildTimeout = "30m",
    fail_on: shared.FailOn = "slower,broken",
    runs_dir: shared.RunsDir = "",
    env: shared.Env = "",
    autotune: shared.Autotune = "pinned",
    check: shared.Check = "inside",
    contain: shared.Contain = "auto",
    rebuild: shared.Rebuild = False,
    keep_worktrees: shared.KeepWorktrees = False,
    watch: shared.Watch = False,
    dry_run: shared.DryRun = False,
    no_wait: shared.NoWait = False,
    resume: Annotated[
        str, typer.Option(metavar="RUN", help="Go on with an interrupted run.", rich_help_panel=PLACE)
    ] = "",
    json: shared.RunJson = False,
    quiet: shared.Quiet = False,
    verbose: shared.Verbose = False,
) -> int:
    """Compare two refs or more, or profile one branch alone.

    Both sides go into worktrees of their own, their kernel packages are built with the compiler's output on show, and
    isolated processes take turns on the device until each cell is decided or the budget is spent.

    `abprof BASE TARGET -- COMMAND ARGS` runs a command on each side in turns that prints `name,ms` lines, CSV or JSON: its
    own timing is judged, and nothing is checked or proved.

    An option that takes a value is also read from the environment: ABPROF_THRESHOLD for --threshold.
    """
    options = dict(locals())
    with as_given(ctx), _perhaps_a_verb(ctx, refs):
        return _run(ctx, options)


@contextlib.contextmanager
def _perhaps_a_verb(ctx: typer.Context, refs: Many) -> Iterator[None]:
    """While the block runs, an error about a first ref that there is not names the verb that may have been meant."""
    try:
        yield
    except AbprofError as error:
        verbs = list(getattr(ctx.parent.command, "commands", ())) if ctx.parent else []
        near = difflib.get_close_matches(refs[0], verbs, 1) if refs and refs[0] not in verbs else []
        if not near or error.what != f"unknown ref {refs[0]!r}":
            raise
        advice = f"{error.advice}; or the verb, abprof {near[0]}?" if error.advice else f"the verb, abprof {near[0]}?"
        raise AbprofError(error.what, where=error.where, advice=advice) from error


def _run(ctx: typer.Context, options: Mapping[str, Any]) -> int:
    from abprof import session
    from abprof.cli.options import config_from
    from abprof.store import runfolder
    from abprof.system.console import View

    if options["resume"]:
        return _resume(ctx, options)
    if not options["refs"]:
        raise AbprofError("which refs?", advice="abprof BASE TARGET, or abprof run REF for one branch alone")
    command = program(ctx)
    if command is not None:
        refuse_beside(ctx, command, "abprof BASE TARGET -- python bench.py")
    spread = {"devices": options["devices"] or ("" if options["watch"] else "all")}
    config = config_from({**options, "command": command or (), **spread}, sys.argv[1:])
    view = View(quiet=options["quiet"], verbose=options["verbose"])
    for line in slips(ctx, os.environ):
        view.warn(line)
    if options["watch"]:
        return _watch(ctx, config, view)
    if config.dry_run:
        if config.runs_dir:  # a repository that cannot be written to can be planned for
            runfolder.makeable(Path(config.runs_dir).absolute())
        return _show_plan(session.dry_run(config, view), options["json"], peers=options["peers"])
    finished, folder = session.run(config, view)
    return show(finished, folder, json=options["json"], everything=config.all)


def _watch(ctx: typer.Context, config: Options, view: View) -> int:
    from abprof.extras.watch import answer as watched
    from abprof.extras.watch.loop import Answer, watch

    for name, option in given(ctx).items():
        if name in _NOT_WATCHED:
            what = "--watch answers every save by one epoch"
            raise AbprofError(what, where=option, advice="leave it out, and confirm by a run")

    def answer(found: Answer) -> None:
        with while_read():
            print("\n".join(watched.lines(found.run, found.before, found.seconds)), flush=True)

    watch(config, view, answer)
    return Exit.OK


def _resume(ctx: typer.Context, options: Mapping[str, Any]) -> int:
    from abprof import session
    from abprof.records.quantities import seconds
    from abprof.system.console import View

    if options["refs"]:
        raise AbprofError("an interrupted run has its refs", where="--resume", advice="abprof run --resume RUN")
    _refuse_beside_resume(ctx)
    view, budget = (
        View(quiet=options["quiet"], verbose=options["verbose"]),
        seconds(options["budget"] or "10m", "--budget"),
    )
    finished, folder = session.rerun(Path(options["resume"]), (), options["repo"], budget, view, resume=True)
    return show(finished, folder, json=options["json"], everything=options["all_"])


def _refuse_beside_resume(ctx: typer.Context) -> None:
    """Raises AbprofError for an option that would not be followed."""
    for name, option in given(ctx).items():
        if name not in _BESIDE_RESUME:
            beside = ", ".join(name for name in _BESIDE_RESUME.values() if name)
            advice = f"beside --resume go {beside}"
            raise AbprofError("an interrupted run goes on as it began", where=option, advice=advice)


def show(finished: Run, folder: Path, *, json: bool, everything: bool) -> int:
    """Print the result; the exit code is the run's."""
    from abprof.report import print_run

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

    from abprof.system import checksummed as sealed

    return sealed.text({**msgspec.to_builtins(finished), "run_dir": str(folder)}, None).decode()


def _show_plan(planned: Run, json: bool, *, peers: bool) -> int:
    from abprof.measure.estimate import estimate

    if json:
        from abprof.system import checksummed as sealed

        print(sealed.text(planned, None).decode())
        return Exit.OK
    for side in planned.sides:
        print(visible(f"{side.id:8} {side.spec}  {side.commit[:10]}  {side.subject}"))
    broken = {seen.cell: f"  (broken: {seen.reason})" for seen in planned.observations}
    for cell in planned.cells:
        unsupported = f"  (unsupported: {cell.skip})" if cell.skip else ""
        print(visible(f"  {cell.id}{broken.get(cell.id, unsupported)}"))
    count = len(planned.cells) - len(broken)
    cells = "1 cell" if count == 1 else f"{count} cells"
    models = Counter(machine.device for machine in planned.machines.values())
    where = ", ".join(f"{count} x {model}" for model, count in models.items()) or planned.machine.device
    print(visible(f"{cells} on {where}; {estimate(planned, peers=peers)}"))
    return Exit.OK
