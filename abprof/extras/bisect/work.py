"""A bisection from its beginning to its end: which step is next, and what is known after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from abprof.extras.bisect import rule, state, step
from abprof.extras.bisect.explore import explore
from abprof.extras.bisect.lineage import History
from abprof.extras.bisect.questions import Answer, Ask, Finding, Steps
from abprof.extras.bisect.state import Found, Given, Row, State, Step
from abprof.extras.bisect.telling import asked, in_words, name
from abprof.measure.estimate import span
from abprof.records.errors import AbprofError
from abprof.system.console import View
from abprof.verdict import stats

_ENDS = "ends that build and give right answers; base_ in front speaks of the good one"
Told = Callable[[State], None]


@dataclass
class Search:
    """One row's search, and the question it has come to; None when it is over."""

    steps: Steps
    ask: Ask | None
    findings: tuple[Finding, ...] = ()

    def take(self, answer: Answer) -> None:
        """Go on to the next question."""
        try:
            self.ask = self.steps.send(answer)
        except StopIteration as done:
            self.ask, self.findings = None, done.value


def history(of: State, kernel: str) -> History:
    """The commits as far as this kernel package is concerned."""
    return History(of.good, {link.commit: link for link in of.links}, of.holds[kernel])


def begin(of: State, cell: str) -> Search:
    """The search of a row of this cell, at its first question: the ends. Over at once where both hold the same."""
    steps = explore(history(of, of.kernels[cell]), of.bad, stats.band(of.threshold[cell])[1])
    search = Search(steps, None)
    try:
        search.ask = next(steps)
    except StopIteration as done:
        search.findings = done.value
    return search


def replay(of: State) -> dict[Row, Search]:
    """Every row's search as far as its answers go. Raises AbprofError where they are not to its questions."""
    searches: dict[Row, Search] = {}
    for number, done in enumerate(of.steps, 1):
        for given in done.rows:
            search = searches.setdefault(given.row, begin(of, given.row.cell))
            ask = search.ask
            if ask is None or (ask.question, ask.base, ask.commit) != (done.question, done.base, done.commit):
                what = f"step {number} does not answer what is asked there of {given.row.label}"
                raise AbprofError(what, where=state.FILE, advice="another abprof wrote it: start a new bisection")
            search.take(given.answer)
    return searches


def finish(of: State, folder: Path, view: View, told: Told) -> State:
    """Take every step that is left. The file is written after each; `told` is then given the state."""
    while True:
        searches = replay(of)
        of = msgspec.structs.replace(of, status="running", found=_found(searches), culprits=culprits(of, searches))
        asks = {row: search.ask for row, search in searches.items() if search.ask}
        if not asks and (of.steps or not first(of)):
            of = msgspec.structs.replace(of, status="complete")
        state.write(folder, of)
        told(of)
        if of.status == "complete":
            return of
        try:
            of = msgspec.structs.replace(of, steps=(*of.steps, _step(of, asks, folder, view)))
        except KeyboardInterrupt:
            state.write(folder, msgspec.structs.replace(of, status="interrupted"))
            raise


def _step(of: State, asks: Mapping[Row, Ask], folder: Path, view: View) -> Step:
    """Measure what most rows ask for, for all that ask it. Raises KeyboardInterrupt when the run was interrupted."""
    wanted: Mapping[Row, Ask] | Mapping[str, Ask] = asks if of.steps else first(of)
    chosen = most_wanted(list(wanted.values()))
    questions = step.Questions(cells=first(of))
    if of.steps:
        questions = step.Questions({row: ask for row, ask in asks.items() if _place(ask) == _place(chosen)})
    cells = tuple(dict.fromkeys([*(row.cell for row in questions.rows), *questions.cells]))
    number = len(of.steps) + 1
    left = f"up to {chosen.planned} between these ends, about {span(chosen.planned * of.pace)}"
    view.say(f"step {number} ({left}): {name(of, chosen.commit)} against {name(of, chosen.base)}")
    place = folder / "steps" / f"{number:02d}"
    began = time.monotonic()
    config = state.step_options(of.asked, chosen.base, chosen.commit, cells, place)
    run, made, given = step.measure(config, questions, place, view)
    if run.status == "interrupted":
        raise KeyboardInterrupt
    for one in given:
        view.say(f"  {one.row.label}: {asked(one)} {in_words(one.answer)}")
    if not of.steps:
        _require(given)
    return Step(
        question=chosen.question,
        base=chosen.base,
        commit=chosen.commit,
        run=str(made.relative_to(folder)),
        seconds=time.monotonic() - began,
        rows=given,
    )


def first(of: State) -> dict[str, Ask]:
    """What is asked of each cell that is not the same at both ends."""
    return {cell: ask for cell in of.cells if (ask := begin(of, cell).ask)}


def _require(ends: Sequence[Given]) -> None:
    """Raises AbprofError where no row can be measured at both ends: there is no change to look for."""
    if all(one.answer.said == "cannot" for one in ends):
        reasons = ", ".join(dict.fromkeys(one.answer.reason for one in ends))
        raise AbprofError(f"nothing can be measured at both ends: {reasons}", where="abprof bisect", advice=_ENDS)


def most_wanted(asks: Sequence[Ask]) -> Ask:
    """The measurement that most rows wait for; of equals the first."""
    places = [_place(ask) for ask in asks]
    return max(asks, key=lambda ask: places.count(_place(ask)))


def _place(ask: Ask) -> tuple[str, str, str]:
    return ask.question, ask.base, ask.commit


def _found(searches: Mapping[Row, Search]) -> tuple[Found, ...]:
    return tuple(Found(row=row, findings=search.findings) for row, search in searches.items() if search.ask is None)


def culprits(of: State, searches: Mapping[Row, Search]) -> tuple[str, ...]:
    """Commits that certainly made a row slower, and were not taken back, in the order of the history."""
    findings = (finding for search in searches.values() for finding in search.findings)
    found = {one.commits[0] for one in findings if one.kind == "culprit" and not one.undone}
    return tuple(link.commit for link in of.links if link.commit in found)


def planned(of: Mapping[str, History], bad: str) -> int:
    """Steps that find one culprit: the ends, the halving, the culprit against its parent, and the rest after it."""
    return max((rule.steps(len(one.turns(one.path(one.good, bad))) - 1) + 3 for one in of.values()), default=0)
