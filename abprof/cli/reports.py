"""`abprof report`, `rerun`, `compare-csv`: what is made from runs that exist."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from abprof.records.errors import AbprofError, Exit

Many = list[str]
Everything = Annotated[bool, typer.Option("--all", help="Show unchanged cells too.")]
RunJson = Annotated[bool, typer.Option("--json", help="Print run.json's content.")]
_FORMATS = ("html", "md", "csv", "json", "png", "junit", "legacy", "artifact")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("report", help=report.__doc__, short_help="Judge a run again; write its reports anew.")(report)
    app.command("rerun", help=rerun.__doc__, short_help="Measure cells again; results are added.")(rerun)
    app.command("compare-csv", help=compare_csv.__doc__, short_help="Compare two profile CSVs that exist.")(compare_csv)


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN [RUN2]", help="A run folder; two are compared.")],
    format: Annotated[
        str, typer.Option(metavar="|".join(_FORMATS), help="Print this instead; nothing is written.")
    ] = "",
    open_: Annotated[bool, typer.Option("--open", help="Open report.html in the browser.")] = False,
    everything: Everything = False,
    json: RunJson = False,
) -> int:
    """Judge a run again from its rounds, and write its reports anew; or print it in one format; or compare two runs."""
    from abprof import session
    from abprof.cli.run import show

    _refuse(runs, format, open_=open_, json=json)
    if len(runs) == 2:
        return _two(runs, "json" if json else format)
    if format:
        return _in(format, Path(runs[0]))
    finished, folder = session.report(Path(runs[0]))
    show(finished, folder, json=json, everything=everything)
    if open_:
        _browse(folder / "report.html")
    return Exit.OK


def _refuse(runs: list[str], format: str, *, open_: bool, json: bool) -> None:
    """What does not go together. Raises AbprofError."""
    if format and format not in _FORMATS:
        raise AbprofError(f"no format {format!r}", where="--format", advice=f"there are {', '.join(_FORMATS)}")
    if len(runs) > 2:
        raise AbprofError(f"{len(runs)} runs", where="abprof report", advice="it takes one, or two to compare")
    if format and (open_ or json):
        other = "--open" if open_ else "--json"
        raise AbprofError(f"--format {format} with {other}", advice="--format prints one thing; take one of the two")
    if len(runs) == 2 and (open_ or format not in ("", "md", "csv", "json")):
        raise AbprofError("two runs are compared as text", where="abprof report", advice="--format md, csv or json")


def _in(format: str, path: Path) -> int:
    """Print a run in one format on standard output. The older scripts' files are several: they are written, and named."""
    from abprof import session
    from abprof.cli.guard import while_read
    from abprof.system import files as disk

    run, blocks = session.judged(path, _note)
    if format == "legacy":
        from abprof.report import legacy

        folder = (path.parent if path.is_file() else path) / "legacy"
        made = legacy.files(run, blocks)
        for name, text in made.items():
            print(disk.put(folder / name, text.encode()))
        return Exit.OK
    if format == "artifact":
        from abprof.extras.bot import encode, make_notice

        content = encode(make_notice(run, path.parent if path.is_file() else path))
        with while_read():
            sys.stdout.buffer.write(content)
        return Exit.OK
    from abprof.report import rendered

    content = rendered(run, blocks, format)
    with while_read():
        sys.stdout.buffer.write(content)
    return Exit.OK


def _two(runs: list[str], format: str) -> int:
    """Print how the second run's verdicts differ from the first's."""
    from abprof import session
    from abprof.cli.guard import while_read
    from abprof.report import terminal, two_runs

    found = two_runs.compare(*(session.judged(Path(run), _note)[0] for run in runs))
    with while_read():
        if format:
            sys.stdout.write(two_runs.rendered(found, format))
        else:
            terminal.print_tables([found.table] if found.table.rows else [], found.notes, found.sentence)
    return Exit.OK


def _note(text: str) -> None:
    print(f"abprof: {text}", file=sys.stderr)


def _browse(page: Path) -> None:
    """Open a page in the user's browser; where there is none its path is said."""
    import webbrowser

    address = page.resolve().as_uri()
    try:
        opened = webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    if not opened:
        _note(f"no browser could be started; the page is {address}")


def rerun(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    only: Annotated[Many, typer.Option(metavar="VERDICT|AXIS=VALUE|GLOB", help="Only these cells, e.g. slower.")] = [],  # noqa: B006
    repo: Annotated[str, typer.Option(help="The git repository.")] = ".",
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for measuring.")] = "10m",
    everything: Everything = False,
    json: RunJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and the result.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All of the builds' output.")] = False,
) -> int:
    """Measure cells of a run again, in fresh epochs: results are added, never replaced."""
    from abprof import session
    from abprof.cli.run import show
    from abprof.records.quantities import seconds
    from abprof.system.console import View

    view = View(quiet=quiet, verbose=verbose)
    finished, folder = session.rerun(Path(run), only, repo, seconds(budget, "--budget"), view, resume=False)
    return show(finished, folder, json=json, everything=everything)


def compare_csv(
    base: Annotated[str, typer.Argument(metavar="BASE.csv")],
    target: Annotated[str, typer.Argument(metavar="TARGET.csv")],
    out: Annotated[str, typer.Argument(metavar="OUT.csv")],
    threshold: Annotated[str, typer.Option(metavar="PCT", help="Warn beyond this.")] = "1.5",
) -> int:
    """Compare two profile CSVs that exist, of dense or block-sparse runs, by the original scripts' formula."""
    from abprof.records.quantities import percent
    from abprof.report import compare_csv as comparing

    sys.stdout.write(
        comparing.compare(Path(base), Path(target), Path(out), threshold=percent(threshold, "--threshold"))
    )
    return Exit.OK
