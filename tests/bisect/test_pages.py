"""What a bisection shows and keeps: its lines, its pages and its file, of a history whose answers are known."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest

from abprof.extras.bisect import page as pages
from abprof.extras.bisect import state, step, telling, work
from abprof.extras.bisect.lineage import History
from abprof.extras.bisect.state import Given, Row, State
from abprof.records import Options
from abprof.records.errors import AbprofError
from abprof.sides import Link
from abprof.system.console import View
from tests import schemas
from tests.bisect.test_search import World, line, slips

CELL = "w/case=a"


def begun(world: World, bad: str) -> State:
    history = world.history
    links = tuple(history.links.values())
    return State(
        began="2026-01-01T00:00:00+00:00",
        asked=Options(repo="/repo", workloads_from="/workloads", budget=600.0),
        good=history.good,
        bad=bad,
        labels={history.good: "v1.0", bad: "main"},
        cells=(CELL,),
        threshold={CELL: 1.5},
        kernels={CELL: "k"},
        links=links,
        holds={"k": dict(history.holds)},
        planned=work.planned({"k": history}, bad),
        step_seconds=60.0,
    )


@dataclass
class Measured:
    """Stands in for the runs: what they would find is known of the world."""

    world: World
    steps: int = 0
    stop_after: int = 1000

    def __call__(self, config: Any, questions: step.Questions, place: Path, view: View) -> Any:
        if self.steps == self.stop_after:
            raise KeyboardInterrupt
        self.steps += 1
        asked = {**questions.rows, **{Row(cell=cell): ask for cell, ask in questions.cells.items()}}
        given = [
            Given(row=row, cut=ask.cut, error=ask.error, answer=self.world.answer(ask)) for row, ask in asked.items()
        ]
        return SimpleNamespace(status="complete"), place / "run", tuple(given)


def finished(monkeypatch: pytest.MonkeyPatch, folder: Path, world: World, bad: str) -> State:
    monkeypatch.setattr(step, "measure", Measured(world))
    return work.finish(begun(world, bad), folder, View(quiet=True), lambda now: pages.write(folder, now))


def test_what_is_shown_of_two_culprits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line(slips(64, {20: 3.0, 45: 5.0}), silent={32})
    done = finished(monkeypatch, tmp_path, world, bad)
    assert done.culprits == ("c20", "c45")
    said = telling.result(done)
    assert [re.findall(r"c\d+", text)[0] for text in said] == ["c20", "c45"]
    assert all("made it slower than its parent" in text for text in said)
    shown = pages.lines(done)
    assert re.search(r"c45 .*@.* \+8\.15 %", "\n".join(shown))
    assert any(" x " in text and text.startswith("  c32") for text in shown)
    assert sum(int(text.split()[0]) for text in shown if text.endswith("between")) + _commits(shown) == 65
    page, markdown = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    assert page.count('<g class="culprit">') == 2
    assert page.count("made it slower than its parent") == markdown.count("made it slower than its parent") == 2
    assert "http" not in page.replace("http-equiv", "")
    assert markdown.count("| culprit |") == 2


def _commits(shown: Sequence[str]) -> int:
    return sum(text.startswith("  c") for text in shown)


def test_what_a_commit_says_is_only_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line(slips(4, {2: 3.0}))
    link = world.history.links["c2"]
    world.history.links["c2"] = type(link)(link.commit, link.parents, "<script>alert(1)</script> | `x` @all")  # type: ignore[index]
    finished(monkeypatch, tmp_path, world, bad)
    assert "<script" not in (tmp_path / "report.html").read_text()
    text = (tmp_path / "report.md").read_text()
    assert "<script" not in text
    assert "@all" not in text


def test_every_page_says_that_nothing_but_the_sides_outputs_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, bad = line(slips(4, {2: 3.0}))
    monkeypatch.setattr(step, "measure", Measured(world))
    plain = begun(world, bad)
    assert telling.weaker(plain) == ()
    without = msgspec.structs.replace(plain, unchecked=("w",))
    of = work.finish(without, tmp_path, View(quiet=True), lambda now: pages.write(tmp_path, now))
    said = "w has no reference. Only the agreement of the sides' outputs was checked: a common error is not seen."
    assert telling.weaker(of) == (f"Weaker guarantee: {said}",)
    for name in ("report.md", "report.html"):
        assert "Weaker guarantee: w has no reference." in (tmp_path / name).read_text()


def test_the_file_fits_its_schema_and_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step it holds all that was answered: who goes on asks nothing twice."""
    world, bad = line(slips(64, {37: 3.0}))
    once = Measured(world, stop_after=4)
    monkeypatch.setattr(step, "measure", once)
    with pytest.raises(KeyboardInterrupt):
        work.finish(begun(world, bad), tmp_path, View(quiet=True), lambda _: None)
    document = json.loads((tmp_path / state.FILE).read_text())
    jsonschema.Draft202012Validator(schemas.schemas()["bisect.schema.json"]).validate(document)
    kept, folder = state.read(tmp_path / state.FILE)
    assert (len(kept.steps), kept.status, folder) == (4, "interrupted", tmp_path)
    rest = Measured(world)
    monkeypatch.setattr(step, "measure", rest)
    done = work.finish(kept, folder, View(quiet=True), lambda _: None)
    assert (done.culprits, done.status, len(done.steps)) == (("c37",), "complete", 4 + rest.steps)
    assert len(done.steps) == done.planned == 9
    assert state.read(tmp_path)[0] == done


