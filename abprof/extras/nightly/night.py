"""One night: what is to be done is planned from the nights there are, done by `session.run`, and told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from abprof import session
from abprof import sides as repo
from abprof.extras.history.changes import Change, find
from abprof.extras.history.fleet import Shift
from abprof.extras.history.index import Index, Question, Row, opened
from abprof.extras.history.night import begun
from abprof.extras.history.series import trends
from abprof.extras.nightly import keep, plan, question
from abprof.extras.nightly.at_work import Beat, alone, beating
from abprof.measure.run_context import Place, look_around
from abprof.records import Night, Run
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import Options
from abprof.store import runfolder
from abprof.system.console import View
from abprof.system.files import put
from abprof.verdict import guarantees

LOOK_BACK = 200  # nights in which changes are looked for; the page looks at all
_NAMED = 5  # workloads that are called by name where a guarantee is weaker


@dataclass(frozen=True)
class Wish:
    """What was asked of the nightly job, beside what every run can be asked."""

    branch: str = "main"
    against: str = ""  # a fixed release
    series: str = ""  # "": the branch's name
    keep: keep.Keep = field(default_factory=keep.Keep)
    page: bool = True


@dataclass(frozen=True)
class Done:
    """What one run of the night came to."""

    kind: str
    base: str  # "" where the head was profiled alone
    head: str
    exit_code: int
    sentence: str
    counts: dict[str, int]
    run_dir: str
    weaker: tuple[str, ...] = ()  # what the run vouches for less, as its own pages say it


@dataclass(frozen=True)
class Report:
    """The night in one record: what is printed, told and sent."""

    did: str  # told (of nights that were killed before they could), first, step, against, joined by "+"; or nothing
    series: str
    number: int  # 0: nothing new
    head: str
    exit_code: int
    runs: tuple[Done, ...] = ()
    changes: tuple[Change, ...] = ()  # that are suspected now, or were confirmed tonight
    shifts: tuple[Shift, ...] = ()  # the machine's, tonight
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The line on standard output."""
        loose: dict[str, Any] = msgspec.to_builtins(self)
        return loose


def night(config: Options, wish: Wish, view: View, tell: Callable[[Report], None]) -> Report:
    """Do what this night asks for. Raises AbprofError for what a person can mend, also when another nightly job is at work."""
    with _asked_by("--branch", wish.branch):
        place = look_around(msgspec.structs.replace(config, specs=(wish.branch,)), view)
    if place.sides[0].kind == "dist":
        raise AbprofError("a night watches a branch, and a release never moves", where=wish.branch)
    series = wish.series or place.sides[0].label
    with alone(place), beating(place, series) as beat:
        report = _work(place, wish, series, beat, view)
        tell(report)  # before it counts as told: killed in between, it is told twice rather than never
        beat.done = (report.did, report.exit_code, report.number)
        return report


def _work(place: Place, wish: Wish, series: str, beat: Beat, view: View) -> Report:
    """What nights before could not tell is told with what is measured now."""
    with _asked_by("--against", wish.against):
        head, release = place.sides[0].commit, _commit(place, wish.against)
    machine = question.machine(place)
    tonight = plan.Tonight(head, release, question.asked(place), _text(machine))
    with _index(place) as index:
        everything = nights = index.nights(series)
        notes = list(index.notes)
    number = plan.number_of(nights)
    told = beat.knows(number - 1)
    last = plan.last(nights)
    if last and last != head and not _known(place, last):
        what = "which was judged last, is no longer in the repository: its successor begins a new stretch"
        notes.append(f"{last[:10]}, {what}")
        nights = plan.after(nights, last)
    todo = plan.jobs(nights, tonight)
    untold = [night for night in everything if night.number > told]
    if untold:
        view.say(f"night {untold[-1].number} was measured, and ended before it could tell")
    elif not todo and (said := plan.given_up(nights, tonight)):
        line = f"{head[:10]} could not be judged on {plan.MOST_TRIES} nights and is not tried again: {said}"
        view.say(line)
        return Report("nothing", series, 0, head, Exit.CANNOT_RUN, notes=(*notes, line))
    elif not todo:
        view.say(f"nothing new: {head[:10]} of {series} has been judged with this matrix on this machine")
        return Report("nothing", series, 0, head, Exit.OK, notes=tuple(notes))
    done = [_again(place, night) for night in untold]
    done += [
        _run(place, job, Night(series=series, number=number, kind=job.kind, asked=tonight.asked, machine=machine), view)
        for job in todo
    ]
    did = "+".join([*(["told"] if untold else []), *(job.kind for job in todo)])
    return _report(place, wish, _Since(series, number if todo else untold[-1].number, head, told), did, done, notes)


@dataclass(frozen=True)
class _Since:
    """What is reported: a series up to this night, from after the night that was told last."""

    series: str
    number: int
    head: str
    told: int


