"""`abprof history`: what many nights measured together."""

from __future__ import annotations

import csv
import json as encoder
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import while_read
from abprof.cli.options import takes
from abprof.records.errors import AbprofError, Exit
from abprof.records.visible import cell as csv_cell
from abprof.records.visible import visible

if TYPE_CHECKING:
    from abprof.extras.nightly.index import Index

Metric = Annotated[str, typer.Option(metavar="NAME", help="gpu_span, gpu_graph, gpu_kernels, wall or peak_mem_bytes.")]
Series = Annotated[str, typer.Option(metavar="NAME", help="Only this branch's nights.")]
Since = Annotated[str, typer.Option(metavar="DATE|30d", help="Only nights from then on (UTC).")]
Against = Annotated[bool, typer.Option("--against", help="Nights against the fixed release instead.")]


verbs = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(verbs, name="history", short_help="Nights: query, changes, a page.")


@verbs.command("query")
@takes("cell", "json", "repo", "runs_dir")
def query(
    metric: Metric = "",
    since: Since = "",
    series: Series = "",
    against: Against = False,
    **values: Any,
) -> int:
    """Print what the nights measured, a row per night and cell, as CSV."""
    from abprof.extras.nightly import Query

    cell, json = values["cell"], values["json"]
    kinds = ("against",) if against else ("first", "step")
    chosen = Query(tuple(cell), metric, series, _since(since), kinds)
    with _index(values) as index, while_read():
        _check_names(index, series, cell)
        columns, rows = index.table(chosen)
        writer = csv.writer(sys.stdout, lineterminator="\n")
        if not json:
            writer.writerow(columns)
        for row in rows:
            if json:
                print(encoder.dumps(dict(zip(columns, row, strict=True))))
            else:  # a text never ends its line, steers a terminal, or is a formula to a spreadsheet
                writer.writerow([csv_cell(item) if isinstance(item, str) else item for item in row])
    return Exit.OK


@verbs.command("changes")
@takes("cell", "json", "repo", "runs_dir")
def changes(
    since: Since = "",
    series: Series = "",
    **values: Any,
) -> int:
    """List where cells changed, confirmed by three nights, and when the machine did."""
    from abprof.extras.nightly import Query, history_changes

    cell, json = values["cell"], values["json"]
    chosen, silent = Query(tuple(cell), since=_since(since)), True
    with _index(values) as index, while_read():
        _check_names(index, series, cell)
        for name in [series] if series else index.series():
            found, shifts = history_changes(index, replace(chosen, series=name))
            silent = silent and not found and not shifts
            if json:
                lists = {"changes": [asdict(it) for it in found], "shifts": [asdict(it) for it in shifts]}
                print(encoder.dumps({"series": name, **lists}))
                continue
            for shift in shifts:
                moved = f"machine shift, {shift.pct:+.1f} % in all {shift.cells} cells"
                print(visible(f"{name} night {shift.night}: {moved}"))
            for change in found:
                facts = f"{change.pct:+.1f} % ({change.because}), confirmed on night {change.found}"
                print(visible(f"{name} night {change.night}: {facts} {change.trend}"))
    if silent and not json:
        print("no change matches" if cell or since else "no change", file=sys.stderr)
    return Exit.OK


@verbs.command("page")
@takes("repo", "runs_dir")
def page(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="history.html among the runs.")] = "",
    series: Series = "",
    **values: Any,
) -> int:
    """Write history.html: a trend for every cell, with changes and machine shifts, in one self-contained file."""
    from abprof.extras.nightly import history_page
    from abprof.system.files import put

    path = Path(file) if file else _runs_of(values) / "history.html"
    with _index(values) as index:
        _check_names(index, series, [])
        names = [series] if series else index.series()
        if len(names) > 1:
            raise AbprofError("there are several", where="--series", advice=f"one of {', '.join(names)}")
        put(path.absolute(), history_page(index, names[0] if names else "").encode())
    print(path)
    return Exit.OK


@verbs.command("rebuild")
@takes("repo", "runs_dir")
def rebuild(**values: Any) -> int:
    """Rebuild the index from the run folders. Every command updates it; use this if it seems wrong."""
    with _index(values, anew=True) as index:
        print(f"{len(index.nights())} nights, {len(index.cells())} cells")
    return Exit.OK


@contextmanager
def _index(values: dict[str, Any], *, anew: bool = False) -> Iterator[Index]:
    """The index, updated; what could not be read is printed on standard error."""
    from abprof.extras.nightly import open_index

    with open_index(_runs_of(values), rebuild=anew) as index:
        for note in index.notes:
            print(visible(f"abprof: {note}"), file=sys.stderr)
        yield index


def _check_names(index: Index, series: str, cells: list[str]) -> None:
    """Raises AbprofError for an unknown series or cell: an empty answer would look as if nothing happened."""
    names = index.series()
    if series and series not in names:
        advice = f"there are {', '.join(names)}"[:500] if names else "there are no nights yet"
        raise AbprofError(f"no series {series!r}", where="--series", advice=advice)
    known = index.cells()
    if not known:
        print("abprof: no nights yet", file=sys.stderr)
        return
    for cell in cells:
        if cell not in known and not index.cells(cell):
            few = ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
            raise AbprofError(f"no cell matches {cell!r}", where="--cell", advice=f"there are {few}")


def _runs_of(values: dict[str, Any]) -> Path:
    """`--runs-dir`, or runs/ of the repository that `repo` lies in; the folder need not be a repository."""
    if values["runs_dir"]:
        return Path(values["runs_dir"]).absolute()
    start = Path(values["repo"]).absolute()
    if not start.is_dir():
        raise AbprofError("no such folder", where=f"--repo {values['repo']}")
    root = next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)
    return root / "runs"


def _since(text: str) -> str:
    """ "2026-11-20", "2026-11-20T02:00" (UTC) or "30d" as ISO 8601, or "". Raises AbprofError."""
    if not text:
        return ""
    if days := re.fullmatch(r"(\d{1,5})\s*d", text.strip()):
        return (datetime.now(UTC) - timedelta(days=int(days[1]))).isoformat(timespec="seconds")
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise AbprofError(f"invalid date {text!r}", where="--since", advice="write 2026-11-20 or 30d") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="seconds")