def test_a_file_of_other_questions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line(slips(16, {9: 3.0}))
    done = finished(monkeypatch, tmp_path, world, bad)
    other = msgspec.structs.replace(done, steps=(msgspec.structs.replace(done.steps[1]), *done.steps[1:]))
    with pytest.raises(AbprofError, match="step 1 does not answer what is asked there"):
        work.replay(other)
    (tmp_path / state.FILE).write_text('{"schema": 1}')
    with pytest.raises(AbprofError, match="not a bisection of this abprof"):
        state.read(tmp_path)


def test_nothing_to_measure_where_both_ends_hold_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line([0.0] * 5, same={1, 2, 3, 4, 5})
    done = finished(monkeypatch, tmp_path, world, bad)
    assert (done.status, done.steps) == ("complete", ())
    assert telling.result(done) == ["nothing changed: c0 (v1.0) and c5 (Commit 5) hold the same kernels"]


@pytest.mark.parametrize(
    ("change", "said"),
    [(0.0, "nothing changed."), (1.0, "slower, by less than is looked for"), (-4.0, "faster, not slower.")],
)
def test_what_is_said_where_nothing_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float, said: str
) -> None:
    world, bad = line(slips(4, {2: change}))
    done = finished(monkeypatch, tmp_path, world, bad)
    (text,) = telling.result(done)
    assert said in text
    assert f"no, {change:+.2f} % of time" in text
    assert telling.decided(done)


def test_what_is_said_of_a_slip_that_the_bad_end_has_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line([0.10, 0.03, -0.10])
    done = finished(monkeypatch, tmp_path, world, bad)
    first, second, third = telling.result(done)
    assert "c1 (Commit 1) made it slower than its parent c0" in first
    assert "made up for by c3 (Commit 3): the bad end is no longer slower by it" in first
    assert "c2 (Commit 2) made it slower than its parent c1" in second
    assert "c3 (Commit 3) made it faster again than its parent c2: -9.52 %" in third
    assert (done.culprits, telling.decided(done)) == (("c2",), True)
    assert re.search(r"c3 .* \+3\.05 %", "\n".join(pages.lines(done)))
    links = {**world.history.links, "c3": Link("c3", ("c2",), "Revert", ("c1",))}
    world = World(History("c0", links, world.history.holds), world.levels)
    assert "; taken back by c3 (Revert)" in telling.result(finished(monkeypatch, tmp_path, world, bad))[0]


def test_a_commit_asked_the_other_way_round_stands_in_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what made it faster is looked for, the later commit is the base: it is the one that was measured."""
    world, bad = line([0.10, 0.03, 0.0, 0.0, -0.09, 0.0, 0.0])
    done = finished(monkeypatch, tmp_path, world, bad)
    turned = [one for one in done.steps if one.question == "step" and int(one.base[1:]) > int(one.commit[1:])]
    assert turned
    points = {point.commit: point for point in pages.graphs(done)[0].points}
    for one in turned:
        assert points[one.base].pct == pytest.approx(100 * math.expm1(world.levels[one.base]), abs=0.01)
