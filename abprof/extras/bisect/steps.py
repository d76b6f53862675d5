"""A bisection step by step: bisect.json, the run that answers a step's questions, and what comes next.

bisect.json is replaced whole after each step; `--resume` continues from it.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from abprof import session
from abprof.builds import keys
from abprof.extras.bisect import search
from abprof.extras.bisect.search import Answer, Ask, Finding, History, Question, halvings
from abprof.measure import RunContext, continued, look_around, make_plan
from abprof.measure import run_context as holding
from abprof.measure.commands import NAME as COMMAND
from abprof.measure.commands import prepare
from abprof.measure.discovery import copy_workloads
from abprof.measure.estimate import epoch_seconds, span
from abprof.measure.matrix import id_parts
from abprof.records import UNREADABLE, Arm, Block, Proof, Record, Run, Side, arm_id, names
from abprof.records.errors import AbprofError
from abprof.records.options import Options
from abprof.report import sentences
from abprof.sides import Link
from abprof.store import RUN, runfolder
from abprof.system import files as disk
from abprof.system import processes as proc
from abprof.system.console import View
from abprof.verdict import CellData, aggregate, headline, stats

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
    if item.cell.skip or item.attempts >= stats.MOST_ATTEMPTS:
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
    return next((reason for one in mine for reason in one.reasons if reason in headline.WITHHELD), "")


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


# ---------------------------------------------------------------- the start


WORKLOADS = "workloads"  # in the bisection's folder: one judge for all steps, whatever becomes of the working tree


@contextlib.contextmanager
def planned(config: Options, view: View) -> Iterator[tuple[Bisection, RunContext, Path]]:
    """The bisection before its first step, and where it takes place; the folder holds the workloads while the block runs.

    Raises AbprofError for ends that are no good and bad end, and for all that a run would be refused for.
    """
    place = look_around(config, view)
    good, bad = _ends(place)
    with holding.signals(), proc.no_orphans(), tempfile.TemporaryDirectory() as logs:
        with holding.worktrees(place, f"{place.id}-bisect", view) as trees:
            if config.command:
                with holding.alone(place, view, wait=not place.options.no_wait):
                    began = time.monotonic()  # the command runs once at both ends: that says what it measures
                    head = prepare(place, trees, Path(logs), view).head
                    epoch = time.monotonic() - began
            else:
                head = make_plan(place, trees, Path(logs), view, dry=True).run
                epoch = epoch_seconds(head, peers=False)[1]
                copy_workloads(Path(trees[0].path).parent / WORKLOADS, Path(logs) / WORKLOADS)
        yield _state(place, good, bad, head, epoch), place, Path(logs) / WORKLOADS


def folder_of(of: Bisection, place: RunContext, workloads: Path) -> tuple[Bisection, Path]:
    """A folder of its own beside the run folders, with the workloads and the file in it. Raises AbprofError."""
    labels = names.safe_labels((of.labels[commit], commit) for commit in (of.good, of.bad))
    stamp = place.id.partition("-")[0]
    folder = runfolder.create(place.runs_dir, "-".join([stamp, "bisect", *labels])[:180])
    folder.logs.rmdir()
    if not of.options.command:
        copy_workloads(workloads, folder.path / WORKLOADS)
        options = msgspec.structs.replace(of.options, workloads_from=str((folder.path / WORKLOADS).absolute()))
        of = msgspec.structs.replace(of, options=options)
    write(folder.path, of)
    return of, folder.path


def of_run(path: Path, config: Options) -> Options:
    """The bisection of a run: its ends, every cell that got slower in it, and all else as it was measured there.

    Raises AbprofError for one in which no cell did, and for one that is not of commits.
    """
    run, _ = session.judged(path, lambda _: None)
    slower = [row for row in run.comparisons if row.verdict == "slower" and not row.with_peer]
    if not slower:
        raise AbprofError("no cell got slower in this run", where=f"--from-run {path}")
    side, *others = dict.fromkeys(Arm.of(row.to).side for row in slower)
    if others:
        what = f"cells got slower in {', '.join(run.side(one).label for one in (side, *others))}"
        advice = "one bisection has one bad end: abprof bisect GOOD BAD --cell ID"
        raise AbprofError(what, where=f"--from-run {path}", advice=advice)
    base, target = run.side("base"), run.side(side)
    for one in (base, target):
        if one.kind != "commit":
            what = f"{one.id} was {one.spec}, not a commit"
            raise AbprofError(what, where=f"--from-run {path}", advice="of commits: abprof bisect GOOD BAD")
    cells = dict.fromkeys(row.cell for row in slower)
    pythons = {"base": run.options.python.get("base"), "target": run.options.python.get(side)}
    return msgspec.structs.replace(
        continued.as_set_up(config, run),
        specs=(base.commit, target.commit),
        cell=tuple(cells),
        command=run.command.argv if run.command else (),
        workloads=() if run.command else tuple(dict.fromkeys(id_parts(cell)[0] for cell in cells)),
        python={id: path for id, path in pythons.items() if path},
        threshold=run.options.threshold,
        thresholds=run.options.thresholds,
        margin=run.options.margin,
    )


def _ends(place: RunContext) -> tuple[Side, Side]:
    if len(place.sides) != 2:
        raise AbprofError("a bisection has two ends", where="abprof bisect", advice="abprof bisect GOOD BAD")
    good, bad = place.sides
    for side in (good, bad):
        if side.kind == "dist":
            raise AbprofError("a release is no commit", where=side.spec, advice="name the tag it was made from")
        if side.kind != "commit":
            what = "the working tree is no commit" if side.kind == "worktree" else "it is no commit"
            raise AbprofError(what, where=side.spec, advice="commit it, or name a ref")
    if good.commit == bad.commit:
        what = f"both are commit {good.commit[:10]}: nothing lies between them"
        raise AbprofError(what, where=f"{good.spec} {bad.spec}")
    if not place.commits.is_ancestor(good.commit, bad.commit):
        raise AbprofError(
            f"{good.spec} is not an ancestor of {bad.spec}", where="abprof bisect", advice=_advice(place, good, bad)
        )
    return good, bad


def _advice(place: RunContext, good: Side, bad: Side) -> str:
    if place.commits.is_ancestor(bad.commit, good.commit):
        return f"it comes after it: abprof bisect {bad.spec} {good.spec}"
    common = place.commits.merge_base(good.commit, bad.commit)
    if common is None:
        return "they have no common ancestor here; in a shallow clone: git fetch --unshallow"
    return f"their merge base is: abprof bisect {common[:10]} {bad.spec}"


def _state(place: RunContext, good: Side, bad: Side, head: Run, epoch: float) -> Bisection:
    """`epoch`: seconds that one takes."""
    cells = tuple(cell for cell in head.cells if (cell.kernel or head.command) and not cell.skip)
    if not cells:
        raise AbprofError("no cell can be measured here", where="abprof bisect", advice="abprof list says why")
    kernels = {cell.id: cell.kernel or COMMAND for cell in cells}
    links = place.commits.between(good.commit, bad.commit)
    commits = tuple(dict.fromkeys([good.commit, *(c for link in links for c in (*link.parents, link.commit))]))
    # What may change a cell's time: its kernel package's folders; of a command, which may run anything, the whole tree.
    inputs: dict[str, tuple[str, ...]] = {COMMAND: ("",)}
    if not place.options.command:
        packages = place.packages(list(dict.fromkeys(kernels.values())))
        inputs = {kernel: keys.folders(package) for kernel, package in packages.items()}
    holds = {kernel: place.commits.contents(commits, folders) for kernel, folders in inputs.items()}
    options = msgspec.structs.replace(
        place.options,
        repo=str(place.root),
        no_peers=True,
        file=None,
        filled=(),
        kernels=(),
        only=(),
        set=(),
        peer=(),
        rebuild=False,
        dry_run=False,
    )
    return Bisection(
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        options=options,
        good=good.commit,
        bad=bad.commit,
        labels={side.commit: side.label for side in (good, bad)},
        cells=tuple(kernels),
        unchecked=sentences.lacking(head)[1],
        threshold={cell.id: head.options.threshold_of(cell.id) for cell in cells},
        kernels=kernels,
        links=links,
        holds=holds,
        step_seconds=stats.LOOKS[0] * epoch,
    )


def plan(of: Bisection) -> list[str]:
    """The plan in a few lines."""
    lines = [f"{len(of.links)} commits from {name(of, of.good)} to {name(of, of.bad)}", *weaker(of)]
    for kernel in dict.fromkeys(of.kernels.values()):
        history = of.history(kernel)
        path = history.path(of.good, of.bad)
        turns = len(history.turns(path)) - 1
        aside = f" of {len(path) - 1} along first parents" if len(path) - 1 < len(of.links) else ""
        halving = halvings(turns)
        lines.append(f"{kernel}: {turns}{aside} change its inputs: log2 of that is {halving} steps, and one each for the "
                     "ends, for the commit against its parent and for what is left after it")  # fmt: skip
    seconds = of.planned * of.step_seconds
    lines.append(f"{of.planned} steps for one culprit, about {span(seconds)} of measuring where all is clear")
    return lines


def weaker(of: Bisection) -> tuple[str, ...]:
    """The weaker guarantees of every step, one sentence each."""
    if of.options.command:
        return (sentences.in_one_line("reported"),)
    return (sentences.in_one_line("sides", ", ".join(of.unchecked)),) if of.unchecked else ()
