"""One night: plan what is new, measure it with `session.run`, search all nights for changes, and report."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from abprof import session
from abprof import sides as repo
from abprof.devices import lease
from abprof.extras.nightly import page, plan
from abprof.extras.nightly.changes import Change, Shift, find_changes, trends
from abprof.extras.nightly.index import NightRow, Query, open_index, unfinished
from abprof.measure.run_context import Place, look_around
from abprof.records import Night
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import Options
from abprof.records.visible import printable
from abprof.store import runfolder
from abprof.system import heartbeat
from abprof.system.console import View
from abprof.system.files import put
from abprof.verdict import guarantees

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
    keep_gib: float = 20.0  # size of all nights of the series
    keep_nights: int = 10  # the newest nights, which are never touched


@dataclass(frozen=True)
class NightRun:
    """The result of one run of the night."""

    kind: str
    base: str  # "" where the head was profiled alone
    head: str
    exit_code: int
    sentence: str
    counts: dict[str, int]
    run_dir: str
    weaker: tuple[str, ...] = ()  # weaker guarantees, a sentence each


@dataclass(frozen=True)
class NightReport:
    """The night as one record. `msgspec.to_builtins` of it is the JSON line on standard output."""

    did: str  # "reported" (a night that was killed before it could report), "first", "step", "against", joined by "+"; or "nothing"
    series: str
    number: int  # 0: nothing new
    head: str
    exit_code: int
    runs: tuple[NightRun, ...] = ()
    changes: tuple[Change, ...] = ()  # confirmed tonight
    shifts: tuple[Shift, ...] = ()  # of the machine, tonight
    notes: tuple[str, ...] = ()


def run_night(
    options: Options, nightly: NightOptions, view: View, report: Callable[[NightReport], None]
) -> NightReport:
    """Measure what is new, and pass the result to `report`. Raises AbprofError for what the user can fix, and while another
    nightly job runs on the same device and repository."""
    with _errors_name("--branch", nightly.branch):
        place = look_around(msgspec.structs.replace(options, specs=(nightly.branch,)), view)
    if place.sides[0].kind == "dist":
        raise AbprofError("a nightly job needs a branch: a release never moves", where=nightly.branch)
    series = nightly.series or place.sides[0].label
    with _one_job(place), _beating(place, series) as beat:
        made = _Night(place, nightly, series, beat, view).work()
        report(made)  # before the heartbeat records it: a job killed in between reports twice rather than never
        beat.end(made.did, made.exit_code, made.number)
        return made


# ---------------------------------------------------------------- one job at a time, with a heartbeat


@contextlib.contextmanager
def _one_job(place: Place) -> Iterator[None]:
    """Hold the lock of this device and repository. It ends with the process."""
    where = hashlib.sha256(os.fsencode(place.commits.common_dir)).hexdigest()[:12]
    name, label = f"nightly-{place.device.lease}-{where}", f"nightly {place.label}"
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lease(place.state, name, wait=False, label=label, say=lambda _: None))
        except AbprofError as busy:
            advice = "nothing is lost: the next one continues from the same commit"
            what = f"another nightly job is at work: {busy.what}"
            raise AbprofError(what, where=str(place.root), advice=advice) from None
        yield


class _Beat:
    """The heartbeat of a running job."""

    def __init__(self, place: Place, series: str) -> None:
        root, runs_dir = str(place.root), str(place.runs_dir)
        before = heartbeat.read(place.state, root, series)
        self.place = place
        self.record = heartbeat.Heartbeat(
            series=series,
            repo=root,
            runs_dir=runs_dir,
            began=time.time(),
            last_end=(before.ended or before.last_end) if before else None,
            reported=before.reported if before and before.runs_dir == runs_dir else None,
        )
        heartbeat.write(place.state, self.record)

    def reported(self, newest: int) -> int:
        """The newest night that was reported; if that is unknown, all nights so far count as reported."""
        if self.record.reported is None:
            self.record = msgspec.structs.replace(self.record, reported=newest)
            heartbeat.write(self.place.state, self.record)
        return self.record.reported or 0

    def end(self, did: str, code: int, number: int = 0) -> None:
        reported = None if self.record.reported is None else max(self.record.reported, number)
        over = {"ended": time.time(), "did": did, "exit_code": int(code), "reported": reported}
        heartbeat.write(self.place.state, msgspec.structs.replace(self.record, **over))


@contextlib.contextmanager
def _beating(place: Place, series: str) -> Iterator[_Beat]:
    """Write that the job began, and that it failed if it does."""
    beat = _Beat(place, series)
    try:
        yield beat
    except AbprofError as error:
        beat.end(f"failed: {error.line}", Exit.CANNOT_RUN)
        raise
    except Exception as error:
        beat.end(f"failed: {error!r}", Exit.BUG)
        raise


# ---------------------------------------------------------------- the work of a night


class _Night:
    """One night of a series."""

    def __init__(self, place: Place, options: NightOptions, series: str, beat: _Beat, view: View) -> None:
        self.place, self.options, self.series, self.beat, self.view = place, options, series, beat, view
        self.head = place.sides[0].commit
        place.runs_dir.mkdir(parents=True, exist_ok=True)

    def work(self) -> NightReport:
        with _errors_name("--against", self.options.against):
            release = self._commit(self.options.against) if self.options.against else ""
        fingerprint = plan.machine(self.place)
        machine = msgspec.json.encode(fingerprint, order="sorted").decode()
        tonight = plan.Tonight(self.head, release, plan.matrix_hash(self.place), machine)
        with open_index(self.place.runs_dir) as index:
            every = index.nights(self.series)
            notes = list(index.notes)
        number = 1 + max((night.number for night in every), default=0)
        reported = self.beat.reported(number - 1)
        nights, last = every, plan.last_judged(every)
        if last and last != self.head and not self._exists(last):
            notes.append(f"{last[:10]}, the last judged commit, is no longer in the repository: a new stretch begins")
            nights = plan.after(every, last)
        todo = plan.jobs(nights, tonight)
        unreported = [night for night in every if night.number > reported]
        if not todo and not unreported:
            return self._nothing(plan.given_up(nights, tonight), notes)
        if unreported:
            self.view.say(f"night {unreported[-1].number} was measured, but its job ended before it reported")
        done = [self._earlier(night) for night in unreported]
        for job in todo:
            about = Night(series=self.series, number=number, kind=job.kind, asked=tonight.matrix, machine=fingerprint)
            done.append(self._run(job, about))
        did = "+".join([*(["reported"] if unreported else []), *(job.kind for job in todo)])
        return self._report(number if todo else unreported[-1].number, reported, did, done, notes)

    def _nothing(self, given_up: str, notes: list[str]) -> NightReport:
        code = Exit.OK
        line = f"nothing new: {self.head[:10]} of {self.series} was already judged with this matrix on this machine"
        if given_up:
            code = Exit.CANNOT_RUN
            line = f"{self.head[:10]} could not be judged on {plan.MOST_TRIES} nights, and is not retried: {given_up}"
            notes.append(line)
        self.view.say(line)
        return NightReport("nothing", self.series, 0, self.head, code, notes=tuple(notes))

    def _earlier(self, night: NightRow) -> NightRun:
        """A run of a night that measured and did not report, from the index."""
        folder = self.place.runs_dir / night.folder
        code = night.exit_code
        if night.kind == "first" and night.heads and code == Exit.UNTRUSTED:
            code = Exit.OK
        weaker: tuple[str, ...] = ()
        with contextlib.suppress(AbprofError):  # the folder may have been removed
            weaker = guarantees.weaker(runfolder.read(folder)[0], _MOST_NAMED)
        return NightRun(night.kind, night.base, night.head, code, night.sentence, {}, str(folder), weaker)

    def _run(self, job: plan.Job, about: Night) -> NightRun:
        """One comparison, or the head alone. Continues a run of this night that was killed. ^C ends the whole night."""
        options = msgspec.structs.replace(self.place.options, specs=job.commits, night=about, file=None)
        resumed = None
        if folder := unfinished(self.place.runs_dir, about, job.commits):
            self.view.say(f"continuing {folder}, which did not finish")
            budget = self.place.options.budget
            try:
                resumed = session.rerun(folder, (), str(self.place.root), budget, self.view, resume=True)
            except AbprofError as error:  # the machine's software changed, or the folder is damaged
                self.view.say(f"it cannot be continued: {error.line}")
        run, path = resumed or session.run(options, self.view)
        if run.status == "interrupted":
            raise KeyboardInterrupt
        code, sentence, counts = Exit.CANNOT_RUN, "", dict[str, int]()
        if run.header:
            code, sentence, counts = Exit(run.header.exit_code), run.header.sentence, dict(run.header.counts)
        measured = any(seen.status == "ok" for seen in run.observations) and not counts.get("tampered")
        if job.kind == "first" and measured and code == Exit.UNTRUSTED:
            code = Exit.OK  # there is nothing to compare with yet
        base = job.commits[0] if len(job.commits) > 1 else ""
        weaker = guarantees.weaker(run, _MOST_NAMED)
        return NightRun(job.kind, base, job.commits[-1], code, sentence, counts, str(path), weaker)

    def _report(
        self, number: int, reported: int, did: str, done: Sequence[NightRun], notes: Sequence[str]
    ) -> NightReport:
        codes = [run.exit_code for run in done]
        changes, shifts, more = list[Change](), list[Shift](), list[str]()
        try:
            with open_index(self.place.runs_dir) as index:
                nights = index.nights(self.series)
                values = index.values(Query(series=self.series))
                changes, shifts = find_changes(list(trends(it for it in values if it[0].number > number - _LOOK_BACK)))
                put(self.place.runs_dir / page.FILE, page.history_page(index, self.series).encode())
            more = prune(self.place.runs_dir, nights, self.options)
        except (AbprofError, OSError) as error:  # the night was measured, and must be reported
            more = [f"the history could not be updated: {error}"]
            codes.append(Exit.UNTRUSTED)
        news = tuple(change for change in changes if change.found > reported)
        if any(change.pct > 0 and change.because != "machine" for change in news):
            codes.append(Exit.SLOWER)
        worst = (Exit.CANNOT_RUN, Exit.SLOWER, Exit.UNTRUSTED, Exit.OK)
        code = next((int(code) for code in worst if code in codes), max(codes, default=0))
        shifted = tuple(shift for shift in shifts if shift.night > reported)
        return NightReport(did, self.series, number, self.head, code, tuple(done), news, shifted, (*notes, *more))

    def _commit(self, spec: str) -> str:
        return repo.resolve(self.place.repository, (spec,))[0][0].commit

    def _exists(self, commit: str) -> bool:
        try:
            return bool(self._commit(commit))
        except AbprofError:
            return False


@contextlib.contextmanager
def _errors_name(option: str, ref: str) -> Iterator[None]:
    """Make an error about this ref name the option that it came from."""
    try:
        yield
    except AbprofError as error:
        if error.where or repr(ref) not in error.what:
            raise
        raise AbprofError(error.what, where=option, advice=error.advice) from error


# ---------------------------------------------------------------- retention


def prune(runs_dir: Path, nights: Sequence[NightRow], keep: NightOptions, now: datetime | None = None) -> list[str]:
    """Remove rounds, logs and pages of nights that are too old, and of the oldest ones beyond the size limit. `nights` of
    one series, in their order. Returns a line per night. A night without a readable date counts as new."""
    limit = (now or datetime.now(UTC)) - timedelta(days=keep.keep_days)
    newest = sorted({night.number for night in nights})[-keep.keep_nights :] if keep.keep_nights else []
    total, lines = sum(_size(runs_dir / night.folder) for night in nights), []
    old = [night for night in nights if night.number not in newest]
    for night in sorted(old, key=lambda night: _began(night) >= limit):  # by age first
        why = "its age" if _began(night) < limit else "the size of all nights"
        if why != "its age" and total <= keep.keep_gib * 2**30:
            break
        folder = runs_dir / night.folder
        before = _size(folder)
        extra = [path for path in folder.iterdir() if path.name not in _KEPT] if folder.is_dir() else []
        for path in extra:
            with contextlib.suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        total -= before - _size(folder)
        if extra:
            lines.append(f"{folder.name}: rounds, logs and pages removed because of {why}")
    return lines


def _began(night: NightRow) -> datetime:
    with contextlib.suppress(ValueError):
        when = datetime.fromisoformat(night.began)
        return when if when.tzinfo else when.replace(tzinfo=UTC)
    return datetime.max.replace(tzinfo=UTC)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


# ---------------------------------------------------------------- the summary


def summary(report: NightReport) -> str:
    """The night in Markdown, some thousand characters at most. Foreign text is shown as code."""
    answers = {Exit.OK: "nothing to do", Exit.SLOWER: "slower or broken, please read", Exit.UNTRUSTED: "not judged"}
    answer = "nothing new" if report.did == "nothing" else answers.get(Exit(report.exit_code), "could not run")
    number = f"Night {report.number}, head" if report.number else "Head"
    lines = [f"## abprof nightly, {_code(report.series)}: {answer}", "", f"{number} {_code(report.head[:10])}."]
    for run in report.runs:
        sides = f"{_code(run.base[:10])} with {_code(run.head[:10])}" if run.base else f"{_code(run.head[:10])} alone"
        lines += ["", f"- {run.kind}: {sides}: {_code(run.sentence)} ({_code(run.run_dir)})"]
        lines += [f"\n  **{_code(line, 2000)}**" for line in run.weaker]
    for shift in report.shifts:
        moved = f"all {shift.cells} cells moved together by {shift.pct:+.1f} % of time, with the same code"
        lines += ["", f"Machine shift: {moved}."]
    if report.changes:
        lines += ["", "| cell | since night | change of time | looks like | moved by |", "|---|--:|--:|---|---|"]
        for change in report.changes[:_MOST_CHANGES]:
            because = {"code": "the code", "machine": "the machine", "open": "not known"}[change.because]
            row = (_code(change.trend), str(change.night), f"{change.pct:+.1f} %", change.kind, because)
            lines.append(f"| {' | '.join(row)} |")
        if len(report.changes) > _MOST_CHANGES:
            lines += ["", f"{len(report.changes) - _MOST_CHANGES} more are in history.html."]
    lines += [f"\n{_code(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


def _code(text: str, most: int = 200) -> str:
    """A code span that nothing in the text can end: no mentions, no links, no markup."""
    clean = printable(text, most).replace("`", "'").replace("|", "¦")
    return f"`{clean or ' '}`"
