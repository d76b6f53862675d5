"""`abprof nightly`: compare a branch's head with its last judged commit each night, and find changes over many nights.

Each night makes one run folder and a `NightReport`; if a night is killed, its run stays unfinished, and the next night
measures the same commits again. `read_history` reads the `History` of all nights from these folders, `history_page`
draws their trends (history.html), and `cell_history` returns the nights of a run's cells.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from markupsafe import Markup

from abprof import session
from abprof import sides as repo
from abprof.builds import interpreter
from abprof.devices import lease
from abprof.extras.nightly.changes import LOOK_BACK, Change, Shift, cell_history, find_changes, history_changes, trends
from abprof.extras.nightly.history import COLUMNS, History, NightRow, read_history, read_night
from abprof.extras.nightly.page import FILE, history_page
from abprof.measure import RunContext, look_around
from abprof.records import Night
from abprof.records.errors import AbprofError, Exit
from abprof.records.options import File, Options
from abprof.report import environment, sentences
from abprof.report.text import code, markdown
from abprof.store import RUN
from abprof.system import processes as proc
from abprof.system import workload_files
from abprof.system.console import View
from abprof.system.files import put

__all__ = [
    "COLUMNS", "History", "NightReport", "cell_history", "history_changes", "history_page", "read_history", "run_night",
    "summary",
]  # fmt: skip
_MOST_NAMED = 5  # workloads named in a sentence
_MOST_CHANGES = 20  # changes listed in a summary
_MATRIX = ("kernels", "workloads", "workloads_from", "preset", "only", "set", "no_peers", "peer", "all")
_VERSIONS = """
import importlib.metadata, sys
print("python", sys.version.split()[0])
for one in importlib.metadata.distributions():
    one.name in ("torch", "triton", "numpy", "cupti-python") and print(one.name, one.version)
