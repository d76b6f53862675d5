"""A bisection step by step: bisect.json, the run that answers a step's questions, and what comes next.

bisect.json is replaced whole after each step; `--resume` continues from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from abprof import session
from abprof.extras.bisect import search
from abprof.extras.bisect.search import Answer, Ask, Finding, History, Question
from abprof.measure.estimate import span
from abprof.measure.matrix import id_parts
from abprof.records import UNREADABLE, Arm, Block, Proof, Record, Run
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.sides import Link
from abprof.store import RUN
from abprof.system import files as disk
from abprof.system.console import View
from abprof.verdict import CellData, aggregate, stats
from abprof.verdict.cells import arm_id
from abprof.verdict.comparison import WITHHELD
from abprof.verdict.judgement import MOST_ATTEMPTS

FILE = "bisect.json"
SCHEMA = 2


class Row(Record, frozen=True, kw_only=True):
    """A cell in one variant: each row has a search of its own."""

    cell: str
    variant: str = ""

    @property
    def label(self) -> str:
        """The row for people."""
        return f"{self.cell} {self.variant}".strip()


class RowAnswer(Record, frozen=True, kw_only=True):
    """A row's question in one step, and its answer. `cut`: log ratio; `error`: probability that the answer is wrong."""

    row: Row
    cut: float
    error: float
    answer: Answer


class Step(Record, frozen=True, kw_only=True):
    """A commit measured against another, in a run folder of its own."""

    question: Question
    base: str
    commit: str
    run: str  # its folder, relative to the bisection's
    seconds: float
    rows: tuple[RowAnswer, ...]


class Found(Record, frozen=True, kw_only=True):
    """The findings of one row."""

    row: Row
    findings: tuple[Finding, ...]


class Bisection(Record, frozen=True, kw_only=True):
    """bisect.json. `links`: the commits after the good end up to the bad one, parents before children."""

    schema: int = SCHEMA
    status: Literal["running", "interrupted", "complete"] = "running"
    began: str  # ISO 8601, UTC
    options: Options
    good: str
    bad: str
    labels: dict[str, str]  # commit -> the ref that the user typed
    cells: tuple[str, ...]
    unchecked: tuple[str, ...] = ()  # workloads without a reference
    threshold: dict[str, float]  # cell -> per cent
    kernels: dict[str, str]  # cell -> kernel package
    links: tuple[Link, ...]
    holds: dict[str, dict[str, str]]  # kernel package -> commit -> its content
    step_seconds: float  # estimated before the first step
    steps: tuple[Step, ...] = ()
    found: tuple[Found, ...] = ()
    culprits: tuple[str, ...] = ()  # certain, in the order of the history

    @property
    def pace(self) -> float:
        """Seconds a step: the mean of those done, or the estimate."""
        return sum(step.seconds for step in self.steps) / len(self.steps) if self.steps else self.step_seconds

    @property
    def planned(self) -> int:
        """Steps that find one culprit: the ends, the halving, the culprit against its parent, the rest after it."""
        histories = (self.history(kernel) for kernel in self.holds)
        turns = (len(one.turns(one.path(one.good, self.bad))) - 1 for one in histories)
        return max((search.halvings(count) + 3 for count in turns), default=0)

    def history(self, kernel: str) -> History:
        """The commits, as far as this kernel package is concerned."""
        return History(self.good, {link.commit: link for link in self.links}, self.holds[kernel])


def write(folder: Path, of: Bisection) -> None:
    """Replace bisect.json. Raises AbprofError when the disk refuses."""
    data = msgspec.json.format(msgspec.json.encode(of), indent=1)
    disk.replace(folder / FILE, data + b"\n", lambda written: msgspec.json.decode(written.read_bytes(), type=Bisection))


