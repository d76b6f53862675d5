"""`abprof nightly`: one night of a branch, as a timer starts it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abprof.cli.app import app
from abprof.cli.command import USAGE, Verb
from abprof.cli.options import RUN, options_from, takes
from abprof.cli.run import view_of
from abprof.records.errors import AbprofError, Exit

if TYPE_CHECKING:
    from abprof.extras.bot import NightIssue
    from abprof.extras.nightly import NightReport


@app.command("nightly", cls=Verb, short_help="A branch's head against its last judged commit.")
@takes(*(name for name in RUN if name != "devices"))
def nightly(
    branch: Annotated[str, typer.Option(help="The branch that is watched.")] = "main",
    against: Annotated[str, typer.Option(metavar="REF", help="Compare with this release too.")] = "",
    series: Annotated[str, typer.Option(metavar="NAME", help="What its nights are called; the branch's name.")] = "",
    summary: Annotated[str, typer.Option(metavar="FILE", help="Write a summary in Markdown.")] = "",
    issue: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="Keep an issue on GitHub up to date; the token is $GITHUB_TOKEN.")
    ] = "",
    keep_days: Annotated[float, typer.Option(min=0, help="How long rounds, logs and pages are kept.")] = 30.0,
    keep_nights: Annotated[int, typer.Option(min=1, help="The newest so many are never touched.")] = 10,
    **values: Any,
) -> int:
    """Compare the last judged commit of a branch with its head; on the first night profile the head alone.

    Takes the options of `abprof run` too (--preset, --only, --device, --runs-dir, --budget, ...). Prints one JSON line, and
    exits as a run does: 0 nothing slower, 1 slower or broken, 2 could not run, 4 not to be trusted. What was judged before
    is not measured again.
    """
    from abprof.extras.nightly import NightOptions, run_night

    with _refused_in_json():
        target = None
        if issue:
            from abprof.extras.bot import NightIssue

            target = NightIssue(issue)  # refuses a missing token before anything is measured
        _check_summary(summary)
        options, view = options_from((), values), view_of(values)
        chosen = NightOptions(branch, against, series, keep_days, keep_nights)
        return run_night(options, chosen, view, lambda report: _publish(report, summary, target)).exit_code


@contextlib.contextmanager
def _refused_in_json() -> Iterator[None]:
    """Print one JSON line for a night that failed, too."""
    try:
        yield
    except AbprofError as error:
        if "--json" not in sys.argv:  # with --json the command line prints the error itself
            _print({"did": "refused", "exit_code": int(Exit.CANNOT_RUN), **error.as_json()})
        raise
    except (typer.Exit, typer.Abort, BrokenPipeError, USAGE):
        raise
    except Exception as error:
        _print({"did": "refused", "exit_code": int(Exit.BUG), "error": {"what": f"a bug: {error!r}"[:500]}})
        raise


def _check_summary(summary: str) -> None:
    """Raises AbprofError for a path that cannot be written, before anything is measured."""
    path = Path(summary).absolute()
    if summary and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise AbprofError("no file can be written there", where=f"--summary {summary}", advice="name a file")


def _publish(report: NightReport, path: str, issue: NightIssue | None) -> None:
    """Print the night, write its summary, and update its issue; a failure of one does not stop the others."""
    from abprof.extras.nightly import summary
    from abprof.system.files import put

    _print(asdict(report))
    text = summary(report)
    try:
        if path:
            put(Path(path), text.encode())
    except (AbprofError, OSError) as error:
        print(f"abprof: the summary could not be written: {error}", file=sys.stderr)
    try:
        if issue and report.did != "nothing":
            done = issue.update(report.series, report.number, text, alert=report.exit_code != Exit.OK)
            print(f"abprof: issue: {done}", file=sys.stderr)
    except AbprofError as error:
        print(f"abprof: {error.line}", file=sys.stderr)


def _print(message: dict[str, Any]) -> None:
    """Print a message as one line of JSON, also with names of files and branches that are not valid Unicode."""
    print(json.dumps(message), flush=True)
