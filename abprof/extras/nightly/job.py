"""One night: plan what is new, measure it with `session.run`, search all nights for changes, and report."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from markupsafe import Markup

from abprof import session
from abprof import sides as repo
from abprof.devices import lease
from abprof.extras.nightly import page, plan
from abprof.extras.nightly.changes import Change, Shift, find_changes, trends
from abprof.extras.nightly.index import NightRow, Query, open_index
from abprof.measure import RunContext, look_around
from abprof.records import Night
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import Options
from abprof.report import sentences
from abprof.report.render import environment
from abprof.report.text import code, markdown
from abprof.store import runfolder
from abprof.system import heartbeat
from abprof.system.console import View
from abprof.system.files import put
from abprof.system.heartbeat import Heartbeat

_LOOK_BACK = 200  # nights that are searched for changes; the page shows all
_MOST_NAMED = 5  # workloads named in a sentence
_MOST_CHANGES = 20  # listed in a summary
_KEPT = frozenset({"run.json", "report.md", ".gitignore"})  # of every night, so that the index can be rebuilt


@dataclass(frozen=True)
class NightOptions:
    """Options of `abprof nightly` beside those of `abprof run`."""

    branch: str = "main"
    against: str = ""  # a fixed release to compare with, too
    series: str = ""  # "": the branch's name
    keep_days: float = 30.0  # age after which rounds, logs, traces, tables and pages are removed
    keep_nights: int = 10  # the newest nights, which are never touched


@dataclass(frozen=True)
class NightReport:
    """The night as one record: the JSON line on standard output."""

    did: str  # kinds of runs, joined by "+"; "reported" for a night whose job was killed before it reported; or "nothing"
    series: str
    number: int  # 0: nothing new
    head: str
    exit_code: int
    runs: tuple[NightRow, ...] = ()  # of all nights since the last report
    weaker: tuple[str, ...] = ()  # weaker guarantees of these runs, a sentence each
    changes: tuple[Change, ...] = ()  # confirmed since the last report
    shifts: tuple[Shift, ...] = ()  # of the machine, since the last report
    notes: tuple[str, ...] = ()


def run_night(
    options: Options, nightly: NightOptions, view: View, report: Callable[[NightReport], None]
) -> NightReport:
    """Measure what is new, and pass the result to `report`. Raises AbprofError for what the user can fix, and while another
    nightly job runs on the same device and repository."""
    place = look_around(msgspec.structs.replace(options, specs=(nightly.branch,)), view)
    if place.sides[0].kind == "dist":
        raise AbprofError("a nightly job needs a branch: a release never moves", where=nightly.branch)
    where = hashlib.sha256(os.fsencode(place.commits.common_dir)).hexdigest()[:12]
    name, label = f"nightly-{place.device.lease}-{where}", f"nightly {place.label}"
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lease(place.state, name, wait=False, label=label, say=lambda _: None))
        except AbprofError as busy:
            advice = "nothing is lost: the next one continues from the same commit"
            what = f"another nightly job is at work: {busy.what}"
            raise AbprofError(what, where=str(place.root), advice=advice) from None
        series = nightly.series or place.sides[0].label
        beat = held.enter_context(heartbeat.beating(place.state, str(place.root), series, str(place.runs_dir)))
        made = _measure(place, nightly, series, beat, view)
        report(made)  # before the heartbeat records it: a job killed in between reports twice rather than never
        beat.end(made.did, made.exit_code, made.number)
        return made


def _measure(place: RunContext, nightly: NightOptions, series: str, beat: Heartbeat, view: View) -> NightReport:
    """Measure what is new; the report is of all nights since the last one that was reported."""

    def commit(spec: str) -> str:
        return repo.resolve(place.repository, (spec,))[0][0].commit

    def exists(spec: str) -> bool:
        with contextlib.suppress(AbprofError):
            return bool(commit(spec))
        return False

    place.runs_dir.mkdir(parents=True, exist_ok=True)
    head, release = place.sides[0].commit, commit(nightly.against) if nightly.against else ""
    machine, matrix = plan.machine(place), plan.matrix_hash(place)
    tonight = plan.Tonight(head, release, matrix, msgspec.json.encode(machine, order="sorted").decode())
    with open_index(place.runs_dir) as index:
        nights = index.nights(series)
    newest = max((night.number for night in nights), default=0)
    todo, given_up = plan.jobs(nights, tonight, exists)
    reported = beat.report_from(newest)
    if not todo and newest <= reported:
        line = f"nothing new: {head[:10]} of {series} was already judged with this matrix on this machine"
        if given_up:
            line = f"{head[:10]} could not be judged on {plan.MOST_TRIES} nights, and is not retried: {given_up}"
        view.say(line)
        code = Exit.CANNOT_RUN if given_up else Exit.OK
        return NightReport("nothing", series, 0, head, int(code), notes=(line,) if given_up else ())
    if newest > reported:
        view.say(f"night {newest} was measured, but its job ended before it reported")
    for job in todo:
        about = Night(series=series, number=newest + 1, kind=job.kind, asked=matrix, machine=machine)
        made, _ = session.run(msgspec.structs.replace(place.options, specs=job.commits, night=about, file=None), view)
        if made.status == "interrupted":
            raise KeyboardInterrupt
    with open_index(place.runs_dir) as index:
        nights = index.nights(series)
        recent = (it for it in index.values(Query(series=series)) if it[0].number > reported - _LOOK_BACK)
        changes, shifts = find_changes(list(trends(recent)))
        put(place.runs_dir / page.FILE, page.history_page(index, series).encode())
        notes = [*index.notes, *prune(place.runs_dir, nights, nightly)]
    runs = tuple(night for night in nights if night.number > reported)
    weaker: dict[str, None] = {}
    for run in runs:
        with contextlib.suppress(AbprofError):  # the folder may have been removed
            weaker |= dict.fromkeys(sentences.weaker(runfolder.read(place.runs_dir / run.folder)[0], _MOST_NAMED))
    changes = [change for change in changes if change.found > reported]
    codes = {run.exit_code for run in runs}
    if any(change.pct > 0 and change.because != "machine" for change in changes):
        codes.add(Exit.SLOWER)
    worst = (Exit.CANNOT_RUN, Exit.SLOWER, Exit.UNTRUSTED, Exit.OK)
    return NightReport(
        did="+".join([*(["reported"] if newest > reported else []), *(job.kind for job in todo)]),
        series=series,
        number=newest + bool(todo),
        head=head,
        exit_code=int(next((code for code in worst if code in codes), Exit.CANNOT_RUN)),
        runs=runs,
        weaker=tuple(weaker),
        changes=tuple(changes),
        shifts=tuple(shift for shift in shifts if shift.night > reported),
        notes=tuple(notes),
    )


# ---------------------------------------------------------------- retention


def prune(runs_dir: Path, nights: Sequence[NightRow], keep: NightOptions, now: datetime | None = None) -> list[str]:
    """Remove rounds, logs and pages of nights older than `keep_days`, but of the newest `keep_nights`. Returns a line for
    each. `nights`: of one series, in their order."""
    limit = f"{(now or datetime.now(UTC)) - timedelta(days=keep.keep_days):%Y-%m-%dT%H:%M:%S}"
    newest = sorted({night.number for night in nights})[-keep.keep_nights :]
    lines = []
    for night in nights:
        folder = runs_dir / night.folder
        if night.number in newest or night.began >= limit or not folder.is_dir():
            continue
        old = [path for path in folder.iterdir() if path.name not in _KEPT]
        for path in old:
            with contextlib.suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        if old:
            lines.append(f"{folder.name}: rounds, logs and pages removed because of its age")
    return lines


def summary(report: NightReport) -> str:
    """The night in Markdown, some thousand characters at most; templates/night.md has the layout. Foreign text is shown as
    code."""
    answers = {Exit.OK: "nothing to do", Exit.SLOWER: "slower or broken, please read", Exit.UNTRUSTED: "not judged"}
    answer = "nothing new" if report.did == "nothing" else answers.get(Exit(report.exit_code), "could not run")
    pages = environment(markdown)
    pages.filters["code"] = lambda text, limit=200: code(text, limit) or Markup("` `")
    return pages.get_template("night.md").render(report=report, answer=answer, most=_MOST_CHANGES)