def _report(place: Place, wish: Wish, of: _Since, did: str, done: Sequence[Done], notes: Sequence[str]) -> Report:
    codes = [run.exit_code for run in done]
    try:
        changes, shifts, more = _after(place, wish, of)
    except (AbprofError, OSError) as error:  # the night has been measured, and must be told
        changes, shifts, more = (), (), [f"what many nights say together is not known: {error}"]
        codes.append(Exit.UNTRUSTED)
    if any(change.state == "confirmed" and change.pct > 0 and change.because != "machine" for change in changes):
        codes.append(Exit.SLOWER)
    return Report(did, of.series, of.number, of.head, _worst(codes), tuple(done), changes, shifts, (*notes, *more))


def _again(place: Place, night: Row) -> Done:
    """A run of a night that is over, from the index."""
    code = Exit.OK if night.kind == "first" and night.heads and night.exit_code == Exit.UNTRUSTED else night.exit_code
    folder = place.runs_dir / night.folder
    try:
        weaker = guarantees.weaker(runfolder.read(folder)[0], _NAMED)
    except AbprofError:  # somebody removed it: the index alone has it
        weaker = ()
    return Done(night.kind, night.base, night.head, code, night.sentence, {}, str(folder), weaker)


def _run(place: Place, job: plan.Job, about: Night, view: View) -> Done:
    """One comparison, or the head alone, as a run folder of its own: one that was begun on a night that was killed, or a new
    one. ^C ends the whole night."""
    config = msgspec.structs.replace(place.options, specs=job.commits, night=about, file=None)
    run, folder = _gone_on_with(place, job, about, view) or session.run(config, view)
    if run.status == "interrupted":
        raise KeyboardInterrupt
    header = run.header
    code = header.exit_code if header else Exit.CANNOT_RUN
    base = job.commits[0] if len(job.commits) > 1 else ""
    sentence, counts = (header.sentence, dict(header.counts)) if header else ("", {})
    code, weaker = _first_is_no_failure(job, run, code), guarantees.weaker(run, _NAMED)
    return Done(job.kind, base, job.commits[-1], code, sentence, counts, str(folder), weaker)


def _gone_on_with(place: Place, job: plan.Job, about: Night, view: View) -> tuple[Run, Path] | None:
    """The rest of the same night's run, where one was begun and did not end, and can be gone on with; else None."""
    folder = begun(place.runs_dir, about, job.commits)
    if folder is None:
        return None
    view.say(f"goes on with {folder}, which was begun and did not end")
    try:
        return session.rerun(folder, (), str(place.root), place.options.budget, view, resume=True)
    except AbprofError as error:  # the machine's software is another by now, or its file is spoilt
        view.say(f"that can't be gone on with: {error.line}")
        return None


def _first_is_no_failure(job: plan.Job, run: Run, code: int) -> int:
    """A first night that measured anything has judged what it could: there is nothing yet to compare with. One whose files
    changed while it ran has measured nothing that can be relied on."""
    measured = any(seen.status == "ok" for seen in run.observations)
    tampered = bool(run.header and run.header.counts.get("tampered"))
    return Exit.OK if job.kind == "first" and measured and not tampered and code == Exit.UNTRUSTED else code


def _after(place: Place, wish: Wish, of: _Since) -> tuple[tuple[Change, ...], tuple[Shift, ...], list[str]]:
    """The changes and shifts that were not told, the page, and what was removed of old nights."""
    notes: list[str] = []
    with _index(place) as index:
        nights = index.nights(of.series)
        rows = (pair for pair in index.values(Question(series=of.series)) if pair[0].number > of.number - LOOK_BACK)
        changes, shifts = find(list(trends(rows)))
        if wish.page:
            from abprof.extras.history import page as history

            try:
                put(place.runs_dir / history.FILE, history.page(index, of.series).encode())
            except AbprofError as error:
                notes.append(error.line)
    notes += keep.prune(place.runs_dir, nights, wish.keep)
    news = [change for change in changes if change.found > of.told]
    now = tuple(change for change in news if change.state == "confirmed" or change.found == of.number)
    return now, tuple(shift for shift in shifts if shift.night > of.told), notes


@contextlib.contextmanager
def _index(place: Place) -> Iterator[Index]:
    place.runs_dir.mkdir(parents=True, exist_ok=True)
    with opened(place.runs_dir) as index:
        yield index


@contextlib.contextmanager
def _asked_by(option: str, ref: str) -> Iterator[None]:
    """While the block runs, an error about this ref names the option that it came by."""
    try:
        yield
    except AbprofError as error:
        if error.where or repr(ref) not in error.what:
            raise
        raise AbprofError(error.what, where=option, advice=error.advice) from error


def _commit(place: Place, spec: str) -> str:
    if not spec:
        return ""
    sides, _ = repo.resolve(place.repository, (spec,))
    return sides[0].commit


def _known(place: Place, commit: str) -> bool:
    try:
        return bool(_commit(place, commit))
    except AbprofError:
        return False


def _text(machine: dict[str, str]) -> str:
    return msgspec.json.encode(machine, order="sorted").decode()


def _worst(codes: Sequence[int]) -> int:
    order = (Exit.CANNOT_RUN, Exit.SLOWER, Exit.UNTRUSTED, Exit.OK)
    return next((int(code) for code in order if code in codes), max(codes, default=0))


__all__ = ["Done", "Report", "Row", "Wish", "night"]