def read(path: Path) -> tuple[Bisection, Path]:
    """A bisection and its folder; `path` is the folder or the file. Raises AbprofError."""
    folder = path.parent if path.name == FILE else path
    file = folder / FILE
    advice = "start a new bisection"
    try:
        data = disk.content(file)
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != SCHEMA:
            raise AbprofError(f"schema {schema}, this abprof reads {SCHEMA}", where=str(file), advice=advice)
        of = msgspec.json.decode(data, type=Bisection)
    except OSError:
        raise AbprofError("no bisection here", where=str(folder), advice=f"name a folder with a {FILE}") from None
    except UNREADABLE as error:
        raise AbprofError(f"not a bisection of this abprof: {error}", where=str(file), advice=advice) from None
    if wrong := _inconsistent(of):
        raise AbprofError(f"not a bisection of this abprof: {wrong}", where=str(file), advice=advice)
    return of, folder


class _Schema(msgspec.Struct):
    schema: int = 0


def _inconsistent(of: Bisection) -> str:
    """Why the file contradicts itself, or ""."""
    for cell in (*of.cells, *(one.row.cell for step in of.steps for one in step.rows)):
        if cell not in of.threshold or of.kernels.get(cell) not in of.holds:
            return f"no threshold or no kernel package of cell {cell[:200]}"
    commits, before = {link.commit for link in of.links}, set[str]()
    for link in of.links:
        if link.commit in before or not before.issuperset(commits.intersection(link.parents)):
            return f"commit {link.commit[:12]} stands before its parents"
        before.add(link.commit)
    return ""


# ---------------------------------------------------------------- from step to step


@dataclass
class _RowSearch:
    """One row's search and its next question; None when it has ended."""

    steps: search.Steps
    ask: Ask | None = None
    findings: tuple[Finding, ...] = ()

    def send(self, answer: Answer | None) -> None:
        try:
            self.ask = self.steps.send(answer) if answer else next(self.steps)
        except StopIteration as done:
            self.ask, self.findings = None, done.value


def _begin(of: Bisection, cell: str) -> _RowSearch:
    """The search of a row of this cell at its first question; ended if both ends hold the same package."""
    begun = _RowSearch(search.search(of.history(of.kernels[cell]), of.bad, stats.band(of.threshold[cell])[1]))
    begun.send(None)
    return begun


def replay(of: Bisection) -> dict[Row, _RowSearch]:
    """Every row's search after its answers. Raises AbprofError where an answer does not fit its question."""
    searches: dict[Row, _RowSearch] = {}
    for number, step in enumerate(of.steps, 1):
        for one in step.rows:
            row = searches.get(one.row) or searches.setdefault(one.row, _begin(of, one.row.cell))
            if row.ask is None or _place(row.ask) != (step.question, step.base, step.commit):
                what = f"step {number} does not answer the question of {one.row.label}"
                raise AbprofError(what, where=FILE, advice="another abprof wrote it: start a new bisection")
            row.send(one.answer)
    return searches


def finish(of: Bisection, folder: Path, view: View, show: Callable[[Bisection], None]) -> Bisection:
    """Take every step that is left. bisect.json is written after each, and `show` is called with it."""
    while True:
        searches = replay(of)
        found = tuple(Found(row=row, findings=each.findings) for row, each in searches.items() if each.ask is None)
        certain = {each.commits[0] for one in found for each in one.findings if each.kind == "culprit"}
        culprits = tuple(link.commit for link in of.links if link.commit in certain)
        of = msgspec.structs.replace(of, status="running", found=found, culprits=culprits)
        cells = {} if of.steps else {cell: ask for cell in of.cells if (ask := _begin(of, cell).ask)}
        rows = {row: each.ask for row, each in searches.items() if each.ask}
        if not cells and not rows:
            of = msgspec.structs.replace(of, status="complete")
        write(folder, of)
        show(of)
        if of.status == "complete":
            return of
        try:
            of = msgspec.structs.replace(of, steps=(*of.steps, _step(of, Questions(rows, cells), folder, view)))
        except KeyboardInterrupt:
            write(folder, msgspec.structs.replace(of, status="interrupted"))
            raise