"""


@dataclass(frozen=True)
class NightReport:
    """The result of a night. `abprof nightly` prints it as a line of JSON on standard output."""

    did: str  # "first", "step" or "nothing"
    series: str
    number: int  # number of the night; 0: nothing was new, so nothing was measured
    head: str
    exit_code: int
    runs: tuple[NightRow, ...] = ()
    weaker: tuple[str, ...] = ()  # sentences on guarantees that the run lacks
    changes: tuple[Change, ...] = ()  # changes confirmed this night
    shifts: tuple[Shift, ...] = ()  # machine shifts of this night
    notes: tuple[str, ...] = ()


def run_night(options: Options, series: str, view: View, report: Callable[[NightReport], None]) -> NightReport:
    """Measure the branch in `options.specs` if its head is new, pass the result to `report`, and return it. `series`:
    name of the series of nights, by default the branch's name. Raises AbprofError if the night cannot be measured, or
    if another nightly job runs on the same device and repository."""
    place = look_around(options, view)
    if place.sides[0].kind == "dist":
        raise AbprofError("a nightly job needs a branch, not a release", where=place.sides[0].spec)
    where = hashlib.sha256(os.fsencode(place.commits.common_dir)).hexdigest()[:12]
    name, label = f"nightly-{place.device.lease}-{where}", f"nightly {place.label}"
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lease(place.state, name, wait=False, label=label, say=lambda _: None))
        except AbprofError as busy:
            what, advice = f"another nightly job is running: {busy.what}", "the next job continues from the same commit"
            raise AbprofError(what, where=str(place.root), advice=advice) from None
        series = series or place.sides[0].label
        made = _measure(place, series, view)
        report(made)
        return made


def _measure(place: RunContext, series: str, view: View) -> NightReport:
    def exists(commit: str) -> bool:
        with contextlib.suppress(AbprofError):
            return bool(repo.resolve(place.repository, (commit,)))
        return False

    place.runs_dir.mkdir(parents=True, exist_ok=True)
    head, machine, matrix = place.sides[0].commit, _machine(place), _matrix_hash(place)
    nights = read_history(place.runs_dir).nights(series)
    commits = commits_of(nights, head, matrix, msgspec.json.encode(machine, order="sorted").decode(), exists)
    if not commits:
        view.say(f"nothing new: {head[:10]} of {series} was already judged with this matrix on this machine")
        return NightReport("nothing", series, 0, head, int(Exit.OK))
    number = max((night.number for night in nights), default=0) + 1
    kind: Literal["first", "step"] = "step" if len(commits) > 1 else "first"
    about = Night(series=series, number=number, kind=kind, asked=matrix, machine=machine)
    options = msgspec.structs.replace(place.options, specs=commits, night=about, file=None)
    run, folder = session.run(options, view, past=lambda run, runs_dir: cell_history(runs_dir, run))
    if run.status == "interrupted":
        raise KeyboardInterrupt
    history, tonight = read_history(place.runs_dir), read_night(folder / RUN)
    recent = [it for it in history.values(series) if it[0].number > number - LOOK_BACK]
    found, shifts = find_changes(list(trends(recent)))
    put(place.runs_dir / FILE, history_page(history, series).encode())
    changes = tuple(change for change in found if change.found == number)
    codes = {tonight[0].exit_code if tonight else Exit.CANNOT_RUN}
    if any(change.pct > 0 and change.because != "machine" for change in changes):
        codes.add(Exit.SLOWER)
    code, runs = next(code for code in (2, 1, 4, 0) if code in codes), (tonight[0],) if tonight else ()
    weaker, now = sentences.weaker(run, _MOST_NAMED), tuple(shift for shift in shifts if shift.night == number)
    return NightReport(kind, series, number, head, int(code), runs, weaker, changes, now, history.notes)


def commits_of(
    nights: Sequence[NightRow], head: str, matrix: str, machine: str, exists: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the commits to measure: (base, head) or (head,); () if there is nothing new. `nights`: those of one
    series, in order.

    The base is the latest head of `nights` for which `exists` is true. Only the head is measured if there is no base,
    or if the base is the head and `matrix` or `machine` is new.
    """
    judged = dict.fromkeys(night.head for night in reversed(nights) if night.heads)
    last = next((commit for commit in judged if commit == head or exists(commit)), head)
    tonight = (head, matrix, machine)
    same = [night for night in nights if night.settled and (night.head, night.matrix, night.machine) == tonight]
    if last == head:
        return () if same else (head,)
    return () if any(night.base == last for night in same) else (last, head)


def _matrix_hash(place: RunContext) -> str:
    options = place.options
    parts = [msgspec.json.encode({name: getattr(options, name) for name in _MATRIX}, order="sorted")]
    source = options.workloads_from
    if source != "target" and source not in {side.id for side in place.sides}:  # a side's workloads are in its commit
        file = options.file or File()
        folder = Path(source) if source else place.root / (file.workloads or "workloads")
        folders = [folder, *(place.root / name for name in file.benchmarks)]
        parts += [workload_files.content(each).encode() for each in folders]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _machine(place: RunContext) -> dict[str, str]:
    found = place.device.machine()
    facts = {"host": "" if found.uuid else found.host, "device": found.device, "uuid": found.uuid, **found.facts}
    python = interpreter(place.options, "base")
    facts |= dict(line.split(" ", 1) for line in (proc.output([python, "-c", _VERSIONS]) or "").splitlines())
    if Path(python) != Path(sys.executable):
        facts["python"] = python
    return {name: facts[name] for name in sorted(facts) if facts[name]}


def summary(report: NightReport) -> str:
    """Return a summary of the night in Markdown. The layout is templates/night.md."""
    answers = {Exit.OK: "nothing to do", Exit.SLOWER: "slower or broken, please read", Exit.UNTRUSTED: "not judged"}
    answer = "nothing new" if report.did == "nothing" else answers.get(Exit(report.exit_code), "could not run")
    pages = environment(markdown)
    pages.filters["code_or_blank"] = lambda text, limit=200: code(text, limit) or Markup("` `")
    return pages.get_template("night.md").render(report=report, answer=answer, most=_MOST_CHANGES)
