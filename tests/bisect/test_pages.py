"""A bisection's lines, pages and file, for a history with known answers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest

from abprof.extras import bisect
from abprof.extras.bisect import Bisection, Row, RowAnswer, finish, read, result
from abprof.extras.bisect.search import Ask
from abprof.records import Options
from abprof.records.errors import AbprofError
from abprof.system.console import View
from tests import schemas
from tests.bisect.test_search import World, line, slips

CELL = "w/case=a"


def begun(world: World, bad: str) -> Bisection:
    history = world.history
    return Bisection(
        began="2026-01-01T00:00:00+00:00",
        options=Options(repo="/repo", workloads_from="/workloads", budget=600.0),
        good=history.good,
        bad=bad,
        labels={history.good: "v1.0", bad: "main"},
        threshold={CELL: 1.5},
        kernels={CELL: "k"},
        links=tuple(history.links.values()),
        holds={"k": dict(history.holds)},
        step_seconds=60.0,
    )


@dataclass
class Measured:
    """Answers in place of runs, from the known history."""

    world: World
    steps: int = 0
    stop_after: int = 1000

    def __call__(self, options: Options, asks: Mapping[Row, Ask], view: View) -> Any:
        if self.steps == self.stop_after:
            raise KeyboardInterrupt
        self.steps += 1
        answers = [
            RowAnswer(row=Row(cell=row.cell, variant=""), cut=ask.cut, answer=self.world.answer(ask))
            for row, ask in asks.items()
        ]
        return SimpleNamespace(status="complete"), Path(options.runs_dir) / "run", tuple(answers)


def finished(monkeypatch: pytest.MonkeyPatch, folder: Path, world: World, bad: str) -> Bisection:
    monkeypatch.setattr(bisect, "measure", Measured(world))
    return finish(begun(world, bad), folder, View(quiet=True))


def test_what_is_shown_of_two_culprits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line(slips(64, {20: 3.0, 45: 5.0}), silent={32})
    link = world.history.links["c20"]
    world.history.links["c20"] = type(link)(link.commit, link.parents, "<script>alert(1)</script> | `x` @all")  # type: ignore[index]
    done = finished(monkeypatch, tmp_path, world, bad)
    assert done.culprits == ("c20", "c45")
    said = result(done)
    assert [re.findall(r"c\d+", text)[0] for text in said] == ["c20", "c45"]
    assert all("made it slower than its parent" in text for text in said)
    page = (tmp_path / "report.html").read_text()
    assert page.count("made it slower than its parent") == 2
    assert "slower by more than 1.50 %? yes, 8.15 % slower (" in page
    assert "slower by more than 1.50 %? cannot be measured there (build_failed)" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page


def test_the_file_fits_its_schema_and_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step it holds all that was answered: a resumed bisection measures nothing twice."""
    world, bad = line(slips(64, {37: 3.0}))
    monkeypatch.setattr(bisect, "measure", Measured(world, stop_after=4))
    with pytest.raises(KeyboardInterrupt):
        finish(begun(world, bad), tmp_path, View(quiet=True))
    document = json.loads((tmp_path / bisect.FILE).read_text())
    jsonschema.Draft202012Validator(schemas.schemas()["bisect.schema.json"]).validate(document)
    kept = read(tmp_path)
    assert (len(kept.steps), kept.status) == (4, "interrupted")
    rest = Measured(world)
    monkeypatch.setattr(bisect, "measure", rest)
    done = finish(kept, tmp_path, View(quiet=True))
    assert (done.culprits, done.status, len(done.steps)) == (("c37",), "complete", 4 + rest.steps)
    assert len(done.steps) == done.planned == 9
    assert read(tmp_path) == done


def test_a_file_of_other_questions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line(slips(16, {9: 3.0}))
    done = finished(monkeypatch, tmp_path, world, bad)
    for other, said in (
        (msgspec.structs.replace(done, steps=(done.steps[1], *done.steps[1:])), "does not answer the question about"),
        (msgspec.structs.replace(done, schema=2), "schema = 2, this abprof reads schema = 3"),
    ):
        (tmp_path / bisect.FILE).write_bytes(msgspec.json.encode(other))
        with pytest.raises(AbprofError, match=said):
            read(tmp_path)
    for text in ('{"schema": 3}', "[]", '{"options": []}'):
        (tmp_path / bisect.FILE).write_text(text)
        with pytest.raises(AbprofError, match="not a bisection of this abprof"):
            read(tmp_path)


def test_a_bisection_begun_before_regimes_had_names_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line(slips(16, {9: 3.0}))
    done = finished(monkeypatch, tmp_path, world, bad)
    older = json.loads((tmp_path / bisect.FILE).read_text())
    older["options"]["sustained"] = older["options"].pop("regime") == "sustained"
    (tmp_path / bisect.FILE).write_text(json.dumps(older))
    assert read(tmp_path) == msgspec.structs.replace(
        done, options=msgspec.structs.replace(done.options, regime="burst")
    )


def test_nothing_to_measure_where_both_ends_hold_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, bad = line([0.0] * 5, same={1, 2, 3, 4, 5})
    done = finished(monkeypatch, tmp_path, world, bad)
    assert (done.status, done.steps) == ("complete", ())
    assert result(done) == ["nothing changed: c0 (v1.0) and c5 (Commit 5) have the same kernels"]


@pytest.mark.parametrize(
    ("change", "said"),
    [(0.0, "nothing changed: ~ ("), (1.0, "finds it): 1.00 % slower ("), (-4.0, "faster, not slower: 4.00 % faster (")],
)
def test_the_answer_where_no_commit_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: float, said: str
) -> None:
    world, bad = line(slips(4, {2: change}))
    done = finished(monkeypatch, tmp_path, world, bad)
    (text,) = result(done)
    assert said in text
    assert done.decided