def _step(of: Bisection, open_: Questions, folder: Path, view: View) -> Step:
    """Measure what most rows ask for. Raises KeyboardInterrupt if the run was interrupted, AbprofError if no end runs."""
    places = [_place(ask) for ask in (*open_.rows.values(), *open_.cells.values())]
    question, base, commit = chosen = max(places, key=places.count)
    rows = {row: ask for row, ask in open_.rows.items() if _place(ask) == chosen}
    questions = Questions(rows, open_.cells)
    planned = next(iter((*rows.values(), *open_.cells.values()))).planned
    number = len(of.steps) + 1
    left = f"up to {planned} between these ends, about {span(planned * of.pace)}"
    view.say(f"step {number} ({left}): {name(of, commit)} against {name(of, base)}")
    place = folder / "steps" / f"{number:02d}"
    cells = tuple(dict.fromkeys([*(row.cell for row in rows), *open_.cells]))
    options = msgspec.structs.replace(
        of.options,
        specs=(base, commit),
        cell=cells,
        workloads=() if of.options.command else tuple(dict.fromkeys(id_parts(cell)[0] for cell in cells)),
        runs_dir=str(place),
    )
    began = time.monotonic()
    run, made, answers = measure(options, questions, place, view)
    if run.status == "interrupted":
        raise KeyboardInterrupt
    for one in answers:
        view.say(f"  {one.row.label}: {question_text(one)} {answer_text(one.answer)}")
    if not of.steps and all(one.answer.result == "cannot" for one in answers):
        reasons = ", ".join(dict.fromkeys(one.answer.reason for one in answers))
        advice = "name ends that build and give right answers; base_ in front marks the good end"
        raise AbprofError(f"nothing can be measured at both ends: {reasons}", where="abprof bisect", advice=advice)
    run_folder, seconds = str(made.relative_to(folder)), time.monotonic() - began
    return Step(question=question, base=base, commit=commit, run=run_folder, seconds=seconds, rows=answers)


