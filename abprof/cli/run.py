"""Define `abprof run` and `rerun`, which measure, and `run-cell`, which calls one cell for profilers."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from abprof.cli.app import Verb, app, program, refuse, warn
from abprof.cli.options import (
    RESULT_JSON,
    RUN,
    VIEW,
    WORKERS,
    Refs,
    number,
    options_from,
    past_of,
    takes,
    text,
    view_of,
)
from abprof.records import Options, Run
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import DEFAULT_BUDGET
from abprof.records.quantities import plural, seconds
from abprof.records.visible import visible
from abprof.system import checksummed

if TYPE_CHECKING:
    from abprof.system.console import View

_BESIDE_RESUME = ("resume", "repo", "budget", "all", "json", "quiet", "verbose")
_NOT_WATCHED = (
    *("devices", "executor", "executor_option", "epochs", "precision", "probe", "regime", "history", "fail_on", "all"),
    *("json", "dry_run"),
)
_OF_WORKLOADS = (  # options without effect on a command that times itself
    *("watch", "kernels", "workloads", "workloads_from", "preset", "set", "cell", "peers", "peer", "python", "timer"),
    *("regime", "probe", "allow_wrong", "autotune", "check", "untrusted", "rebuild", "dry_run", "resume"),
)


@app.command("run", cls=Verb)
@takes(text("--resume", "RUN", "Continue an interrupted run."), *RUN, RESULT_JSON, "watch", "dry_run")
def run(ctx: typer.Context, refs: Refs = [], **values: Any) -> int:  # noqa: B006
    """Compare two refs or more, or measure one branch alone.

    Each side is checked out into its own worktree, and its kernel packages are built. Then isolated processes take
    turns on the device until each cell is decided or the budget is spent.

    `abprof BASE TARGET -- COMMAND ARGS` runs COMMAND on the sides in turn. COMMAND prints `name,ms` lines; abprof
    judges these times, and checks no outputs.

    An option that takes a value is also read from the environment: ABPROF_THRESHOLD for --threshold.
    """
    from abprof import session

    view = view_of(values)
    if values["resume"]:
        if refs:
            raise AbprofError("cannot be used with refs", where="--resume", advice="abprof run --resume RUN")
        advice = "with --resume use only --repo, --budget, --all, --json, --quiet, --verbose"
        refuse(ctx, "a resumed run keeps its options", but=_BESIDE_RESUME, advice=advice)
        return _finished(_again(values["resume"], (), values, resume=True), values)
    if not refs:
        raise AbprofError("no refs given", advice="abprof BASE TARGET, or abprof run REF for one branch alone")
    command = command_of(ctx, "abprof BASE TARGET -- python bench.py")
    devices = 1 if values["watch"] else values["devices"] or None
    options = options_from(refs, values, command=command, devices=devices)
    if values["watch"]:
        return _watch(ctx, options, view)
    if options.dry_run and values["json"] == "summary":
        raise AbprofError("--dry-run has no verdicts", where="--json=summary", advice="give --json")
    if not options.dry_run:
        return _finished(session.run(options, view, past=past_of(values)), values)
    _show_plan(session.dry_run(options, view), json=values["json"])
    return Exit.OK


@app.command("rerun", cls=Verb, short_help="Measure cells of a run again, and add the results.")
@takes("only", "repo", "budget", "all", RESULT_JSON, *VIEW)
def rerun(run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")], **values: Any) -> int:
    """Measure cells of a run again, in new epochs. The results are added; earlier results stay."""
    return _finished(_again(run, values["only"], values, resume=False), values)


def _again(folder: str, only: tuple[str, ...], values: dict[str, Any], *, resume: bool) -> tuple[Run, Path]:
    from abprof import session

    budget = values["budget"] or seconds(DEFAULT_BUDGET, "--budget")
    return session.rerun(
        Path(folder), only, values["repo"], budget, view_of(values), resume=resume, past=past_of(values)
    )


@app.command("run-cell", short_help="Call one cell of one side, for a profiler.")
@takes(
    text("--variant", "NAME", "Variant of the kernel; default: the first."),
    text("--peer", "NAME", "Call this peer of the workload instead of the kernel."),
    number("--warmup", "CALLS", "Warm-up calls before the runs; default: 10.", 0, default=10),
    number("--runs", "CALLS", "Calls after the warm-up; default: 50.", 1, default=50),
    *("repo", *WORKERS, "preset", "workloads_from", "contain", *VIEW),
)
def run_cell(
    ref: Annotated[str, typer.Argument(metavar="REF", help="A ref, or `.`.")],
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Id of the cell, as reports print it.")],
    **values: Any,
) -> int:
    """Call one cell of one side in the foreground, without measuring it, and print what was called.

    For profilers: `ncu --target-processes all --nvtx --nvtx-include abprof_call abprof run-cell main CELL`, `perf
    record abprof run-cell . CELL`. The side is built unless cached, and called once to compile. Then --warmup and
    --runs calls follow; on a GPU, each call is in the NVTX range `abprof_call`. Outputs are not checked.
    """
    from abprof.extras import profiling

    own = {name: values.pop(name) for name in ("variant", "peer", "warmup", "runs")}
    print(profiling.call(options_from([ref], values), cell, view_of(values), **own))
    return Exit.OK


def command_of(ctx: typer.Context, example: str, allowed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the words of the command after `--`; () without `--`. Raises AbprofError if no word follows `--`, or if
    options are given that do not apply to a command; `allowed` options apply. `example`: printed in the error."""
    command = program(ctx)
    if command is None:
        return ()
    if not command:
        raise AbprofError("no command given", where="--", advice=example)
    refuse(ctx, "has no effect on a command", only=set(_OF_WORKLOADS) - set(allowed))
    return tuple(command)


