"""`abprof report`, `rerun`, `compare-csv`: what is made from runs that exist."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from abprof.errors import Exit

Many = list[str]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("report", help=report.__doc__, short_help="Judge a run again; write its reports anew.")(report)
    app.command("rerun", help=rerun.__doc__, short_help="Measure cells again; results are added.")(rerun)
    app.command("compare-csv", help=compare_csv.__doc__, short_help="Compare two profile CSVs that exist.")(compare_csv)


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    everything: Annotated[bool, typer.Option("--all", help="Show unchanged cells too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print run.json's content.")] = False,
) -> int:
    """Judge a run again from its rounds, and write its reports anew."""
    from abprof import session
    from abprof.cli.run import show

    finished, folder = session.report(Path(run))
    show(finished, folder, json=json, everything=everything)
    return Exit.OK


def rerun(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    only: Annotated[Many, typer.Option(metavar="VERDICT|AXIS=VALUE|GLOB", help="Only these cells, e.g. slower.")] = [],  # noqa: B006
    repo: Annotated[str, typer.Option(help="The git repository.")] = ".",
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for measuring.")] = "10m",
    everything: Annotated[bool, typer.Option("--all", help="Show unchanged cells too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print run.json's content.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and the result.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All of the builds' output.")] = False,
) -> int:
    """Measure cells of a run again, in fresh epochs: results are added, never replaced."""
    from abprof import session
    from abprof.cli.run import show
    from abprof.config import seconds
    from abprof.view import View

    view = View(quiet=quiet, verbose=verbose)
    finished, folder = session.again(Path(run), only, repo, seconds(budget, "--budget"), view, resume=False)
    return show(finished, folder, json=json, everything=everything)


def compare_csv(
    base: Annotated[str, typer.Argument(metavar="BASE.csv")],
    target: Annotated[str, typer.Argument(metavar="TARGET.csv")],
    out: Annotated[str, typer.Argument(metavar="OUT.csv")],
    threshold: Annotated[str, typer.Option(metavar="PCT", help="Warn beyond this.")] = "1.5",
) -> int:
    """Compare two profile CSVs that exist, of dense or block-sparse runs, by the original scripts' formula."""
    from abprof.config import percent
    from abprof.report import compare_csv as comparing

    sys.stdout.write(
        comparing.compare(Path(base), Path(target), Path(out), threshold=percent(threshold, "--threshold"))
    )
    return Exit.OK
