"""`abprof demo`, `list`, `doctor`, `clean`: the machine, the repository, and what abprof keeps."""

from __future__ import annotations

from typing import Annotated

import typer

from abprof.records.errors import Exit

Many = list[str]
Device = Annotated[Many, typer.Option(help="cpu, cuda, cuda:N or a GPU's UUID.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and the result.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("demo", help=demo.__doc__, short_help="Run the main job on a repository made for it.")(demo)
    app.command("selfcheck", help=selfcheck.__doc__, short_help="Measure abprof itself on this machine.")(selfcheck)
    app.command("list", help=list_.__doc__, short_help="List kernel packages, workloads and cells.")(list_)
    app.command("doctor", help=doctor.__doc__, short_help="Say what this machine can measure.")(doctor)
    app.command("clean", help=clean.__doc__, short_help="Remove what killed runs left behind.")(clean)


def demo(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Where the demo repository is made.")] = "",
    device: Device = [],  # noqa: B006
    quiet: Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All of the builds' output.")] = False,
) -> int:
    """Make a small repository with branches main and optimize_ffa, and run the main job on it."""
    from abprof.extras.demo import run as make
    from abprof.system.console import View

    make(folder, tuple(device), View(quiet=quiet, verbose=verbose))
    return Exit.OK


def selfcheck(
    budget: Annotated[str, typer.Option(metavar="TIME", help="For the run; studies come on top.")] = "5m",
    preset: Annotated[str, typer.Option(metavar="NAME", help="How many cells: quick, default, full.")] = "",
    epochs: Annotated[int | None, typer.Option(metavar="N", min=4, help="Epochs of every cell.")] = None,
    only: Annotated[Many, typer.Option(metavar="AXIS=VALUE|GLOB", help="Only these cells.")] = [],  # noqa: B006
    against: Annotated[Many, typer.Option(metavar="PROTOCOL", help="Compare with: seed, do_bench.")] = [],  # noqa: B006
    device: Device = [],  # noqa: B006
    timer: Annotated[str, typer.Option(metavar="NAME", help="auto, events, graph, cupti or cpu.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Few cells, four epochs.")] = False,
    runs_dir: Annotated[str, typer.Option(metavar="PATH", help="Where the run folder is made.")] = "",
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Measure abprof itself on this machine: false alarms, detection of known changes, coverage of its intervals."""
    import sys

    from abprof.cli.guard import while_read
    from abprof.cli.options import TIMERS, choice
    from abprof.extras import selfcheck as check
    from abprof.records.options import Options
    from abprof.records.quantities import seconds
    from abprof.system.console import View

    config = Options(
        specs=(),
        preset=preset or ("quick" if quick else "default"),
        epochs=epochs or (4 if quick else 8),
        budget=seconds(budget, "--budget"),
        only=tuple(only),
        timer=choice(timer, "--timer", TIMERS),
        device=tuple(device),
        runs_dir=runs_dir,
        no_peers=True,
        arguments=tuple(sys.argv[1:]),
    )
    found, folder = check.run(config, View(quiet=quiet), quick=quick, against=against)
    with while_read():
        print(check.as_json(found, folder) if json else check.as_markdown(found, folder))
    return Exit.OK if found.cells else Exit.CANNOT_RUN


def list_(
    repo: Annotated[str, typer.Option(help="The git repository.")] = ".",
    preset: Annotated[str, typer.Option(help="Whose cells are listed.")] = "",
    workloads: Annotated[Many, typer.Option(help="Only these workloads.")] = [],  # noqa: B006
    device: Device = [],  # noqa: B006
    json: Json = False,
) -> int:
    """List kernel packages, workloads and the cells of a preset, of the working tree."""
    from abprof.cli.listing import show

    print(show(repo, preset, tuple(workloads), tuple(device), json=json))
    return Exit.OK


def doctor(
    python: Annotated[str, typer.Option(metavar="PATH", help="The workers' interpreter.")] = "",
    json: Json = False,
) -> int:
    """Say what this machine can measure, and what is missing for it."""
    from abprof.extras.doctor import run as examine

    return examine(python, json=json)


def clean(
    builds: Annotated[bool, typer.Option("--builds", help="Remove cached builds too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove kept worktrees, clones and builds too.")] = False,
) -> int:
    """Remove what killed runs left behind (worktrees, half-made clones and builds, run folders in which no run.json
    stands) and builds that were superseded by --rebuild. A run folder with a run.json is never touched."""
    from abprof import builds as built
    from abprof import fleet, sides, store
    from abprof.devices import sweep_leases
    from abprof.system import paths

    cache, state = paths.cache_dir(), paths.state_dir()
    lines = built.sweep(cache, everything=builds or everything)
    lines += [*store.sweep(state), *sweep_leases(state), *sides.sweep(cache, everything=everything)]
    lines += fleet.sweep(cache, everything=everything)
    for line in lines or ["nothing to clean"]:
        print(line)
    return Exit.OK
