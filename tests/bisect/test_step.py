"""One step: how often it is measured, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from abprof.extras.bisect import step
from abprof.extras.bisect.questions import Ask
from abprof.extras.bisect.state import Row, step_options
from abprof.records import Options
from abprof.system.console import View

ASKED = Options(no_peers=True, repo="/repo", workloads_from="/workloads", budget=60.0, threshold=2.0)


@dataclass
class Session:
    """Stands in for abprof/session.py: what was called, on which folder."""

    folder: Path
    status: str = "complete"
    called: list[str] = field(default_factory=list)

    def run(self, config: Any, view: View, until: Any) -> Any:
        self.called.append("run")
        return SimpleNamespace(status=self.status, proofs=()), self.folder

    def again(self, path: Path, only: Any, repo: str, budget: float, view: View, *, resume: bool, until: Any) -> Any:
        self.called.append(f"again {path.name} {budget:g}")
        assert resume
        return SimpleNamespace(status=self.status, proofs=()), path

    def judged(self, path: Path, say: Any) -> Any:
        return SimpleNamespace(), []


class Asks(step.Questions):
    """Questions that stay open, or do not."""

    still = True

    def open(self, run: Any, blocks: Any, proofs: Any = ()) -> set[str]:
        return {"cell"} if self.still else set()

    def answers(self, run: Any, blocks: Any) -> Any:
        return ()


def measured(monkeypatch: pytest.MonkeyPatch, place: Path, *, still: bool, status: str = "complete") -> list[str]:
    session, questions = Session(place / "20260101T000000Z-a-b", status), Asks()
    monkeypatch.setattr(step, "session", session)
    monkeypatch.setattr(Asks, "still", still)
    step.measure(step_options(ASKED, "a", "b", ["w/case=a"], place), questions, place, View(quiet=True))
    return session.called


def test_what_stays_open_gets_as_much_again_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert measured(monkeypatch, tmp_path, still=True) == ["run", "again 20260101T000000Z-a-b 60"]
    assert measured(monkeypatch, tmp_path, still=False) == ["run"]


def test_what_was_interrupted_gets_no_second_helping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert measured(monkeypatch, tmp_path, still=True, status="interrupted") == ["run"]


def test_a_run_that_was_begun_is_gone_on_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One without run.json was killed before it measured anything: it is begun anew."""
    (tmp_path / "20260101T000000Z-a-b").mkdir()
    assert measured(monkeypatch, tmp_path, still=False) == ["run"]
    (tmp_path / "20260101T000000Z-a-b" / "run.json").touch()
    assert measured(monkeypatch, tmp_path, still=False) == ["again 20260101T000000Z-a-b 60"]


def test_a_steps_run_is_of_these_cells_and_nothing_else() -> None:
    config = step_options(ASKED, "a", "b", ["w/case=a", "w/case=b", "v/case=a"], Path("/steps/01"))
    assert (config.specs, config.cell, config.workloads) == (
        ("a", "b"),
        ("w/case=a", "w/case=b", "v/case=a"),
        ("w", "v"),
    )
    assert (config.workloads_from, config.threshold, config.runs_dir) == ("/workloads", 2.0, "/steps/01")
    assert config.no_peers


def test_a_run_that_was_tampered_with_answers_nothing() -> None:
    run: Any = SimpleNamespace(header=SimpleNamespace(counts={"tampered": 1}), comparisons=())
    ask = Ask("a", "b", "ends", 0.01, 0.05, 1)
    answer = step._answer(run, SimpleNamespace(state=None), Row(cell="w/case=a"), ask)  # type: ignore[arg-type]
    assert (answer.said, answer.reason) == ("unclear", "tampered")
