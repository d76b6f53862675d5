"""What the parent asks when it opens a cell, and whose word on a call's time it takes."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from abprof import wire
from abprof.opening import Opening
from tests.test_ranks import request

PROVISIONAL, WARM = 4e9, 1e8  # ns: a first call, which loads; the check's


class Crew:
    """Answers as workers whose calls are long."""

    token = "t"

    def __init__(self, told: float) -> None:
        self.told, self.asked = told, list[wire.Open]()

    def worker(self, side: str) -> Any:
        return SimpleNamespace(call=lambda request, timeout: self.answer(request))

    def answer(self, request: Any) -> Any:
        if isinstance(request, wire.Open):
            self.asked.append(request)
            return wire.Opened("ok", "", PROVISIONAL, 1e4, None, 3e6)
        assert isinstance(request, wire.Check)
        return wire.Checked(True, call_ns=self.told, host_ns=2e4 if self.told else 0.0)


@pytest.mark.parametrize("checks", [True, False])
def test_an_opening_says_whether_a_check_follows(checks: bool) -> None:
    crew: Any = Crew(WARM)
    opening = Opening(crew, SimpleNamespace(kind="cuda"), dataclasses.replace(request(1), check=checks))  # type: ignore[arg-type]
    opening._open_all()
    assert [asked.checked for asked in crew.asked] == [checks] * 3
    assert set(opening.calls().values()) == {WARM if checks else PROVISIONAL}
    opening._open(opening.seats[0])  # its worker died of another arm, or it is alone in memory
    assert not crew.asked[-1].checked, "no second check follows"


@pytest.mark.parametrize(("told", "call", "host"), [(WARM, WARM, 2e4), (0.0, PROVISIONAL, 3e6)])
def test_the_checks_word_on_a_calls_time_counts_where_it_gives_one(told: float, call: float, host: float) -> None:
    crew: Any = Crew(told)
    opening = Opening(crew, SimpleNamespace(kind="cuda"), dataclasses.replace(request(1), check=True))  # type: ignore[arg-type]
    opening._open_all()
    assert set(opening.calls().values()) == {call}
    assert {seat.outcome.host_ns for seat in opening.seats} == {host}
    assert {seat.opened.host_ns for seat in opening.seats if seat.opened} == {host}, "which says what is launch-bound"
