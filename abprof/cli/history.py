"""`abprof history`: what many nights say together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import visible

if TYPE_CHECKING:
    from abprof.extras.history.changes import Change
    from abprof.extras.history.fleet import Shift
    from abprof.extras.history.index import Index, Question

Many = list[str]
Repo = Annotated[str, typer.Option(help="The git repository.")]
RunsDir = Annotated[str, typer.Option(metavar="PATH", help="The folder that holds the runs; runs/ of the repository.")]
Cells = Annotated[Many, typer.Option("--cell", metavar="GLOB", help="Only these cells.")]
Metric = Annotated[str, typer.Option(metavar="NAME", help="gpu_span, gpu_graph, gpu_kernels, wall or peak_mem_bytes.")]
Series = Annotated[str, typer.Option(metavar="NAME", help="Only this branch's nights.")]
Since = Annotated[str, typer.Option(metavar="DATE|30d", help="Only nights from then on (UTC).")]
Against = Annotated[bool, typer.Option("--against", help="Nights against the fixed release instead.")]


def register(app: typer.Typer) -> None:
    """Add the verb with its verbs."""
    verbs = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)
    verbs.command("query")(query)
    verbs.command("changes")(changes)
    verbs.command("page")(page)
    verbs.command("rebuild")(rebuild)
    app.add_typer(verbs, name="history", short_help="Nights: query, changes, a page.")


@contextmanager
def _index(repo: str, runs_dir: str, *, anew: bool = False) -> Iterator[Index]:
    """The index, up to date; what could not be read is said on standard error."""
    from abprof.extras.history.index import opened
    from abprof.extras.history.places import runs_of

    with opened(runs_of(repo, runs_dir), anew=anew) as index:
        for note in index.notes:
            print(visible(f"abprof: {note}"), file=sys.stderr)
        yield index


def _named(index: Index, series: str, cells: Many) -> None:
    """Raises AbprofError for a series or a cell that there is not: nothing found would look like nothing happened."""
    names = index.series()
    if series and series not in names:
        advice = f"there are {', '.join(names)}"[:500] if names else "there is no night here yet"
        raise AbprofError(f"no series {series!r}", where="--series", advice=advice)
    there = index.cells()
    if not there:
        print("abprof: there is no night here yet", file=sys.stderr)
        return
    for cell in cells:
        if cell not in there and not index.cells(cell):
            few = ", ".join(there[:5]) + (f" and {len(there) - 5} more" if len(there) > 5 else "")
            raise AbprofError(f"no cell is or fits {cell!r}", where="--cell", advice=f"there are {few}")


def _question(cell: Many, metric: str, series: str, since: str, *, against: bool) -> Question:
    from abprof.extras.history.index import Question
    from abprof.extras.history.night import METRICS
    from abprof.extras.history.places import since as from_when

    if metric and metric not in METRICS:
        raise AbprofError(f"no metric {metric!r}", where="--metric", advice=f"there are {', '.join(METRICS)}")
    kinds = ("against",) if against else ("first", "step")
    return Question(tuple(cell), metric, series, from_when(since), kinds)


def query(
    cell: Cells = [],  # noqa: B006
    metric: Metric = "",
    since: Since = "",
    series: Series = "",
    against: Against = False,
    json: Annotated[bool, typer.Option("--json", help="A JSON object a line instead of CSV.")] = False,
    repo: Repo = ".",
    runs_dir: RunsDir = "",
) -> int:
    """Print what the nights measured, a row per night and cell, as CSV."""
    from abprof.cli.guard import while_read
    from abprof.extras.history import table

    asked = _question(cell, metric, series, since, against=against)
    with _index(repo, runs_dir) as index, while_read():
        _named(index, series, cell)
        if json:
            import msgspec

            for row in table.rows(index.values(asked)):
                print(msgspec.json.encode(dict(zip(table.COLUMNS, row, strict=True))).decode())
        else:
            table.write_csv(index.values(asked), sys.stdout)
    return Exit.OK


def changes(
    cell: Cells = [],  # noqa: B006
    since: Since = "",
    series: Series = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    repo: Repo = ".",
    runs_dir: RunsDir = "",
) -> int:
    """List where cells changed: suspected on the first night, confirmed on the third; and when the machine did."""
    from abprof.cli.guard import while_read

    asked, silent = _question(cell, "", series, since, against=False), True
    with _index(repo, runs_dir) as index, while_read():
        _named(index, series, cell)
        for name in [series] if series else index.series():
            found, shifts = _found(index, replace(asked, series=name))
            silent = silent and not found and not shifts
            if json:
                import msgspec

                print(msgspec.json.encode({"series": name, "changes": found, "shifts": shifts}).decode())
                continue
            for shift in shifts:
                print(
                    visible(f"{name} night {shift.night}: the machine, {shift.pct:+.1f} % in all {shift.cells} cells")
                )
            for change in found:
                said = f"{change.state} on night {change.found}, {change.pct:+.1f} % ({change.kind}, {change.because})"
                print(visible(f"{name} night {change.night}: {said} {change.trend}"))
    if silent and not json:
        print("no change" if not (cell or since) else "no change that was asked for", file=sys.stderr)
    return Exit.OK


def _found(index: Index, asked: Question) -> tuple[list[Change], list[Shift]]:
    """What of a series is asked for. All of it is searched: a machine is told by all cells, a change by all nights."""
    from abprof.extras.history.changes import find
    from abprof.extras.history.series import trends

    found, shifts = find(list(trends(index.values(replace(asked, cells=(), since="")))))
    if asked.cells:
        wanted = {trend.name for trend in trends(index.values(replace(asked, since="")))}
        found = [change for change in found if change.trend in wanted]
    if asked.since:
        late = {night.number for night in index.nights(asked.series, asked.kinds) if night.began >= asked.since}
        found = [change for change in found if change.found in late]
        shifts = [shift for shift in shifts if shift.night in late]
    return found, shifts


def page(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="history.html among the runs.")] = "",
    series: Series = "",
    repo: Repo = ".",
    runs_dir: RunsDir = "",
) -> int:
    """Write history.html: a trend for every cell, changes and machine changes marked, in one file that needs nothing else."""
    from abprof.extras.history import page as history
    from abprof.extras.history.places import runs_of
    from abprof.system.files import put

    path = Path(file) if file else runs_of(repo, runs_dir) / history.FILE
    with _index(repo, runs_dir) as index:
        _named(index, series, [])
        names = [series] if series else index.series()
        if len(names) > 1:
            advice = f"one of {', '.join(names)}"
            raise AbprofError("there are several", where="--series", advice=advice)
        put(path.absolute(), history.page(index, names[0] if names else "").encode())
    print(path)
    return Exit.OK


def rebuild(repo: Repo = ".", runs_dir: RunsDir = "") -> int:
    """Make the index again from the run folders. It is brought up to date by itself; this is for when in doubt."""
    with _index(repo, runs_dir, anew=True) as index:
        print(f"{len(index.nights())} nights, {len(index.cells())} cells")
    return Exit.OK
