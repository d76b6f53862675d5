"""`abprof run-cell`: what profilers are pointed at."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from abprof.cli import shared
from abprof.cli.completion import refs as complete_refs
from abprof.records.errors import Exit


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("run-cell", help=run_cell.__doc__, short_help="Call one cell of one side, for a profiler.")(run_cell)


def run_cell(
    ref: Annotated[str, typer.Argument(metavar="REF", help="A ref, or `.`.", autocompletion=complete_refs)],
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Its id, as every report prints it.")],
    variant: Annotated[str, typer.Option(metavar="NAME", help="This variant; else the first.")] = "",
    peer: Annotated[str, typer.Option(metavar="NAME", help="This peer of the workload, in place of the kernel.")] = "",
    warmup: Annotated[int, typer.Option(metavar="CALLS", help="Calls before the runs, alike in all.")] = 10,
    runs: Annotated[int, typer.Option(metavar="CALLS", help="Calls.")] = 50,
    repo: shared.Repo = ".",
    device: shared.Device = [],  # noqa: B006
    python: Annotated[str, typer.Option(metavar="PATH", help="The worker's interpreter.")] = "",
    preset: Annotated[str, typer.Option(help="Whose axes the id has; mostly `default` will do.")] = "",
    workloads_from: Annotated[str, typer.Option(metavar="base|PATH", help="Where the workloads are taken from.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of inputs.")] = 0,
    env: shared.Env = "",
    contain: shared.Contain = "auto",
    timeout: shared.Timeout = "120s",
    build_timeout: shared.BuildTimeout = "30m",
    rebuild: shared.Rebuild = False,
    no_wait: shared.NoWait = False,
    quiet: shared.Quiet = False,
    verbose: shared.Verbose = False,
) -> int:
    """Call one cell of one side in the foreground, with no measuring apparatus around it; then say what was run.

    It is what profilers are pointed at: `ncu --target-processes all --nvtx --nvtx-include abprof_call abprof run-cell
    main CELL`, `perf record abprof run-cell . CELL`. The worktree, the build (cached) and one call that compiles come
    first; then warm-ups and runs, on a GPU each in the NVTX range `abprof_call`. No output is checked.
    """
    from abprof.cli import options
    from abprof.cli.options import choice
    from abprof.extras.run_cell import Wanted, run
    from abprof.records.options import Options
    from abprof.records.quantities import seconds
    from abprof.system.console import View

    config = Options(
        specs=(ref,),
        repo=repo,
        device=tuple(device),
        python={"": python} if python else {},
        preset=preset,
        workloads_from=workloads_from,
        seed=options.seed(seed),
        env=choice(env, "--env", ("", "user", "clean")),
        contain=choice(contain, "--contain", ("auto", "always", "never")),
        timeout=seconds(timeout, "--timeout"),
        build_timeout=seconds(build_timeout, "--build-timeout"),
        rebuild=rebuild,
        no_wait=no_wait,
        arguments=tuple(sys.argv[1:]),
    )
    print(run(config, Wanted(cell, variant, peer, warmup, runs), View(quiet=quiet, verbose=verbose)))
    return Exit.OK