def _finished(done: tuple[Run, Path], values: dict[str, Any]) -> int:
    """Add a finished run to the job summary of GitHub Actions, if abprof runs there, and print it. Return its exit code.

    GitHub drops the summary of a step that is larger than 1 MiB. A file that cannot be written is only a warning.
    """
    finished, folder = done
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        from abprof.extras.bot import job_summary

        try:
            with Path(path).open("ab") as file:
                file.write(job_summary(finished, folder, room=(1 << 20) - file.tell()))
        except OSError as error:
            warn(f"no job summary: {error.strerror} (GITHUB_STEP_SUMMARY {path})")
    return show(done, values)


def show(done: tuple[Run, Path], values: dict[str, Any]) -> int:
    """Print a finished run and its folder, in the form that --json and --all choose. Return the run's exit code."""
    from abprof.report import print_run

    finished, folder = done
    if values["json"] == "summary":
        from abprof.report import exports

        print(exports.summary(finished, folder))
    elif values["json"]:
        print(run_as_json(finished, folder))
    else:
        print_run(finished, folder, everything=values["all"])
    if finished.status == "interrupted":
        return Exit.INTERRUPTED
    return finished.header.exit_code if finished.header else Exit.CANNOT_RUN


def run_as_json(finished: Run, folder: Path) -> str:
    """Return the content of run.json, with the run's folder added as `run_dir`, as JSON."""
    return checksummed.text({**msgspec.to_builtins(finished), "run_dir": str(folder)}, None).decode()


def _watch(ctx: typer.Context, options: Options, view: View) -> int:
    from abprof.extras.watch import watch

    advice = "leave it out, and confirm changes by a run without --watch"
    refuse(ctx, "has no effect with --watch, which measures one epoch per save", only=_NOT_WATCHED, advice=advice)
    watch(options, view, lambda lines: print("\n".join(lines), flush=True))
    return Exit.OK


def _show_plan(planned: Run, *, json: bool) -> None:
    from abprof import session

    if json:
        print(checksummed.text(planned, None).decode())
        return
    broken = {seen.cell: f"  (broken: {seen.reason})" for seen in planned.observations}
    models = Counter(machine.device for machine in planned.machines.values())
    where = ", ".join(f"{count} x {model}" for model, count in models.items()) or planned.machine.device
    lines = [f"{side.id:8} {side.spec}  {side.commit[:10]}  {side.subject}" for side in planned.sides]
    unsupported = {cell.id: f"  (unsupported: {cell.skip})" for cell in planned.cells if cell.skip}
    lines += [f"  {cell.id}{broken.get(cell.id) or unsupported.get(cell.id, '')}" for cell in planned.cells]
    cells = plural(len(planned.cells) - len(broken), "cell")
    print("\n".join(map(visible, [*lines, f"{cells} on {where}; {session.forecast(planned)[0]}"])))
