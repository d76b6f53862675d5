"""`abprof bisect GOOD BAD`: find the commits that made cells slower, by an ordinary run for each step.

`begin` makes a new bisection from Options with two refs, `read` loads an earlier one from its folder, and `finish`
measures until the search ends; each step measures one commit, for one or more cells, and rewrites bisect.json.
search.py chooses the next commit.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
from markupsafe import Markup, escape

from abprof import session, store
from abprof.extras.bisect.search import Answer, Ask, Finding, History, Question, halvings, search, side
from abprof.measure import Bench, Estimate, Plan, RunContext, look_around
from abprof.records import COMMAND, LOOKS, UNREADABLE, Arm, Block, Proof, Record, Run, Side, arm_id, names, split_spec
from abprof.records.errors import AbprofError
from abprof.records.options import Options, upgraded
from abprof.records.quantities import plural, span
from abprof.report import asset, environment, sentences
from abprof.sides import Link
from abprof.store import RUN
from abprof.system import files as disk
from abprof.system import processes as proc
from abprof.system import workload_files
from abprof.system.console import View
from abprof.verdict import CellData, aggregate, headline, stats

__all__ = ["Bisection", "begin", "finish", "plan", "read", "result"]
FILE = "bisect.json"
SCHEMA = 3
_WORKLOADS = "workloads"  # folder in the bisection's folder: every step uses this copy of the workloads


class Row(Record, frozen=True, kw_only=True):
    """A cell in one variant, searched on its own. `variant` is None until the first run has found the variants."""

    cell: str
    variant: str | None = None

    @property
    def label(self) -> str:
        return f"{self.cell} {self.variant or ''}".strip()

    @property
    def arms(self) -> tuple[str, str]:
        return arm_id("base", self.variant or ""), arm_id("target", self.variant or "")


class RowAnswer(Record, frozen=True, kw_only=True):
    """One step's answer for a row: is the commit slower than the base by more than `cut`, a log ratio of times?"""

    row: Row
    cut: float
    answer: Answer

    @property
    def text(self) -> str:
        """Return the question and its answer as a sentence."""
        one = self.answer
        answer = {"below": "no, ", "above": "yes, ", "unclear": f"unclear ({one.reason}), "}.get(one.result, "")
        answer += one.change if answer else f"cannot be measured there ({one.reason})"
        return f"{self.row.label}: slower by more than {stats.percent(self.cut):.2f} %? {answer}"


class Step(Record, frozen=True, kw_only=True):
    """One measurement of `commit` against `base`, in its own run folder."""

    question: Question
    base: str
    commit: str
    run: str  # run folder, relative to the bisection's folder
    seconds: float
    rows: tuple[RowAnswer, ...]


class Found(Record, frozen=True, kw_only=True):
    """What the search found for one row."""

    row: Row
    findings: tuple[Finding, ...]


class Bisection(Record, frozen=True, kw_only=True):
    """The content of bisect.json. `links`: the commits after `good` up to `bad`, parents before children. In a search for
    a version, specs such as `REF with REQUIREMENTS` take the place of commits, and the parent of each is the one before."""

    schema: int = SCHEMA
    status: Literal["running", "interrupted", "complete"] = "running"
    began: str  # ISO 8601, UTC
    options: Options
    good: str
    bad: str
    labels: dict[str, str]  # commit -> the ref that the user typed
    threshold: dict[str, float]  # cell -> per cent
    kernels: dict[str, str]  # cell -> kernel package
    links: tuple[Link, ...]
    holds: dict[str, dict[str, str]]  # kernel package -> commit -> hash of the package in that commit
    weaker: tuple[str, ...] = ()  # sentences on guarantees that the runs of all steps lack
    step_seconds: float  # estimated duration of a step
    steps: tuple[Step, ...] = ()
    found: tuple[Found, ...] = ()
    culprits: tuple[str, ...] = ()  # commits of all findings of kind `culprit`, in the order of the history

    @property
    def planned(self) -> int:
        """Return the largest number of steps that the search for one culprit may take."""
        return max((halvings(count) + 3 for count in self.changes().values()), default=0)

    def changes(self) -> dict[str, int]:
        """Return, for each kernel package, how many first-parent commits change it."""
        histories = {kernel: self.history(kernel) for kernel in self.holds}
        return {kernel: len(it.turns(it.path(self.good, self.bad))) - 1 for kernel, it in histories.items()}

    def history(self, kernel: str) -> History:
        """Return this bisection's commits as a History of the kernel package `kernel`."""
        return History(self.good, {link.commit: link for link in self.links}, self.holds[kernel])

    def name(self, commit: str) -> str:
        """Return the first 10 digits of `commit`, and its subject or the ref that the user typed."""
        known = next((link.subject for link in self.links if link.commit == commit), "") or self.labels.get(commit, "")
        return f"{commit[:10]} ({known})" if known and known != commit[:10] else _short(commit)

    @property
    def noun(self) -> str:
        """Return what is searched: commits, or versions of the packages in a list of sides."""
        return "version" if split_spec(self.bad)[1] else "commit"

    @property
    def decided(self) -> bool:
        """Whether every finding names a culprit; true if there are no findings."""
        return all(finding.kind == "culprit" for found in self.found for finding in found.findings)


