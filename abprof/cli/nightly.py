"""`abprof nightly` measures a branch once a night; `abprof history` prints the results of many nights."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abprof.cli.app import app, note
from abprof.cli.options import RUN, many, options_from, takes, text, view_of
from abprof.records.errors import AbprofError, Exit
from abprof.records.quantities import signed
from abprof.records.visible import cell as csv_cell
from abprof.records.visible import visible
from abprof.system.files import put

if TYPE_CHECKING:
    from abprof.extras.nightly import History, NightReport


@app.command("nightly", short_help="Compare a branch's head with its last judged commit.")
@takes(
    text("--branch", "REF", "Branch to measure; default: main.", default="main"),
    text("--series", "NAME", "Name of the series of nights; default: the branch's name.", default=""),
    text("--summary", "FILE", "Write a summary in Markdown to this file."),
    *(name for name in (*RUN, "json") if name not in {"devices", "history"}),
)
def nightly(**values: Any) -> int:
    """Compare the last judged commit of a branch with its head; on the first night measure the head alone.

    Also accepts the options of `abprof run` (--preset, --only, --device, --runs-dir, --budget, ...). Prints one JSON
    line and exits like a run: 0 nothing slower, 1 slower or broken, 2 could not run, 4 not trustworthy. A head that was
    already judged with the same matrix and machine is not measured again.
    """
    from abprof.extras.nightly import run_night

    summary = values["summary"]
    try:
        if summary and (Path(summary).is_dir() or not os.access(Path(summary).absolute().parent, os.W_OK)):
            raise AbprofError("not a file that can be written", where=f"--summary {summary}", advice="name a file")
        options, view = options_from((values["branch"],), values), view_of(values)
        return run_night(options, values["series"], view, lambda report: _publish(report, summary)).exit_code
    except AbprofError as error:
        if not values["json"]:  # with --json the command line prints the error itself
            print(json.dumps({"did": "refused", "exit_code": int(Exit.CANNOT_RUN), **error.as_json()}))
        raise
    except Exception as error:
        print(json.dumps({"did": "refused", "exit_code": int(Exit.BUG), "error": {"what": f"a bug: {error!r}"[:500]}}))
        raise


def _publish(report: NightReport, path: str | None) -> None:
    from abprof.extras.nightly import summary

    print(json.dumps(asdict(report)))
    try:
        if path:
            put(Path(path), summary(report).encode())
    except (AbprofError, OSError) as error:
        note(f"the summary could not be written: {error}")


def _since(text: str, option: str) -> str:
    """Return `text` (a date, a time in UTC, or "30d": days ago) in ISO 8601. Raises AbprofError for other texts."""
    if days := re.fullmatch(r"(\d{1,5})\s*d", text.strip()):
        return (datetime.now(UTC) - timedelta(days=int(days[1]))).isoformat(timespec="seconds")
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise AbprofError(f"invalid date {text!r}", where=option, advice="write 2026-11-20 or 30d") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="seconds")


_CHOICE = (
    many("--cell", "ID|GLOB", "Only these cells; default: all."),
    text("--since", "DATE|30d", "Only nights since this date (UTC) or number of days.", _since, default=""),
    text("--series", "NAME", "Only this series of nights; default: all.", default=""),
    *("json", "repo", "runs_dir"),
)
_METRICS = "gpu_span, gpu_graph, gpu_kernels, gpu_sustained, wall or peak_mem_bytes; default: the judged metric."

verbs = typer.Typer(help="Print the results of many nights.", rich_markup_mode=None)
app.add_typer(verbs, name="history", short_help="Print results of nights: query, changes.")


@verbs.command("query")
@takes(text("--metric", "NAME", _METRICS, default=""), *_CHOICE)
def query(**values: Any) -> int:
    """Print the measured values as CSV, one row per night and cell."""
    from abprof.extras.nightly import COLUMNS

    rows = list(_history(values).table(values["series"], values["cell"], values["metric"], values["since"]))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if not values["json"]:
        writer.writerow(COLUMNS)
    for row in rows:
        if values["json"]:
            print(json.dumps(dict(zip(COLUMNS, row, strict=True))))
        else:  # no newline, control character or spreadsheet formula in a text
            writer.writerow([csv_cell(item) if isinstance(item, str) else item for item in row])
    return Exit.OK


@verbs.command("changes")
@takes(*_CHOICE)
def changes(**values: Any) -> int:
    """List changes of a cell's time, each confirmed by three nights, and changes of the whole machine's speed."""
    from abprof.extras.nightly import history_changes

    silent = True
    history = _history(values)
    for name in [values["series"]] if values["series"] else history.series():
        found, shifts = history_changes(history, name, values["cell"], values["since"])
        silent = silent and not found and not shifts
        if values["json"]:
            lists = {"changes": [asdict(it) for it in found], "shifts": [asdict(it) for it in shifts]}
            print(json.dumps({"series": name, **lists}))
            continue
        for shift in shifts:
            moved = f"machine shift, {signed(shift.pct)} in all {shift.cells} cells"
            print(visible(f"{name} night {shift.night}: {moved}"))
        for change in found:
            facts = f"{signed(change.pct)} ({change.because}), confirmed on night {change.found}"
            print(visible(f"{name} night {change.night}: {facts} {change.trend}"))
    if silent and not values["json"]:
        print("no change", file=sys.stderr)
    return Exit.OK


def _history(values: dict[str, Any]) -> History:
    """Return all nights in --runs-dir, or in runs/ of --repo. Print notes on unreadable runs to standard error. Raises
    AbprofError for an unknown series or cell."""
    from abprof.extras.nightly import read_history

    start = Path(values["repo"]).absolute()
    if not start.is_dir():
        raise AbprofError("no such folder", where=f"--repo {values['repo']}")
    root = next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)
    history = read_history(Path(values["runs_dir"] or root / "runs").absolute())
    names, known = history.series(), history.cells()
    for line in [*history.notes, *([] if known else ["no nights yet"])]:
        note(visible(line))
    if values["series"] and values["series"] not in names:
        advice = f"there are {', '.join(names)}"[:500] if names else "there are no nights yet"
        raise AbprofError(f"no series {values['series']!r}", where="--series", advice=advice)
    for cell in values["cell"] if known else ():
        if not history.cells([cell]):
            raise AbprofError(f"no cell matches {cell!r}", where="--cell", advice=f"there are {', '.join(known)}"[:500])
    return history
