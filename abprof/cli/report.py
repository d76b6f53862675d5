"""Define `abprof report`, `compare` and `scripts`, which write reports and scripts from finished runs."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from abprof.cli.app import Verb, app, note, refuse, warn
from abprof.cli.options import MATRIX, RESULT_JSON, RunOrRefs, flag, one_of, options_from, takes, text, view_of
from abprof.cli.run import show
from abprof.records import filters
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import GPU_THRESHOLD
from abprof.system import files as disk

_FORMATS = ("html", "md", "csv", "json", "png", "junit", "bmf", "action", "legacy", "artifact")


@app.command("report", cls=Verb, short_help="Judge a run again and rewrite its reports.")
@takes(
    text("--format", "|".join(_FORMATS), "Print the run in this format; write no file.", one_of(*_FORMATS)),
    flag("--open", "Open report.html in the browser."),
    flag("--all", "Show unchanged cells too."),
    RESULT_JSON,
)
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN [RUN2]", help="A run folder; two are compared.")],
    **values: Any,
) -> int:
    """Judge a run again from its rounds and rewrite its reports, print the run in one format, or compare two runs."""
    from abprof import session

    format = values["format"]
    if len(runs) > 2:
        raise AbprofError(f"{len(runs)} runs given", where="abprof report", advice="give one run, or two to compare")
    if format and (values["open"] or values["json"]):
        other = "--open" if values["open"] else "--json"
        raise AbprofError(f"--format {format} with {other}", advice="leave one of them out")
    if len(runs) == 2:
        if values["open"] or format not in (None, "json") or values["json"] == "summary":
            one = f"--format {format}" if format else "--json=summary"
            what = f"{'--open' if values['open'] else one} shows one run, but two are given"
            raise AbprofError(what, where="abprof report", advice="leave it out for a table, or give --json")
        _compare(runs, json=bool(values["json"] or format))
    elif format:
        _print(format, Path(runs[0]))
    else:
        done = session.report(Path(runs[0]))
        show(done, values)
        page = (done[1] / "report.html").resolve().as_uri()
        if values["open"] and not webbrowser.open(page):
            note(f"no browser could be started; the page is {page}")
    return Exit.OK


def _print(format: str, path: Path) -> None:
    from abprof import session
    from abprof.report import legacy, rendered

    run, blocks = session.judged(path, warn)
    if format == "legacy":
        folder = path.parent if path.is_file() else path
        for name, content in legacy.files(run, blocks).items():
            print(disk.put(folder / "legacy" / name, content.encode()))
        return
    if format == "artifact":
        from abprof.extras.bot import encode, make_notice

        made = encode(make_notice(run))
    else:
        made = rendered(run, blocks, format)
    sys.stdout.buffer.write(made)


def _compare(runs: Sequence[str], *, json: bool) -> None:
    from abprof import session
    from abprof.report import terminal

    table, notes, sentence = terminal.compare(*(session.judged(Path(run), note)[0] for run in runs))
    if json:
        rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
        print(dumps({"sentence": sentence, "notes": notes, "rows": rows}, indent=1))
    else:
        terminal.print_tables([table] if table.rows else [], notes, sentence)


@app.command("compare", short_help="Compare two recordings of other benchmark tools.")
@takes("threshold")
def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE")],
    target: Annotated[Path, typer.Argument(metavar="TARGET")],
    out: Annotated[Path | None, typer.Argument(metavar="[OUT.csv]", help="Also write the table to this file.")] = None,
    **values: Any,
) -> int:
    """Compare two recordings of one tool: JSON of nvbench, pytest-benchmark, Google Benchmark or github-action-benchmark,
    or profile CSVs of abprof and of the older branch-profile scripts.

    There are no verdicts: such recordings were not measured in turns. Recordings of different devices are refused.
    """
    from abprof.report import recordings, suite_csv, terminal

    if not (base.exists() or target.exists()):
        advice = f"two refs are compared by: abprof {base} {target}"
        raise AbprofError("no such files", where=f"{base}, {target}", advice=advice)
    if base.is_dir():
        advice = f"two runs are compared by: abprof report {base} {target}"
        raise AbprofError("is a folder", where=str(base), advice=advice)
    threshold = values["threshold"] or GPU_THRESHOLD
    if found := recordings.compare(base, target, threshold, out):
        table, notes, sentence = found
        terminal.print_tables([table], notes, sentence)
    else:
        sys.stdout.write(suite_csv.compare(base, target, out, threshold=threshold))
    return Exit.OK


@app.command("scripts", short_help="Write scripts for nsys, ncu and abprof.")
@takes(
    text("--out", "DIR", "Folder for the scripts; default: RUN/scripts; without a run ./abprof-scripts."),
    *("repo", *(name for name in MATRIX if name != "kernels"), "device", "python", "quiet"),
)
def scripts(ctx: typer.Context, of: RunOrRefs, **values: Any) -> int:
    """Write nvtx_analysis.sh (Nsight Systems), ncu_analysis.sh (Nsight Compute) and compare_analysis.sh (abprof itself)
    for the cells and commits of a run, or of refs that are not measured yet.

    This command measures nothing: the scripts call `abprof run-cell` and `abprof run`.
    """
    from abprof import session
    from abprof.report.scripts import scripts as made
    from abprof.store import RUN

    path, view = Path(of[0]), view_of(values)
    if len(of) == 1 and (path.is_file() or (path / RUN).is_file()):
        advice = "leave it out; --only chooses cells"
        refuse(ctx, "a run keeps its own options", but=("of", "repo", "out", "only", "quiet"), advice=advice)
        run, _ = session.judged(path, warn)
        cells, folder = filters.choose(run, values["only"]), (path.parent if path.is_file() else path) / "scripts"
    else:
        run = session.dry_run(options_from(of, values, dry_run=True), view)
        for cell, reason in dict.fromkeys((seen.cell, seen.reason) for seen in run.observations):
            view.warn(f"{cell} is broken, so it is left out: {reason}")
        cells, folder = run.cells, Path("abprof-scripts")
    for name, content in made(run, cells, Path(values["repo"]).absolute()).items():
        written = disk.put(Path(values["out"] or folder) / name, content.encode())
        written.chmod(0o755)
        print(written)
    return Exit.OK