def write(folder: Path, of: Bisection) -> None:
    """Write the bisection to bisect.json in `folder`. Raises AbprofError if the write fails."""
    data = msgspec.json.format(msgspec.json.encode(of), indent=1)
    disk.replace(folder / FILE, data + b"\n", lambda written: msgspec.json.decode(written.read_bytes(), type=Bisection))


def read(folder: Path) -> Bisection:
    """Return the bisection in `folder`. Raises AbprofError if bisect.json is missing, invalid or of another version."""
    file, advice = folder / FILE, "start a new bisection"
    if not os.path.lexists(file):
        raise AbprofError(f"has no {FILE}", where=str(folder), advice="name the folder of a bisection")
    data = disk.read_named(file, 1 << 30)
    try:
        of = msgspec.convert(upgraded(msgspec.json.decode(data)), Bisection)
        if of.schema != SCHEMA:
            raise ValueError(f"schema = {of.schema}, this abprof reads schema = {SCHEMA}")
        _searches(of)  # raises if the answers are of other questions
    except (*UNREADABLE, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AbprofError(f"not a bisection of this abprof: {error}", where=str(file), advice=advice) from None
    return of


# ---------------------------------------------------------------- from step to step


def _searches(of: Bisection) -> dict[Row, Ask | tuple[Finding, ...]]:
    """Return each row's next question, or its findings if its search has ended. Raises ValueError if the recorded
    answers belong to other questions."""
    answers: dict[Row, list[tuple[Step, Answer]]] = {}
    for step in of.steps:
        for one in step.rows:
            answers.setdefault(one.row, []).append((step, one.answer))
    if answers:
        return {row: _searched(of, row, given) for row, given in answers.items()}
    first = {row: _searched(of, row, ()) for row in (Row(cell=cell) for cell in of.threshold)}
    return {row: next_ask for row, next_ask in first.items() if isinstance(next_ask, Ask)}


def _searched(of: Bisection, row: Row, given: Sequence[tuple[Step, Answer]]) -> Ask | tuple[Finding, ...]:
    steps = search(of.history(of.kernels[row.cell]), of.bad, stats.band(of.threshold[row.cell])[1])
    try:
        ask = next(steps)
        for step, answer in given:
            if ask.place != (step.question, step.base, step.commit):
                raise ValueError(f"run {step.run} does not answer the question about {row.label}")
            ask = steps.send(answer)
    except StopIteration as done:
        return tuple(done.value)
    return ask


def finish(of: Bisection, folder: Path, view: View) -> Bisection:
    """Run steps until the search ends or a step's budget gives no answer. Each updates bisect.json and the report."""
    while True:
        searches = _searches(of)
        asks = {row: each for row, each in searches.items() if isinstance(each, Ask)}
        found = tuple(Found(row=row, findings=each) for row, each in searches.items() if not isinstance(each, Ask))
        certain = {each.commits[0] for one in found for each in one.findings if each.kind == "culprit"}
        culprits = tuple(link.commit for link in of.links if link.commit in certain)
        status: Literal["running", "complete"] = "running" if asks else "complete"
        of = msgspec.structs.replace(of, status=status, found=found, culprits=culprits)
        write(folder, of)
        style = Markup(asset("report.css"))  # noqa: S704 - abprof's own
        page = environment(escape).get_template("bisect.html").render(of=of, result=result(of), style=style)
        disk.replace(folder / "report.html", page.encode(errors="replace"))
        if not asks:
            return of
        try:
            step = _step(of, asks, folder, view)
        except KeyboardInterrupt:
            write(folder, msgspec.structs.replace(of, status="interrupted"))
            raise
        if {one.answer.reason for one in step.rows} == {"budget"}:
            write(folder, of := msgspec.structs.replace(of, status="interrupted"))
            return of
        of = msgspec.structs.replace(of, steps=(*of.steps, step))


def _step(of: Bisection, asks: Mapping[Row, Ask], folder: Path, view: View) -> Step:
    """Measure the pair of commits that most rows need next. Raises KeyboardInterrupt if the run was interrupted, and
    AbprofError if no cell can be measured on GOOD and BAD."""
    places = [ask.place for ask in asks.values()]
    question, base, commit = chosen = max(places, key=places.count)
    asks = {row: ask for row, ask in asks.items() if ask.place == chosen}
    number = len(of.steps) + 1
    view.say(f"step {number} of about {max(number, of.planned)}: {of.name(commit)} against {of.name(base)}")
    cells = tuple(dict.fromkeys(row.cell for row in asks))
    options = msgspec.structs.replace(
        of.options,
        specs=(base, commit),
        cell=cells,
        workloads=() if of.options.command else tuple(dict.fromkeys(names.id_parts(cell)[0] for cell in cells)),
        runs_dir=str(folder / "steps" / f"{number:02d}"),
    )
    began = time.monotonic()
    run, made, answers = measure(options, asks, view)
    if run.status == "interrupted":
        raise KeyboardInterrupt
    for one in answers:
        view.say(f"  {one.text}")
    if number == 1 and all(one.answer.result == "cannot" for one in answers):
        reasons = ", ".join(dict.fromkeys(one.answer.reason for one in answers)) or "no cell"
        raise AbprofError(f"no cell can be measured on both GOOD and BAD: {reasons}", where=str(made))
    where, took = str(made.relative_to(folder)), time.monotonic() - began
    return Step(question=question, base=base, commit=commit, run=where, seconds=took, rows=answers)


# ---------------------------------------------------------------- one run


def measure(options: Options, asks: Mapping[Row, Ask], view: View) -> tuple[Run, Path, tuple[RowAnswer, ...]]:
    """Measure until the questions `asks` are answered or the budget is spent; return the run, its folder and the
    answers. An earlier run in `options.runs_dir` is continued. Raises AbprofError if no run can start or continue."""

    def unanswered(run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> set[str]:
        cells = aggregate(run, blocks, proofs).values()
        return {item.cell.id for item in cells if any(_open(item, *each) for each in _asked(item, asks))}

    begun = [path.parent for path in sorted(Path(options.runs_dir).glob(f"*/{RUN}"))]
    if begun:
        run, folder = session.rerun(begun[-1], (), options.repo, options.budget, view, resume=True, until=unanswered)
    else:
        run, folder = session.run(options, view, until=unanswered)
    cells = aggregate(run, session.judged(folder, lambda _: None)[1], run.proofs).values()
    each = ((item, row, ask) for item in cells for row, ask in _asked(item, asks))
    return run, folder, tuple(RowAnswer(row=r, cut=ask.cut, answer=_answer(run, item, r, ask)) for item, r, ask in each)


def _asked(item: CellData, asks: Mapping[Row, Ask]) -> Iterator[tuple[Row, Ask]]:
    arms = map(Arm.of, item.states)
    variants = dict.fromkeys(arm.variant for arm in arms if arm.side in {"base", "target"} and not arm.peer)
    for row, ask in asks.items():
        if row.cell == item.cell.id:
            for variant in variants if row.variant is None else (row.variant,):
                yield Row(cell=row.cell, variant=variant), ask


def _open(item: CellData, row: Row, ask: Ask) -> bool:
    """Whether more epochs can still answer the row's question."""
    states = [item.state(arm) for arm in row.arms]
    failed = any(state.proof_broken or (state.settled and not state.runs) for state in states)
    if failed or item.cell.skip or item.attempts >= stats.MOST_ATTEMPTS:
        return False
    if not all(state.settled for state in states):
        return True
    values = item.epoch_values(*row.arms)
    identical = any(state.status == "identical" for state in states)
    return not identical and len(values) < LOOKS[-1] and side(values, ask) is None


def _answer(run: Run, item: CellData, row: Row, ask: Ask) -> Answer:
    states = [item.state(arm) for arm in row.arms]
    counts = run.header.counts if run.header else {}
    if counts.get("tampered"):
        return Answer(result="unclear", reason="tampered")
    for prefix, state in zip(("base_", ""), states, strict=True):
        if state.proof_broken or not state.runs:
            return Answer(result="cannot", reason=f"{prefix}{'proof' if state.proof_broken else state.status}")
    values = item.epoch_values(*row.arms)
    if not values:
        if any(state.status == "identical" for state in states):
            return Answer(result="below", theta=0.0, low=0.0, high=0.0)
        return Answer(result="unclear", reason="not_measured")
    interval = stats.repeated_interval(values, 2 * ask.error)
    numbers = {"theta": interval.theta, "low": interval.low, "high": interval.high} if interval else {}
    found = side(values, ask)
    mine = (one for one in run.comparisons if (one.cell, one.from_, one.to) == (row.cell, *row.arms))
    doubt = "controls" if counts.get("controls_outside") else ""
    doubt = doubt or next((reason for one in mine for reason in one.reasons if reason in headline.WITHHELD), "")
    if not found:
        doubt = doubt or ("epochs" if len(values) >= LOOKS[-1] else "budget")
    result = "unclear" if doubt or not found else found
    return Answer(result=result, reason=doubt, epochs=interval.epochs if interval else len(values), **numbers)


# ---------------------------------------------------------------- for people


def plan(of: Bisection) -> list[str]:
    """Return a description of the planned steps as lines of text."""
    lines = [f"{plural(len(of.links), of.noun)} from {of.name(of.good)} to {of.name(of.bad)}", *of.weaker]
    for kernel, count in of.changes().items():
        commits, steps = plural(count, of.noun), plural(halvings(count), "step")
        along = " along first parents" if of.noun == "commit" else ""
        lines.append(f"{kernel}: changed by {commits}{along}: {steps} to halve them")
    seconds, each = span(of.planned * of.step_seconds), f"a step takes at most {span(of.options.budget)} (--budget)"
    return [*lines, f"{of.planned} steps for one culprit, about {seconds} of measuring if every step is clear; {each}"]


def result(of: Bisection) -> list[str]:
    """Return what is known as lines of text, row by row: the findings, and the commits between which to search on."""
    asks = [row for row, ask in _searches(of).items() if isinstance(ask, Ask)]
    if not of.found and not asks:
        return [f"nothing changed: {of.name(of.good)} and {of.name(of.bad)} have the same kernels"]
    lines = []
    for found in of.found:
        lines += [f"{found.row.label}: {_sentence(of, finding)}" for finding in found.findings]
        if not found.findings:
            ends = next(one.answer for one in of.steps[0].rows if one.row == found.row)
            nothing = "nothing changed" if ends.high is None or ends.high >= 0 else "faster, not slower"
            if ends.low is not None and ends.low > 0:
                nothing = "slower, by less than the threshold (a smaller --threshold finds it)"
            lines.append(f"{found.row.label}: {nothing}: {ends.change}")
    steps = [step for step in of.steps if step.question != "parent"]
    for row in asks:
        last = {one.answer.result: step.commit for step in steps for one in step.rows if one.row == row}
        after, up_to = of.name(last.get("below", of.good)), of.name(last.get("above", of.bad))
        lines.append(f"{row.label}: undecided after {after} up to {up_to}")
    return lines


def _sentence(of: Bisection, finding: Finding) -> str:
    last, parent = of.name(finding.commits[-1]), _short(finding.parent)
    count = plural(len(finding.commits), of.noun)
    said = {
        "culprit": f"{last} made it slower than its parent {parent}",
        "range": f"one of {count} after {parent} up to {last} made it slower",
        "doubtful": f"the steps lead to {last} or what it merged ({count}), not confirmed against {parent}",
        "open": f"undecided after {parent} up to {last}",
    }
    return f"{said[finding.kind]}: {finding.answer.change}"


def _short(commit: str) -> str:
    return commit if split_spec(commit)[1] else commit[:10]


# ---------------------------------------------------------------- the start


def begin(config: Options, view: View) -> tuple[Bisection, Path | None]:
    """Return a new bisection and its folder (None with `--dry-run`, which writes nothing).

    `config.specs` are GOOD and BAD, or a list of sides with environments. Raises AbprofError if GOOD is not an ancestor
    of BAD or if no run can start.
    """
    listed = config.specs if split_spec(config.specs[-1])[1] else ()
    place = look_around(msgspec.structs.replace(config, specs=(config.specs[0], config.specs[-1])), view)
    good, bad = place.sides if listed else _ends(place)
    with (
        proc.signals(),
        proc.no_orphans(),
        tempfile.TemporaryDirectory() as logs,
        place.worktrees(f"{place.id}-bisect") as trees,
    ):
        if config.command:
            with place.alone(view, wait=not place.options.no_wait):
                began = time.monotonic()  # a command runs once at both ends, to learn which cells it has
                head = Bench.of(place, trees, Path(logs), view).head
                epoch = time.monotonic() - began
        else:
            head = Plan.of(place, trees, Path(logs), view, dry=True).run
            epoch = Estimate(head).epoch(peers=False)
        least = LOOKS[0] * epoch
        of = _state(place, good, bad, head, least, listed)
        if least > (budget := head.options.budget):
            way = "choose fewer cells, or a larger --budget"
            view.warn(f"a step takes about {span(least)}, --budget allows {span(budget)}: {way}")
        if config.dry_run:
            return of, None
        labels = names.safe_labels((side.label, side.commit) for side in (good, bad))
        stamp = place.id.partition("-")[0]
        folder = store.create(place.runs_dir, "-".join([stamp, "bisect", *labels])[:180])
        folder.logs.rmdir()
        if not config.command:
            workloads = folder.path.absolute() / _WORKLOADS
            workload_files.copy(Path(trees[0].path).parent / "workloads", workloads)
            options = msgspec.structs.replace(of.options, workloads_from=str(workloads))
            of = msgspec.structs.replace(of, options=options)
    write(folder.path, of)
    return of, folder.path


def _ends(place: RunContext) -> tuple[Side, Side]:
    good, bad = place.sides
    for end in (good, bad):
        if end.kind != "commit":
            raise AbprofError("not a commit", where=end.spec, advice="bisect needs a branch, a tag or a commit")
    if good.commit == bad.commit:
        raise AbprofError(f"GOOD and BAD are both commit {good.commit[:10]}", where=f"{good.spec} {bad.spec}")
    common = place.commits.merge_base(good.commit, bad.commit)
    if common != good.commit:
        advice = f"use their merge base: abprof bisect {common[:10]} {bad.spec}" if common else "git fetch --unshallow"
        if common == bad.commit:
            advice = f"swap the refs: abprof bisect {bad.spec} {good.spec}"
        raise AbprofError(f"{good.spec} is not an ancestor of {bad.spec}", where="abprof bisect", advice=advice)
    return good, bad


def _state(
    place: RunContext, good: Side, bad: Side, head: Run, step_seconds: float, listed: Sequence[str]
) -> Bisection:
    cells = tuple(cell for cell in head.cells if (cell.kernel or head.command) and not cell.skip)
    if not cells:
        raise AbprofError("no cell can be measured here", where="abprof bisect", advice="abprof list shows the reasons")
    kernels = {cell.id: cell.kernel or COMMAND for cell in cells}
    if listed:
        links = tuple(Link(spec, (before,), "") for before, spec in pairwise(listed))
    else:
        links = place.commits.between(good.commit, bad.commit)
    commits = tuple(dict.fromkeys([good.commit, *(c for link in links for c in (*link.parents, link.commit))]))
    # Files that may change a cell's time are in the folders of its kernel package; for a command, anywhere in the tree.
    inputs: dict[str, tuple[str, ...]] = {COMMAND: ("",)}
    if not place.options.command:
        packages = {name: place.file.package(name) for name in dict.fromkeys(kernels.values())}
        inputs = {kernel: package.folders for kernel, package in packages.items()}
    own = {"repo": str(place.root), "no_peers": True, "file": None, "rebuild": False, "dry_run": False}
    own |= {"regime": "burst"} if place.options.regime == "auto" else {}  # steps answer one question
    chosen = dict.fromkeys(("filled", "kernels", "only", "set", "peer"), ())  # each step selects cells by `cell` only
    return Bisection(
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        options=msgspec.structs.replace(place.options, **own, **chosen),
        good=listed[0] if listed else good.commit,
        bad=listed[-1] if listed else bad.commit,
        labels={} if listed else {side.commit: side.label for side in (good, bad)},
        threshold={cell.id: head.options.threshold_of(cell.id) for cell in cells},
        kernels=kernels,
        links=links,
        holds={name: {} if listed else place.commits.contents(commits, folders) for name, folders in inputs.items()},
        weaker=sentences.weaker(head),
        step_seconds=step_seconds,
    )