def _place(ask: Ask) -> tuple[Question, str, str]:
    return ask.question, ask.base, ask.commit


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Questions:
    """What a run must answer, by row. Before the first run a cell's variants are unknown: `cells` asks of each of its rows."""

    rows: Mapping[Row, Ask]
    cells: Mapping[str, Ask]

    def of(self, item: CellData) -> dict[Row, Ask]:
        """The questions on one cell."""
        known = {row: ask for row, ask in self.rows.items() if row.cell == item.cell.id}
        if item.cell.id not in self.cells:
            return known
        arms = map(Arm.of, item.states)
        variants = dict.fromkeys(arm.variant for arm in arms if arm.side in {"base", "target"} and not arm.peer)
        return {Row(cell=item.cell.id, variant=variant): self.cells[item.cell.id] for variant in variants}

    def open(self, run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> set[str]:
        """Cells that need one more epoch."""
        evidence = aggregate(run, blocks, proofs).values()
        return {item.cell.id for item in evidence if any(_open(item, *each) for each in self.of(item).items())}

    def answers(self, run: Run, blocks: Sequence[Block]) -> tuple[RowAnswer, ...]:
        """The run's answer to each question."""
        return tuple(
            RowAnswer(row=row, cut=ask.cut, error=ask.error, answer=_answer(run, item, row, ask))
            for item in aggregate(run, blocks, run.proofs).values()
            for row, ask in self.of(item).items()
        )


def measure(options: Options, questions: Questions, place: Path, view: View) -> tuple[Run, Path, tuple[RowAnswer, ...]]:
    """Run it in a folder under `place`, or continue the run there. What stays open when the budget is spent gets as much
    again, once. Raises AbprofError."""

    def more(folder: Path) -> tuple[Run, Path]:
        return session.rerun(folder, (), options.repo, options.budget, view, resume=True, until=questions.open)

    begun = [path.parent for path in sorted(place.glob(f"*/{RUN}"))]
    run, folder = more(begun[-1]) if begun else session.run(options, view, until=questions.open)
    blocks = session.judged(folder, lambda _: None)[1]
    if not begun and run.status == "complete" and questions.open(run, blocks, run.proofs):
        view.say("not clear yet: as many epochs again")
        run, folder = more(folder)
        blocks = session.judged(folder, lambda _: None)[1]
    return run, folder, questions.answers(run, blocks)


def _open(item: CellData, row: Row, ask: Ask) -> bool:
    """Whether a row needs another epoch: both sides run, and more epochs can still answer."""
    arms = arm_id("base", row.variant), arm_id("target", row.variant)
    states = [item.state(arm) for arm in arms]
    if item.cell.skip or item.attempts >= MOST_ATTEMPTS:
        return False
    if any(state.proof_broken or (state.settled and not state.runs) for state in states):
        return False
    if not all(state.settled for state in states):
        return True
    if any(state.status == "identical" for state in states):
        return False
    values = item.epoch_values(*arms)
    return len(values) < stats.LOOKS[-1] and search.side(values, ask.cut, ask.error, ask.within) is None


def _answer(run: Run, item: CellData, row: Row, ask: Ask) -> Answer:
    arms = arm_id("base", row.variant), arm_id("target", row.variant)
    if run.header and run.header.counts.get("tampered"):
        return Answer(result="unclear", reason="tampered")
    for prefix, state in zip(("base_", ""), map(item.state, arms), strict=True):
        if state.proof_broken or not state.runs:
            return Answer(result="cannot", reason=f"{prefix}{'proof' if state.proof_broken else state.status}")
    values = item.epoch_values(*arms)
    if not values:
        if any(item.state(arm).status == "identical" for arm in arms):
            return Answer(result="below", theta=0.0, low=0.0, high=0.0)
        return Answer(result="unclear", reason="not_measured")
    interval = stats.repeated_interval(values, 2 * ask.error)
    numbers = {"theta": interval.theta, "low": interval.low, "high": interval.high} if interval else {}
    epochs = interval.epochs if interval else len(values)
    side = search.side(values, ask.cut, ask.error, ask.within)
    doubt = _doubt(run, row, arms) or ("" if side else "epochs" if len(values) >= stats.LOOKS[-1] else "budget")
    return Answer(result="unclear" if doubt or not side else side, reason=doubt, epochs=epochs, **numbers)


def _doubt(run: Run, row: Row, arms: tuple[str, str]) -> str:
    """The reason that withholds the run's own verdict on this row, or ""."""
    if run.header and run.header.counts.get("controls_outside"):
        return "controls"
    mine = (one for one in run.comparisons if (one.cell, one.from_, one.to) == (row.cell, *arms))
    return next((reason for one in mine for reason in one.reasons if reason in WITHHELD), "")


# ---------------------------------------------------------------- in words


def name(of: Bisection, commit: str) -> str:
    """A commit for people: its first digits, with the first line of its message or the ref that the user typed."""
    known = next((link.subject for link in of.links if link.commit == commit), "") or of.labels.get(commit, "")
    return f"{commit[:10]} ({known})" if known and known != commit[:10] else commit[:10]


def question_text(one: RowAnswer) -> str:
    """The question of a row in a step."""
    return f"slower by more than {stats.percent(one.cut):.2f} %?"


def answer_text(answer: Answer) -> str:
    """An answer for people."""
    if answer.result == "cannot":
        return f"cannot be measured there ({answer.reason})"
    yes = {"below": "no", "above": "yes", "between": "yes, by a part of the whole", "unclear": "unclear"}[answer.result]
    return f"{yes}{f' ({answer.reason})' if answer.reason else ''}, {change_text(answer)}"


def change_text(answer: Answer) -> str:
    """The change of time with its interval."""
    if answer.theta is None or answer.low is None or answer.high is None:
        return answer.reason or "no interval yet"
    theta, low, high = map(stats.percent, (answer.theta, answer.low, answer.high))
    return f"{theta:+.2f} % of time [{low:+.2f}, {high:+.2f}]"
