"""What a bisection shows and keeps: its lines, its pages and its file, of a history whose answers are known."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest

from abprof.extras.bisect import report, steps
from abprof.extras.bisect.steps import Bisection, Row, RowAnswer
from abprof.records import Options
from abprof.records.errors import AbprofError
from abprof.system.console import View
from tests import schemas
from tests.bisect.test_search import World, line, slips

CELL = "w/case=a"


def begun(world: World, bad: str) -> Bisection:
    history = world.history
    links = tuple(history.links.values())
    return Bisection(
        began="2026-01-01T00:00:00+00:00",
        options=Options(repo="/repo", workloads_from="/workloads", budget=600.0),
        good=history.good,
        bad=bad,
        labels={history.good: "v1.0", bad: "main"},
        cells=(CELL,),
        threshold={CELL: 1.5},
        kernels={CELL: "k"},
        links=links,
        holds={"k": dict(history.holds)},
        step_seconds=60.0,
    )


@dataclass
class Measured:
    """Stands in for the runs: what they would find is known of the world."""

    world: World
    steps: int = 0
    stop_after: int = 1000

    def __call__(self, config: Any, questions: steps.Questions, place: Path, view: View) -> Any:
        if self.steps == self.stop_after:
            raise KeyboardInterrupt
        self.steps += 1
        asked = {**questions.rows, **{Row(cell=cell): ask for cell, ask in questions.cells.items()}}
        given = [
            RowAnswer(row=row, cut=ask.cut, error=ask.error, answer=self.world.answer(ask))
            for row, ask in asked.items()
        ]
        return SimpleNamespace(status="complete"), place / "run", tuple(given)


def finished(monkeypatch: pytest.MonkeyPatch, folder: Path, world: World, bad: str) -> Bisection:
    monkeypatch.setattr(steps, "measure", Measured(world))
    return steps.finish(begun(world, bad), folder, View(quiet=True), lambda now: report.write(folder, now))


def test_what_is_shown_of_two_culprits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line(slips(64, {20: 3.0, 45: 5.0}), silent={32})
    done = finished(monkeypatch, tmp_path, world, bad)
    assert done.culprits == ("c20", "c45")
    said = report.result(done)
    assert [re.findall(r"c\d+", text)[0] for text in said] == ["c20", "c45"]
    assert all("made it slower than its parent" in text for text in said)
    shown = report.lines(done)
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


def test_the_file_fits_its_schema_and_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step it holds all that was answered: who goes on asks nothing twice."""
    world, bad = line(slips(64, {37: 3.0}))
    once = Measured(world, stop_after=4)
    monkeypatch.setattr(steps, "measure", once)
    with pytest.raises(KeyboardInterrupt):
        steps.finish(begun(world, bad), tmp_path, View(quiet=True), lambda _: None)
    document = json.loads((tmp_path / steps.FILE).read_text())
    jsonschema.Draft202012Validator(schemas.schemas()["bisect.schema.json"]).validate(document)
    kept, folder = steps.read(tmp_path / steps.FILE)
    assert (len(kept.steps), kept.status, folder) == (4, "interrupted", tmp_path)
    rest = Measured(world)
    monkeypatch.setattr(steps, "measure", rest)
    done = steps.finish(kept, folder, View(quiet=True), lambda _: None)
    assert (done.culprits, done.status, len(done.steps)) == (("c37",), "complete", 4 + rest.steps)
    assert len(done.steps) == done.planned == 9
    assert steps.read(tmp_path)[0] == done


def test_a_file_of_other_questions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line(slips(16, {9: 3.0}))
    done = finished(monkeypatch, tmp_path, world, bad)
    other = msgspec.structs.replace(done, steps=(msgspec.structs.replace(done.steps[1]), *done.steps[1:]))
    with pytest.raises(AbprofError, match="step 1 does not answer the question of"):
        steps.replay(other)
    (tmp_path / steps.FILE).write_text('{"schema": 2}')
    with pytest.raises(AbprofError, match="not a bisection of this abprof"):
        steps.read(tmp_path)


def test_nothing_to_measure_where_both_ends_hold_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line([0.0] * 5, same={1, 2, 3, 4, 5})
    done = finished(monkeypatch, tmp_path, world, bad)
    assert (done.status, done.steps) == ("complete", ())
    assert report.result(done) == ["nothing changed: c0 (v1.0) and c5 (Commit 5) hold the same kernels"]


@pytest.mark.parametrize(
    ("change", "said"),
    [(0.0, "nothing changed."), (1.0, "slower, by less than the threshold"), (-4.0, "faster, not slower.")],
)
def test_what_is_said_where_nothing_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float, said: str
) -> None:
    world, bad = line(slips(4, {2: change}))
    done = finished(monkeypatch, tmp_path, world, bad)
    (text,) = report.result(done)
    assert said in text
    assert f"no, {change:+.2f} % of time" in text
    assert report.decided(done)
