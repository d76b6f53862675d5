"""One step: a commit against another in an ordinary run, which goes on until this question is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from abprof import session
from abprof.extras.bisect import rule
from abprof.extras.bisect.questions import Answer, Ask
from abprof.extras.bisect.state import Given, Row
from abprof.records import Arm, Block, Proof, Run
from abprof.records.options import Options
from abprof.store import runfolder
from abprof.system.console import View
from abprof.verdict import CellData, aggregate, stats
from abprof.verdict.cells import arm_id
from abprof.verdict.comparison import WITHHELD
from abprof.verdict.stopping import MOST_ATTEMPTS


@dataclass(frozen=True)
class Questions:
    """What a run is to answer: of each row, on which side of its cut it lies. Which variants a cell has is not known before
    the first run: that is asked by `cells`, of every row that they turn out to have."""

    rows: Mapping[Row, Ask] = field(default_factory=dict)
    cells: Mapping[str, Ask] = field(default_factory=dict)

    def asked(self, item: CellData) -> dict[Row, Ask]:
        """The questions on one cell."""
        known = {row: ask for row, ask in self.rows.items() if row.cell == item.cell.id}
        if item.cell.id not in self.cells:
            return known
        arms = map(Arm.of, item.states)
        variants = dict.fromkeys(arm.variant for arm in arms if arm.side in {"base", "target"} and not arm.peer)
        return {Row(cell=item.cell.id, variant=variant): self.cells[item.cell.id] for variant in variants}

    def open(self, run: Run, blocks: Sequence[Block], proofs: Sequence[Proof] = ()) -> set[str]:
        """Cells that need one more epoch: what `session.run` measures until."""
        evidence = aggregate(run, blocks, proofs).values()
        return {item.cell.id for item in evidence if any(_open(item, *each) for each in self.asked(item).items())}

    def answers(self, run: Run, blocks: Sequence[Block]) -> tuple[Given, ...]:
        """What the run says to each."""
        evidence = aggregate(run, blocks, run.proofs).values()
        asked = [(item, row, ask) for item in evidence for row, ask in self.asked(item).items()]
        return tuple(
            Given(row=row, cut=ask.cut, error=ask.error, answer=_answer(run, item, row, ask))
            for item, row, ask in asked
        )


def measure(config: Options, questions: Questions, place: Path, view: View) -> tuple[Run, Path, tuple[Given, ...]]:
    """Run it in a folder of its own under `place`, or go on with the one that is there. What stays open when the budget
    is spent gets as much again, once. Raises AbprofError."""
    begun = [path.parent for path in sorted(place.glob(f"*/{runfolder.RUN}"))]

    def more(folder: Path) -> tuple[Run, Path]:
        return session.rerun(folder, (), config.repo, config.budget, view, resume=True, until=questions.open)

    run, folder = more(begun[-1]) if begun else session.run(config, view, until=questions.open)
    if not begun and run.status == "complete" and _unclear(run, folder, questions):
        view.say("not clear yet: as many epochs again")
        run, folder = more(folder)
    _, blocks = session.judged(folder, lambda _: None)
    return run, folder, questions.answers(run, blocks)


def _unclear(run: Run, folder: Path, questions: Questions) -> bool:
    _, blocks = session.judged(folder, lambda _: None)
    return bool(questions.open(run, blocks, run.proofs))


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
    return len(values) < stats.LOOKS[-1] and rule.side(values, ask.cut, ask.error, ask.within) is None


def _answer(run: Run, item: CellData, row: Row, ask: Ask) -> Answer:
    arms = arm_id("base", row.variant), arm_id("target", row.variant)
    if run.header and run.header.counts.get("tampered"):  # also of what did not run nobody can say why
        return Answer(said="unclear", reason="tampered")
    for name, state in zip(("base_", ""), map(item.state, arms), strict=True):
        if state.proof_broken or not state.runs:
            return Answer(said="cannot", reason=f"{name}{'proof' if state.proof_broken else state.status}")
    values = item.epoch_values(*arms)
    if not values:
        same = any(item.state(arm).status == "identical" for arm in arms)
        return (
            Answer(said="below", theta=0.0, low=0.0, high=0.0)
            if same
            else Answer(said="unclear", reason="not_measured")
        )
    interval = stats.repeated_interval(values, 2 * ask.error)
    numbers = {"theta": interval.theta, "low": interval.low, "high": interval.high} if interval else {}
    epochs = interval.epochs if interval else len(values)
    side = rule.side(values, ask.cut, ask.error, ask.within)
    doubt = _doubt(run, row, arms) or ("" if side else "epochs" if len(values) >= stats.LOOKS[-1] else "budget")
    return Answer(said="unclear" if doubt or not side else side, reason=doubt, epochs=epochs, **numbers)


def _doubt(run: Run, row: Row, arms: tuple[str, str]) -> str:
    """Why an interval is not to be believed, or "": what withholds a run's own verdicts withholds answers too."""
    if run.header and run.header.counts.get("controls_outside"):
        return "controls"
    mine = (one for one in run.comparisons if (one.cell, one.from_, one.to) == (row.cell, *arms))
    return next((reason for one in mine for reason in one.reasons if reason in WITHHELD), "")
